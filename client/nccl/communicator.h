// Communicator: the client's object of an ncclComm_t. The communicator itself is in a worker.
//
// Threads: NCCL allows one thread at a time to use a communicator, but any thread may query or
// abort it. Nothing blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "client/objects/arena.h"
#include "client/objects/object.h"
#include "common/base/mutex.h"
#include "common/nccl/nccl_calls.h"

namespace rcuda::client::nccl {

using namespace rcuda::nccl;

// The client's object. Its id is unique among all communicators of the process.
struct Communicator : Object {
  explicit Communicator(const Identity& identity) : Object(wire::Kind::kNone, identity) {}

  bool blocking = true;
  // kInProgress while a call of a non-blocking communicator is in progress, then its result. Shared
  // with the thread that waits for the call, because another thread may abort the communicator.
  const std::shared_ptr<std::atomic<int>> state = std::make_shared<std::atomic<int>>(kSuccess);
  std::atomic<int> ranks{0}, rank{0};
  // The client has aborted the communicator in its worker, but the program has not ended it yet.
  std::atomic<bool> is_aborted{false};
  // NCCL has reported an error of the communicator. From then on each operation waits for its
  // answer.
  std::atomic<bool> has_failed{false};
  // The program has registered memory. NCCL exchanges registrations with other ranks at their first
  // use, so operations may wait.
  std::atomic<bool> has_registrations{false};

  // True for every 64th operation, which waits for its answer although its connections exist. So a
  // call returns an error of the communicator before the stream's queue is full of operations that
  // never end (a single operation takes 5 places, see room_of() in session.cpp).
  bool is_due_for_answer() {
    constexpr uint32_t kOften = 64;
    return posts_.fetch_add(1, std::memory_order_relaxed) % kOften == kOften - 1;
  }

  // Whether an operation of this kind (verb, data type, operator) with this peer or root was made
  // before, so that its connections exist.
  bool is_connected(const Call& call) const {
    MutexLock lock(mutex_);
    return connected_.contains(key_of(call));
  }
  void note_connected(const Call& call) {
    MutexLock lock(mutex_);
    connected_.insert(key_of(call));
  }

  // Reduction operators of the program.
  void add_operator(int number) {
    MutexLock lock(mutex_);
    operators_.insert(number);
  }
  void remove_operator(int number) {
    MutexLock lock(mutex_);
    operators_.erase(number);
  }
  // Device communicators: their numbers, and the bytes that the worker's NCCL has written into the
  // program's struct.
  void add_device_communicator(uint64_t number, std::vector<std::byte> bytes) {
    MutexLock lock(mutex_);
    device_communicators_.emplace_back(number, std::move(bytes));
  }
  // Forgets the device communicator with the bytes at `at`, and returns its number; 0 if it is not
  // known. Compares bytes, because the program may have copied the struct.
  uint64_t take_device_communicator(const void* at) {
    MutexLock lock(mutex_);
    const auto found = std::ranges::find_if(device_communicators_, [&](const auto& one) {
      return std::memcmp(one.second.data(), at, one.second.size()) == 0;
    });
    if (found == device_communicators_.end()) return 0;
    const uint64_t number = found->first;
    device_communicators_.erase(found);
    return number;
  }
  bool has_operator(int number) const {
    MutexLock lock(mutex_);
    return (number >= 0 && number < kBuiltInOperators) || operators_.contains(number);
  }

 private:
  static uint64_t key_of(const Call& call) {
    return static_cast<uint64_t>(call.verb) << 56 |
           static_cast<uint64_t>(call.datatype & 0xff) << 48 |
           static_cast<uint64_t>(call.operation & 0xffff) << 32 | static_cast<uint32_t>(call.peer);
  }

  std::atomic<uint32_t> posts_{0};
  mutable Mutex mutex_;
  std::unordered_set<uint64_t> connected_ RCUDA_GUARDED_BY(mutex_);
  std::unordered_set<int> operators_ RCUDA_GUARDED_BY(mutex_);
  std::vector<std::pair<uint64_t, std::vector<std::byte>>> device_communicators_
      RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client::nccl
