// SharedAllocations: allocations that a client exported, for itself or for another client.
//
// The driver's descriptor of each allocation is kept here under a secret. A thread answers on an
// abstract Unix socket and passes the descriptor to the worker that imports it. The socket's name
// and the secret are in the token that the client gets (common/wire/allocation_token.h). Thread and
// socket exist from the first export on.
// Threads: all functions on the executor thread. Blocking: import_descriptor() waits for another
// worker, at most a second for the connection and a second for the answer. An error names the
// resource that is missing. While this process has no free descriptor, importing workers wait until
// it has one.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/allocation_token.h"

namespace rcuda::server {

class SharedAllocations {
 public:
  SharedAllocations() = default;
  ~SharedAllocations();
  SharedAllocations(const SharedAllocations&) = delete;
  SharedAllocations& operator=(const SharedAllocations&) = delete;

  // Takes ownership of the driver's descriptor.
  Result<wire::AllocationToken> add(UniqueFd descriptor);
  bool remove(const wire::AllocationToken& token);
  // Returns a descriptor of the allocation that the token names, from the worker that exported it.
  Result<UniqueFd> import_descriptor(const wire::AllocationToken& token);

 private:
  using Secret = std::array<uint8_t, 16>;

  Status listen();
  void serve();
  // Waits for `time`. False if the thread has to end.
  bool rest(std::chrono::milliseconds time);
  std::shared_ptr<const UniqueFd> find(const Secret& secret);  // null if there is none

  std::mutex mutex_;
  std::map<Secret, std::shared_ptr<const UniqueFd>> kept_;  // shared while serve() sends one
  Secret name_{};
  UniqueFd listener_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace rcuda::server
