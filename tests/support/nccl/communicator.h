// One rank of a communicator, and its operations in streams.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>

#include "tests/support/nccl/hub.h"

namespace testnccl {

// Until the end of its scope, makes a context current and allows calls during captures of streams.
class Current {
 public:
  explicit Current(CUcontext context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Describes a rank. Each rank gets the descriptions of all ranks when the ranks meet.
struct Member {
  Id hub;    // of rank 0: the address of the communicator's hub; empty in other ranks
  Id spare;  // where ranks meet for ncclCommShrink if this rank is the first of them
  uint64_t host;
  uint64_t process;  // process_key()
  CUuuid device;
  int version;
  uint64_t encryption;
};

// A factor of ncclRedOpCreatePreMulSum.
struct Factor {
  ncclDataType_t type;
  std::array<std::byte, 8> value;
  CUdeviceptr device;  // 0 if `value` is the factor
};

struct Request {
  Call call;
  CUdeviceptr sent, received;
  std::optional<Factor> factor;
  CUstream stream;
};

// A send or a receive.
struct Leg {
  Transfer transfer;
  CUdeviceptr buffer;
  CUstream stream;
};

class Communicator;

// An operation's commands in its stream: copies from the device, a host function, a wait for the
// word in `staging`, copies to the device, an event and, outside of captures, a host function that
// releases the operation. The first host function passes the operation to the communicator's
// thread, which writes the word at the end. So a graph may contain an operation, and no thread of
// the driver blocks.
struct Operation {
  std::shared_ptr<Communicator> owner;
  Kind kind;
  Bytes head;  // the message's bytes before the payload
  std::optional<Factor> factor;
  ncclDataType_t type;
  size_t sent, received;
  std::byte* staging = nullptr;  // page-locked: the word, the factor, data sent, data received
  size_t capacity = 0;

  std::atomic_ref<uint32_t> word() const {
    return std::atomic_ref(*reinterpret_cast<uint32_t*>(staging));
  }
  std::byte* out() const { return staging + 64; }
  std::byte* in() const { return staging + 64 + sent; }
};

// A random number of this process. Processes of different hosts may have equal process ids.
uint64_t process_key();
// Of ncclSetEncryption(): 0 without encryption, otherwise a hash of the secret. Ranks with
// different values cannot meet, because NCCL cannot decrypt their messages.
std::atomic<uint64_t>& encryption();
int library_version();  // TESTNCCL_VERSION, by default that of nccl_api.h

// One thread at a time uses a communicator; abort() and queries may come from any thread. enter()
// returns false if another thread uses it, and leave() ends the calling thread's use.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int ranks, int rank, bool blocking, CUcontext context);

  // Joins the other ranks at `id`. Blocks until all ranks have joined. meet_as() is for a split:
  // its rank and number of ranks differ from the constructor's.
  ncclResult_t meet(const Id& id);
  ncclResult_t meet_as(int rank, int ranks, const Id& id);
  // Sends `mine`. Returns the bytes of all ranks, in their order, or nothing after a failure.
  Bytes exchange(const Bytes& mine);

  // The first operation with a peer waits until the peer calls, too. Call begin_connect() on all
  // communicators of a group, then end_connect(), which waits, on all.
  bool begin_connect(const std::set<int32_t>& peers);
  bool end_connect();
  bool knows(const std::set<int32_t>& peers) const;

  ncclResult_t enqueue(const Request& request);
  ncclResult_t enqueue(const std::vector<Leg>& legs);

  bool enter();
  void leave();

  ncclResult_t state() const { return state_.load(); }
  // The result of a call that has failed: the state, or ncclInternalError if the state has no error
  // (after an abort).
  ncclResult_t failure() const;
  void set_state(ncclResult_t state);
  // Prints the text and makes it the last error. If `lasting`, makes `result` the communicator's
  // state; later lasting errors have no effect. Returns `result`.
  ncclResult_t fail(ncclResult_t result, const std::string& text, bool lasting);
  std::string last_error();

  void finalize();  // blocks until its operations have ended
  void end();       // after finalize()
  void abort();
  ncclResult_t revoke();
  // While the child has not met its other ranks, an abort or a revocation of this communicator ends
  // the child, too.
  void adopt(const std::shared_ptr<Communicator>& child);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  bool blocking() const { return blocking_; }
  bool is_revoked() const { return is_revoked_; }
  bool is_suspended() const { return is_suspended_; }
  void set_suspended(bool is_suspended) { is_suspended_ = is_suspended; }
  CUcontext context() const { return context_; }
  CUdevice device() const { return device_; }
  bool is_of_this_process(int rank) const {
    return members_[static_cast<size_t>(rank)].process == process_key();
  }
  const Id& spare_of(int rank) const { return members_[static_cast<size_t>(rank)].spare; }

  ncclRedOp_t add_factor(const Factor& factor);
  bool remove_factor(int op);
  std::optional<Factor> factor(int op) const;

  // Both are called by host functions.
  void start(Operation* operation);
  void finish(Operation* operation);

 private:
  Channel* lane(Lane which) const { return lanes_[static_cast<size_t>(which)].get(); }
  bool join(const Id& id, Lane which);
  bool receive(Lane which, Message* message);
  ncclResult_t check_members();
  void watch();
  void shut_lanes();
  void end_children();
  void progress();
  void run(Operation& operation);
  ncclResult_t cuda(CUresult result, const char* call);
  ncclResult_t place(Operation* operation, CUstream stream,
                     const std::function<CUresult()>& copy_out,
                     const std::function<CUresult()>& copy_in);
  Operation* make_operation(Kind kind, Bytes head, size_t sent, size_t received);
  ncclResult_t check_buffer(CUdeviceptr buffer, const char* name);
  ncclResult_t check_stream(CUstream stream);
  Bytes orders(bool counts);

  int ranks_, rank_;
  const bool blocking_;
  const CUcontext context_;
  CUdevice device_ = 0;
  std::shared_ptr<Hub> hub_, spare_;
  std::vector<Member> members_;
  std::array<std::shared_ptr<Channel>, kLanes> lanes_;
  std::mutex lanes_mutex_;
  std::atomic<ncclResult_t> state_{ncclSuccess};
  std::atomic<bool> ended_ = false, has_met_ = false, is_revoked_ = false, is_suspended_ = false;
  std::vector<std::weak_ptr<Communicator>> children_;  // guarded by mutex_
  std::atomic<uint64_t> user_ = 0;                     // the thread that uses it
  std::mutex mutex_;
  std::string last_error_;
  std::set<int32_t> known_;
  std::map<int, Factor> factors_;
  uint64_t begun_ = 0;  // collectives; guarded by order_mutex of communicator.cpp

  std::condition_variable changed_;
  std::deque<Operation*> started_;
  std::vector<Operation*> free_;
  int in_streams_ = 0;
  CUevent last_event_ = nullptr;
  CUstream last_stream_ = nullptr;
  uint64_t last_capture_ = 0;
  bool has_last_ = false;
};

}  // namespace testnccl
