// ServerStatus: a daemon's answer to a StatusQuery. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/messages/forms.h"
#include "common/messages/message.h"
#include "common/messages/work.h"

namespace rcuda::wire {

inline constexpr size_t kMaxUserTotals = 256;
inline constexpr uint32_t kMaxCodes = 64;  // more than Code has values

// The state of a server, for rcuda-smi.
struct ServerStatus {
  static constexpr char kName[] = "status";
  static constexpr MessageType kForm = MessageType::kStatus;

  struct Device {
    uint32_t ordinal = 0;
    std::string name;
    uint64_t total_bytes = 0;
    bool draining = false;  // this device is drained; always false in a message of a worker
  };
  struct Session {
    std::string user, program, host;
    uint32_t client_pid = 0, worker_pid = 0;
    std::string medium;
    uint64_t seconds = 0;
    std::vector<uint32_t> devices;
    std::string job{};                       // the job of the session's lease; empty: none
    uint32_t priority = 0;                   // docs/parking.md#priorities
    Work work{};                             // so far
    uint32_t losses = 0;                     // how often the connection was lost so far
    std::optional<uint64_t> lost_seconds{};  // since the last loss; none: connected
    // The session's state of parking (docs/parking.md): "parking", "parked", "waiting" for free GPU
    // memory, or "waking". Empty: in none of these states.
    std::string park{};
    std::string park_way{};       // "driver" or "worker"; empty: it is not parked
    std::string park_refused{};   // why the last attempt to park it failed; empty: it did not fail
    uint64_t parked_bytes = 0;    // bytes of GPU memory that are in the host's memory now
    uint64_t parked_seconds = 0;  // since the session was parked
  };
  struct Leased {
    uint32_t ordinal = 0;
    // The exclusive lease, or empty. `user` is empty if the client may not know it.
    std::string id, user;
    uint64_t until = 0;   // seconds since 1970; 0: no end
    uint32_t shared = 0;  // the number of shared leases
  };
  // The totals since the server's start, for users that may see all sessions. Other users receive
  // zeros and empty lists.
  struct UserTotals {
    std::string user, medium;
    uint64_t sessions = 0;
    Work work{};
  };
  struct Totals {
    std::vector<uint64_t> refused;  // number of refused clients, by the Code of the reason
    uint64_t worker_starts = 0, worker_failures = 0;
    uint64_t worker_start_us = 0;   // until the worker was ready; sum over all successful starts
    std::vector<UserTotals> users;  // by user and medium; at most kMaxUserTotals
    // The number of parks and of wakes, and the total time for which the woken sessions were
    // parked.
    uint64_t parks = 0, wakes = 0, parked_seconds = 0;
    // parks_for_room: the number of parks that made room for another session. room_refusals: the
    // number of allocations that failed because the server could not make room.
    uint64_t parks_for_room = 0, room_refusals = 0;
  };
  std::string server;          // host name
  std::string version, build;  // common/base/version.h, of the running daemon
  uint64_t clock_ms = 0;       // the server's clock, since 1970
  // The client that queries the status, as the server has identified it: user, Identity::method,
  // and the token's roles.
  std::string user, method, roles;
  std::string driver;
  std::string nccl;  // sessions' NCCL: version and path, or why it is missing; empty: not known yet
  uint32_t idle_workers = 0;
  uint32_t max_sessions = 0;
  uint32_t waiting = 0;  // clients in the queue of the admission
  bool draining = false;
  std::vector<Device> devices;
  std::vector<Leased> leased;  // devices with leases
  std::vector<Session> sessions;
  Totals totals;
};

extern template struct Codec<ServerStatus>;

// This function is in the header because workers also send a Device to their daemon.
template <typename Visitor>
void fields(Visitor& visit, ServerStatus::Device& m) {
  visit.number("ordinal", m.ordinal);
  visit.text("name", m.name);
  visit.number("total_bytes", m.total_bytes);
  visit.flag("draining", m.draining);
}

}  // namespace rcuda::wire
