// SharedAllocations: allocations that a client exported, for itself or for another client.
//
// The driver's descriptor of each stays here under a secret. A thread of this worker's own answers
// on an abstract Unix socket, whose name and secret are in the token that the client got
// (common/wire/allocation_token.h), and passes the descriptor to the worker that imports it. There
// is no thread and no socket before the first export. Threads: the executor's, but for that thread.
// import_descriptor() blocks on another worker for at most a second. A thread that finds no free
// descriptor lets callers wait until there is one.
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

  // Takes the driver's descriptor over.
  Result<wire::AllocationToken> add(UniqueFd descriptor);
  bool remove(const wire::AllocationToken& token);
  // A descriptor of what the token names, wherever that is kept.
  Result<UniqueFd> import_descriptor(const wire::AllocationToken& token);

 private:
  using Secret = std::array<uint8_t, 16>;

  Status listen();
  void serve();
  // Waits for a while, or for the end: false then.
  bool rest(std::chrono::milliseconds time);
  std::shared_ptr<const UniqueFd> find(const Secret& secret);  // null if there is none

  std::mutex mutex_;
  std::map<Secret, std::shared_ptr<const UniqueFd>> kept_;  // and by whoever is passing one on
  Secret name_{};
  UniqueFd listener_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace rcuda::server
