// The addresses of workers: a base for the start, and a window for the session.
//
// A worker starts before its session is known. So its driver starts in a base that the daemon
// chooses, and the worker chooses its window when it gets the session. An idle worker suits a
// session unless the client or another of its servers uses addresses of the worker's base
// (is_taken()). A window is a fair share of the free addresses, between a least and a most size
// that follow from the memory of the session's devices (common/wire/address_ranges.h).
// Pure functions; any thread. Nothing blocks. Errors: as the functions say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/address_space.h"
#include "common/base/status.h"
#include "common/messages/handshake.h"
#include "common/wire/address_ranges.h"
#include "common/wire/address_window.h"

namespace rcuda::server {

// A base: the addresses in which a worker's driver starts. The least size is wire::kBaseBytes, the
// other sizes are its doublings. The bases of each size fill the same range, one after the other.
struct Base {
  uint32_t index = 0;      // taken modulo the number of bases of this size
  uint32_t doublings = 0;  // the size is wire::kBaseBytes << doublings; at most kMostDoublings
  // The base as one number, for a worker's command line. Equal address ranges have equal numbers.
  uint32_t number() const;
  static Base from_number(uint32_t number);  // accepts any number
  wire::AddressWindow range() const;
};
inline constexpr uint32_t kMostDoublings = 5;
// The doublings for the workers of a machine with `gpus` GPUs. Driver 580 takes 9.1 GiB of
// addresses for each H100 at its start. On a machine with up to 64 GPUs, a base has at least 16 GiB
// for each GPU of the machine, including GPUs that the worker does not use.
uint32_t doublings_for(size_t gpus);

// The bases of a server's workers, in the order of preference: at(0) for the first idle worker,
// at(1) for the next. Nodes are often numbered, and a session often has servers on consecutive
// nodes. So at(0) follows from the number at the end of the host's name: servers with consecutive
// numbers share none of their first bases. Without such a number, at(0) follows from the name's
// hash. The port distinguishes the servers of one host.
class Bases {
 public:
  Bases(const std::string& host, uint16_t port);
  uint32_t at(uint32_t preference) const;

 private:
  uint32_t first_;
};

// Whether the client, or another of its servers, uses addresses of the range.
bool is_taken(const wire::Hello& hello, const wire::AddressWindow& range);

struct WindowRequest {
  uint64_t memory_bytes = 0;  // of the session's devices on this worker
  uint32_t devices = 1;       // the number of these devices
  // The session's devices without a window: on this server, and on its other servers that have no
  // window yet.
  uint32_t devices_left = 1;
  // The addresses that only the fence occupies in this worker: a window may use them. Sorted.
  std::vector<AddressRange> free;
  std::vector<AddressRange> taken;  // by the client and its other workers; any order
};

// `hello` comes from the client; its ranges are limited to the 47 bits of user space. `closed`: the
// addresses that the fence has closed (WindowRequest::free).
WindowRequest window_request(const wire::Hello& hello, uint64_t memory_bytes,
                             const std::vector<AddressRange>& closed);

// Returns kInvalidArgument, with the sizes and the remedy, if no free range holds a window of the
// least size.
Result<wire::AddressWindow> choose_window(WindowRequest request);

}  // namespace rcuda::server
