// Transfers (read() and write() of a Link), for media that cut a transfer into pieces.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/link.h"

namespace rcuda::transport {

// The arguments of a read() or write().
struct TransferRequest {
  bool to_peer = false;
  RegionId region = RegionId::kNone;
  uint64_t offset = 0;
  std::byte* local = nullptr;
  uint64_t bytes = 0;
  uint32_t immediate = 0;  // to_peer only; 0: none; with in_order: the write's number
  Company company = Company::kAlone;
  bool in_order = false;  // Link::write_in_order()
};

// A transfer that travels in several pieces. Each piece reports once, from any thread. The last
// piece calls the caller's `done` with the first error, if any.
class PendingTransfer {
 public:
  PendingTransfer(size_t pieces, TransferDone done) : left_(pieces), done_(std::move(done)) {}

  void piece_done(const Status& status) {
    if (!status.ok()) {
      MutexLock lock(mutex_);
      if (error_.ok()) error_ = status;
    }
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_(error_);
  }

 private:
  std::atomic<size_t> left_;
  Mutex mutex_;
  Status error_;  // guarded by mutex_ until the last piece is done
  const TransferDone done_;
};

}  // namespace rcuda::transport
