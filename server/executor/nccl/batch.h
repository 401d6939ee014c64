// A batch of NCCL's calls: the calls of a group of the program, or a single one.
//
// make() may wait for other ranks, so it runs on a thread of NcclCallers, or on the executor thread
// for operations whose connections exist. A batch belongs to the thread that makes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "common/nccl/functions.h"
#include "common/nccl/nccl_calls.h"

namespace rcuda::server {

// One communicator of the session. Shared, because a thread may still be in a call on it.
struct NcclCommunicator {
  std::atomic<void*> handle{nullptr};  // null until NCCL has made it
  // NCCL writes the handle here, perhaps as late as in an abort, which waits for NCCL's own
  // threads. The batch that creates the communicator may be gone by then.
  void* made = nullptr;
  bool blocking = true;
  std::atomic<int> posted_error{0};  // of an operation without an answer
  uint64_t error_number = 0;         // of Answers::latch(), for posted_error; executor thread
  // Equal in all its ranks, whatever workers they are in; 0: unknown.
  uint64_t tag = 0;
  uint32_t splits = 0;  // so far; executor thread
  // The worker of another rank has died.
  std::atomic<bool> is_lost{false};
  std::atomic<int> calls{0};  // on threads of NcclCallers
  Mutex mutex;
  // From Nccl::create() until NCCL has made the handle, or has failed. An abort waits for that.
  bool is_being_made RCUDA_GUARDED_BY(mutex) = false;
  CondVar made_or_failed;
  // The handles of its registered memory and windows: a client may name no others.
  std::set<uint64_t> registrations RCUDA_GUARDED_BY(mutex);
  // `waiting` counts the threads that poll this non-blocking communicator. They leave it when
  // `aborted` is set.
  std::atomic<bool> aborted{false};
  std::atomic<int> waiting{0};
};

struct NcclStep {
  nccl::Call call;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  std::shared_ptr<NcclCommunicator> communicator, created;
  // Of calls that create a communicator.
  std::vector<nccl::UniqueId> ids;
  std::vector<int> excluded;
  bool has_config = false;
  nccl::Config config;
  std::string net_name, comm_name;
  uint64_t scalar[2] = {};  // kPreMulSum
  // Of operations.
  bool has_operation_config = false;
  nccl::OperationConfig operation_config;
  std::string algorithms;
  nccl::PutTail put;
  std::vector<nccl::SignalWait> waits;
  void* made = nullptr;  // the handle of a registration
  nccl::Answer answer;
};

struct NcclBatch {
  std::vector<NcclStep> steps;
  bool grouped = false;
  // Why nothing is called; empty: it is. One line for the program.
  std::string refusal;
};

// Returns the first error. With a refusal, or a function that the library lacks, nothing is called,
// and the result is kInvalidUsage. If a communicator is lost, its failures and further calls are
// kRemoteError.
nccl::ResultCode make(const nccl::Functions& functions, const api::DriverTable& driver,
                      NcclBatch& batch);

}  // namespace rcuda::server
