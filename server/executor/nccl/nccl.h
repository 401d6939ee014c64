// Nccl: the collectives of a session. The server's NCCL makes them, for the program's
// communicators.
//
// Calls that may wait for other ranks run on threads of NcclCallers. The worker answers when NCCL
// has returned, so the client's thread waits as long as it would wait in NCCL itself. Meanwhile the
// worker executes other commands of the ring. Operations whose connections exist run on the
// executor thread. A communicator in the worker is blocking if the program's communicator is.
// (Rejected: only non-blocking communicators. From NCCL 2.27 on, each operation of such a
// communicator starts a thread and launches at an unknown time, and the next operation must wait
// for this launch.)
//
// Executor thread only, except lose(). Blocking: make_here(), while NCCL launches. At the end of
// the session nothing waits for NCCL: calls in progress are left to the end of the process.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "server/executor/nccl/batch.h"
#include "server/executor/nccl/callers.h"
#include "server/executor/nccl/library.h"
#include "server/executor/nccl/nccl_settings.h"
#include "server/executor/streams/jobs.h"

namespace rcuda::server {

class Nccl {
 public:
  // `driver` and `jobs` outlive this object.
  Nccl(const api::DriverTable& driver, Jobs& jobs, const NcclSettings& settings);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // `encryption`: the result of ncclSetEncryption().
  using Opened = std::function<void(const Result<const NcclLibrary*>&, int encryption)>;
  // Sets environment variables (lines NAME=value; skips those that a program may not set), loads
  // the library, and calls `then` on the executor thread. With `psk`, the program's argument of
  // ncclSetEncryption(), also calls this function; an empty text is EncryptionConfig::kNone.
  // `client_demands`: fails unless NCCL encrypts its connections. Returns false if no thread can be
  // started.
  bool open(const std::vector<std::string>& variables, std::optional<std::string> psk,
            bool client_demands, Opened then);
  // After open(): whether the environment variables let any operation wait for other ranks.
  bool operations_wait() const { return operations_wait_; }
  // Whether work of run() is in progress, or its `then` has not been called.
  bool is_busy() const { return running_ > 0; }
  // Returns null before open() has succeeded.
  const NcclLibrary* library() const { return library_; }

  // Returns null if there is no such communicator.
  std::shared_ptr<NcclCommunicator> find(uint32_t id) const;
  // Returns the communicator that has this window; null if no communicator has it.
  std::shared_ptr<NcclCommunicator> find_by_window(uint64_t window) const;
  // Registers the communicator that the step will create. Returns null if the id is in use, or if
  // too many communicators exist.
  std::shared_ptr<NcclCommunicator> create(const NcclStep& step, bool blocking);
  // Returns the tag of the communicator that the next ncclCommGrow makes from this one; 0: unknown.
  // The tag belongs to one unique id, because NCCL makes no second id before this growth.
  static uint64_t next_grown_tag(const NcclCommunicator& parent);
  const std::string& apart() const { return settings_.apart; }  // see NcclSettings
  // Returns the reason why NCCL may not connect to the address that the id names, as a line for the
  // program. Empty: it may connect.
  std::string check_id(const nccl::UniqueId& id) const;
  // Workers with ranks of these communicators have died. The communicators' calls that need all
  // ranks return kRemoteError, also those in progress. Their other calls go on, so that the program
  // can shrink them. Any thread.
  void lose(std::vector<uint64_t> tags);

  // Runs `work` on another thread, in this context, then `then` on the executor thread. Returns
  // false if no thread can be started, or if too many calls are in progress and `always` is false.
  bool run(CUcontext context, std::function<void()> work, std::function<void()> then,
           bool always = false);
  // Makes the batch on another thread. Then, on the executor thread, calls `then`. If run() returns
  // false, calls forget_created() and returns false.
  bool start(std::shared_ptr<NcclBatch> batch, std::function<void(nccl::ResultCode)> then);
  // Makes the batch on this thread, and changes the thread's current context.
  nccl::ResultCode make_here(NcclBatch& batch);

  // suspend() releases the memory of the communicators before the session is parked
  // (ncclCommSuspend). resume() makes them usable again afterwards. All ranks must take part.
  // `tags`: the tags of all ranks that are parked together, one for each rank. Both call `then` on
  // the executor thread. `why`: the reason of a failure, as one line; empty: success.
  using Moved = std::function<void(const std::string& why)>;
  void suspend(const std::vector<uint64_t>& tags, Moved then);
  void resume(Moved then);
  // Whether suspend() has suspended a communicator, and resume() has not been called since.
  bool is_suspended() const { return !suspended_.empty(); }

  // Keeps the first calls of a batch that is too large for one command. `bytes`: the size of these
  // calls in the command. Returns false if the kept calls would have more than 8 MiB.
  bool keep_part(uint64_t batch, std::vector<NcclStep> steps, size_t bytes);
  std::vector<NcclStep> take_parts(uint64_t batch);

  // Undoes create() for the communicators of a batch that is not made.
  void forget_created(const NcclBatch& batch);

 private:
  void forget(uint32_t id);
  void forget_parent(NcclCommunicator& created);
  // Forgets the communicators that the batch has ended, and those that it has not made.
  void forget_ended(const NcclBatch& batch);
  using Communicators = std::vector<std::shared_ptr<NcclCommunicator>>;
  void call_each(nccl::Verb verb, const Communicators& communicators, Moved then);
  void lose_now(const std::vector<uint64_t>& tags);

  // Shared with threads that may outlive the session. `jobs` is null when the session has ended.
  struct Door {
    Mutex mutex;
    Jobs* jobs RCUDA_GUARDED_BY(mutex);
  };

  const api::DriverTable& driver_;
  const NcclSettings settings_;
  const std::shared_ptr<Door> door_;
  NcclCallers callers_;
  const NcclLibrary* library_ = nullptr;
  std::unordered_map<uint32_t, std::shared_ptr<NcclCommunicator>> communicators_;
  size_t running_ = 0;                                          // calls of run() in progress
  std::unordered_set<std::shared_ptr<NcclBatch>> in_progress_;  // started by start()
  Communicators suspended_;                                     // suspended by suspend()
  struct Parts {
    std::vector<NcclStep> steps;
    size_t bytes = 0;
  };
  std::unordered_map<uint64_t, Parts> parts_;
  size_t part_bytes_ = 0;
  bool operations_wait_ = true;
};

}  // namespace rcuda::server
