// The arguments of --rcuda, --rcuda-mem and --rcuda-bind, and the devices that a job was given.
//
// Pure functions; any thread; nothing blocks. Errors are texts for the user, which name the remedy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rcuda::slurm {

// The most devices that a job may request. Without a limit, a job with a typing error would wait in
// the queue without end.
inline constexpr uint32_t kMostDevices = 100'000;

// The argument of --rcuda=N[:type].
struct Request {
  uint32_t count = 0;
  std::string type;  // of the pool; empty: any type
};

// Returns nullopt on an error, with the text in `error`.
std::optional<Request> parse_request(std::string_view text, std::string* error);
// Parses the argument of --rcuda-mem, such as 20G, 512M or 1T. Returns MiB.
std::optional<uint64_t> parse_memory(std::string_view text, std::string* error);

// How a step divides the job's devices.
enum class Bind {
  kNode,  // the tasks of a node all see this node's part
  kTask,  // each task sees its own part
  kJob,   // every task sees all devices of the job
};
std::optional<Bind> parse_bind(std::string_view text, std::string* error);

// The devices that a job was given, as values of RCUDA_DEVICES and RCUDA_LEASE. The values contain
// no secret.
struct Grant {
  std::string text;  // as it was read
  std::string devices;
  std::string lease;
  uint32_t count = 0;  // devices
};
// Reads "rcuda: 1a2b3c4d gpu1:0-3,6 gpu2@9000:0", which the controller's prolog (rcuda-slurm)
// writes into a job's AdminComment: the lease's id, and servers with their devices. Returns nullopt
// for any other comment: the job has no GPUs.
std::optional<Grant> parse_grant(std::string_view comment);

// A task's place in its step.
struct Place {
  uint32_t node = 0, nodes = 1;
  uint32_t task = 0, tasks = 1;  // of the whole step
};
// Returns the positions, among `count` devices, of the devices that the task sees. Parts are
// consecutive and of nearly equal size; if there are more parts than devices, parts share devices
// in turn.
std::vector<uint32_t> share(uint32_t count, Bind bind, const Place& place);

// Returns the value of CUDA_VISIBLE_DEVICES for these devices: "2,3".
std::string visible_devices(const std::vector<uint32_t>& devices);

}  // namespace rcuda::slurm
