// Limits: the resources that sessions may use. The daemon reads them from the server's
// configuration (rules.h) and grants them to each session; daemon and worker enforce them. Plain
// values; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace rcuda::server {

// Limits that all sessions of a budget share: the budget of one session, user or group. 0: no
// limit.
struct Allowance {
  std::string of;              // for messages: "each session", "user ada", "group students"
  uint64_t device_memory = 0;  // bytes, on each device
  uint64_t host_memory = 0;    // bytes, page-locked by the worker or shared with the client
  uint64_t bandwidth = 0;      // bytes per second, of copies between client and device
  uint32_t slot = 0;           // the session's place in the budget's Ledger
};

// Limits of one session alone.
struct SessionLimits {
  std::chrono::nanoseconds session_time{0};  // 0: no limit
  std::chrono::nanoseconds idle_time{0};     // without a command and without work; 0: no limit
  // How many priorities of streams above the lowest may be used; nullopt: all of the device's.
  std::optional<uint32_t> priorities;
  uint32_t sm_percent = 0;  // share of each device's multiprocessors; 0: all
  // Among sessions that need the same room, the highest number comes first
  // (docs/parking.md#priorities).
  uint32_t priority = 0;
};

}  // namespace rcuda::server
