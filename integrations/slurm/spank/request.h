// What users write after --rcuda, --rcuda-mem and --rcuda-bind, and what a job was given.
//
// Pure functions; any thread; nothing blocks. Errors are texts for the user, which name the remedy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rcuda::slurm {

// Devices that a job may ask for. A typing error should not wait in the queue for ever.
inline constexpr uint32_t kMostDevices = 100'000;

// --rcuda=N[:type]
struct Request {
  uint32_t count = 0;
  std::string type;  // empty: the pool without a type
};

// None: `error` says what is wrong.
std::optional<Request> parse_request(std::string_view text, std::string* error);
// 20G, 512M or 1T; in MiB.
std::optional<uint64_t> parse_memory(std::string_view text, std::string* error);

// Among whom a step divides the job's devices.
enum class Bind {
  kNode,  // the tasks of a node see its part, as on a machine with GPUs
  kTask,  // each task sees its own part
  kJob,   // every task sees all
};
std::optional<Bind> parse_bind(std::string_view text, std::string* error);

// What a job was given: the values of RCUDA_DEVICES and RCUDA_LEASE. Neither is a secret.
struct Grant {
  std::string text;  // as it was read
  std::string devices;
  std::string lease;
  uint32_t count = 0;  // devices
};
// Reads "rcuda: 1a2b3c4d gpu1:0-3,6 gpu2@9000:0", which the controller's prolog (rcuda-slurm)
// writes into a job's AdminComment: the lease's id, and servers with their devices. None: it has no
// GPUs.
std::optional<Grant> parse_grant(std::string_view comment);

// A task's place in its step.
struct Place {
  uint32_t node = 0, nodes = 1;
  uint32_t task = 0, tasks = 1;  // of the whole step
};
// Which of `count` devices the task sees, by position. Parts are consecutive, and as equal as can
// be; if there are more parts than devices, parts share devices in turn.
std::vector<uint32_t> share(uint32_t count, Bind bind, const Place& place);

// "2,3", as CUDA_VISIBLE_DEVICES has it.
std::string visible_devices(const std::vector<uint32_t>& devices);

}  // namespace rcuda::slurm
