// A batch of NCCL's calls: the calls of a group of the program, or a single call.
//
// make() may wait for other ranks, so it runs on a thread of NcclCallers, or on the executor thread
// for operations whose connections exist. A batch belongs to the thread that makes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "common/nccl/functions.h"
#include "common/nccl/nccl_calls.h"
#include "server/executor/nccl/device_api.h"

namespace rcuda::server {

// One communicator of the session. Shared, because a thread may still be in a call on it.
struct NcclCommunicator {
  std::atomic<void*> handle{nullptr};  // null until NCCL has made it
  // NCCL writes the handle here, perhaps only during an abort, which waits for NCCL's own threads.
  // The batch that creates the communicator may have ended by then. So this member is not in the
  // batch.
  void* made = nullptr;
  CUcontext context = nullptr;  // the context in which it was created
  bool blocking = true;
  std::atomic<int> posted_error{0};  // the error of a posted operation; 0: none
  uint64_t error_number = 0;         // the number of posted_error in Answers; executor thread
  // Equal in all ranks of the communicator, also in other workers; 0: unknown.
  uint64_t tag = 0;
  // Of a new rank, until ncclCommGrow has ended: the tag of the communicator that grows. 0: none.
  // Executor thread.
  uint64_t parent_tag = 0;
  uint32_t splits = 0, growths = 0;  // number of calls so far; executor thread
  // The worker of another rank has died, or the worker of a new rank during ncclCommGrow.
  std::atomic<bool> is_lost{false};
  // end_wait() has revoked the communicator. NCCL refuses to revoke it twice, so the program's next
  // ncclCommRevoke does nothing.
  std::atomic<bool> is_revoked{false};
  std::atomic<bool> is_suspended{false};  // ncclCommSuspend, by the program or for a park
  Mutex mutex;
  // True from Nccl::create() until NCCL has made the handle, or has failed. An abort waits until it
  // is false.
  bool is_being_made RCUDA_GUARDED_BY(mutex) = false;
  CondVar made_or_failed;
  // The handles of the communicator's registered memory and windows. A client may name no other
  // handles.
  std::set<uint64_t> registrations RCUDA_GUARDED_BY(mutex);
  // The device communicators of this communicator, by their numbers.
  std::map<uint64_t, std::shared_ptr<DeviceCommunicator>> device_communicators
      RCUDA_GUARDED_BY(mutex);
  uint64_t last_device_communicator RCUDA_GUARDED_BY(mutex) = 0;
  // NCCL frees the communicator when `is_ended` is set and `users` (NcclUse) is 0.
  std::atomic<bool> is_ended{false};
  std::atomic<int> users{0};
};

// While an NcclUse exists, no other thread frees the communicator. Use it only around calls that do
// not wait for other ranks.
class NcclUse {
 public:
  explicit NcclUse(NcclCommunicator& communicator) : communicator_(communicator) {
    ++communicator_.users;
    if (!communicator_.is_ended) handle_ = communicator_.handle.load();
  }
  ~NcclUse() { --communicator_.users; }
  NcclUse(const NcclUse&) = delete;
  NcclUse& operator=(const NcclUse&) = delete;

  void* handle() const { return handle_; }  // null: the communicator has ended, or is not made

 private:
  NcclCommunicator& communicator_;
  void* handle_ = nullptr;
};

struct NcclStep {
  nccl::Call call;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  std::shared_ptr<NcclCommunicator> communicator, created;
  void* handle = nullptr;  // of `communicator`, during the call
  // For calls that create a communicator:
  std::vector<nccl::UniqueId> ids;
  std::vector<int> excluded;
  bool has_config = false;
  nccl::Config config;
  std::string net_name, comm_name;
  uint64_t scalar[2] = {};  // of kPreMulSum, if the program gave it in host memory
  // For operations:
  bool has_operation_config = false;
  nccl::OperationConfig operation_config;
  std::string algorithms;
  nccl::PutTail put;
  std::vector<nccl::SignalWait> waits;
  void* made = nullptr;                        // the handle of a registration
  std::shared_ptr<DeviceCommunicator> device;  // of a kCreateDevice call
  nccl::Answer answer;
};

struct NcclBatch {
  std::vector<NcclStep> steps;
  nccl::Grouping grouping{};
  float microseconds = 0;  // the estimate of a simulated group
  // Why make() must make no calls, as one line for the program. Empty: make() makes the calls.
  std::string refusal;
  std::atomic<bool> is_made{false};  // the caller of make() sets it afterwards
  // Another thread is about to revoke the communicators. The next call on them must wait until they
  // are revoked.
  std::atomic<bool> is_being_revoked{false};
};

// Whether the call needs a rank that is lost, so that it would wait without end.
bool needs_lost(const NcclStep& step);

// Makes the calls of the batch, and returns the first error. Makes no call and returns an error in
// these cases: the batch has a refusal, or the worker or the library lacks a function
// (kInvalidUsage); a communicator has ended (kInvalidArgument; kRemoteError if it is lost); a call
// needs a lost rank (kRemoteError).
nccl::ResultCode make(const nccl::Functions& functions, const api::DriverTable& driver,
                      NcclBatch& batch);

// Ends the wait in a batch that another thread makes and whose calls need a lost rank. Revokes the
// batch's communicators, which the program can then shrink. If the batch is still not made ten
// seconds later (one second if NCCL cannot revoke them), aborts them. Blocks until the batch is
// made or the communicators are aborted.
void end_wait(const nccl::Functions& functions, const api::DriverTable& driver, NcclBatch& batch);

}  // namespace rcuda::server
