// AsyncLookup: runs look-ups that may take long (in a name service, munged or NVML) for a thread
// that must not wait.
//
// Each question has a key, and runs on a thread of this class. At most `most_at_once` questions run
// at the same time; the others wait in a queue. descriptor() becomes readable when a question has
// an answer.
//
// Threads: one thread uses this object. Questions run on other threads; a question that has begun
// may go on after this object is destroyed. Blocking: never, not even the destructor; a question
// that hangs keeps its thread until it returns. Errors: kOutOfMemory if this object has no
// descriptor, or has no thread and cannot start one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/mutex.h"
#include "common/base/start_thread.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda {

template <typename Key, typename Answer>
class AsyncLookup {
 public:
  using Question = std::function<Answer()>;

  explicit AsyncLookup(size_t most_at_once) : state_(std::make_shared<State>()) {
    state_->most_at_once = most_at_once;
    state_->event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  // Drops the questions that have not begun.
  ~AsyncLookup() {
    MutexLock lock(state_->mutex);
    state_->asked.clear();
  }
  AsyncLookup(const AsyncLookup&) = delete;
  AsyncLookup& operator=(const AsyncLookup&) = delete;

  // Starts or queues the question. A key may have only one question at a time: call take() or
  // forget() before the next ask() with the same key.
  Status ask(const Key& key, Question question) {
    if (!state_->event) {
      return Status(Code::kOutOfMemory,
                    "this process cannot receive answers of look-ups, because it had no free file "
                    "descriptor at its start: raise the limit of open files (ulimit -n) and start "
                    "the process again");
    }
    MutexLock lock(state_->mutex);
    if (state_->threads < state_->most_at_once) {
      std::thread thread;
      Status started = start_thread(&thread, [state = state_] { work(*state); });
      if (!started.ok() && state_->threads == 0) return started;
      if (started.ok()) {
        thread.detach();
        ++state_->threads;
      }
    }
    state_->asked.emplace_back(key, std::move(question));
    state_->answers[key];
    return {};
  }
  // Whether the key has a question: from ask() until the answer is taken or forgotten.
  bool is_asked(const Key& key) const {
    MutexLock lock(state_->mutex);
    return state_->answers.count(key) != 0;
  }
  // Returns the number of questions that have not begun.
  size_t waiting() const {
    MutexLock lock(state_->mutex);
    return state_->asked.size();
  }
  // Removes the answer and returns it; nullopt if the question has no answer yet.
  std::optional<Answer> take(const Key& key) {
    MutexLock lock(state_->mutex);
    const auto found = state_->answers.find(key);
    if (found == state_->answers.end() || !found->second) return std::nullopt;
    std::optional<Answer> answer = std::move(found->second);
    state_->answers.erase(found);
    return answer;
  }
  // Removes all answers that have arrived, and returns them.
  std::vector<std::pair<Key, Answer>> take_all() {
    MutexLock lock(state_->mutex);
    std::vector<std::pair<Key, Answer>> taken;
    std::erase_if(state_->answers, [&](auto& entry) {
      if (entry.second) taken.emplace_back(entry.first, std::move(*entry.second));
      return entry.second.has_value();
    });
    return taken;
  }
  // Drops the key's question if it has not begun, and its answer.
  void forget(const Key& key) {
    MutexLock lock(state_->mutex);
    state_->answers.erase(key);
    std::erase_if(state_->asked, [&](const auto& one) { return one.first == key; });
  }

  int descriptor() const { return state_->event.get(); }
  // Makes descriptor() unreadable until the next answer.
  void acknowledge() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(state_->event.get(), &count, sizeof count);
  }

 private:
  struct State {
    size_t most_at_once = 0;
    UniqueFd event;
    Mutex mutex;
    std::deque<std::pair<Key, Question>> asked RCUDA_GUARDED_BY(mutex);
    // By key, for keys with a question. The value is empty until the answer arrives.
    std::map<Key, std::optional<Answer>> answers RCUDA_GUARDED_BY(mutex);
    size_t threads RCUDA_GUARDED_BY(mutex) = 0;
  };

  static void work(State& state) {
    MutexLock lock(state.mutex);
    while (!state.asked.empty()) {
      auto [key, question] = std::move(state.asked.front());
      state.asked.pop_front();
      lock.unlock();
      Answer answer = question();
      question = nullptr;  // destroys its captures without the mutex
      lock.lock();
      const auto found = state.answers.find(key);
      if (found == state.answers.end()) continue;  // forget() was called
      found->second = std::move(answer);
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = ::write(state.event.get(), &one, sizeof one);
    }
    --state.threads;
  }

  std::shared_ptr<State> state_;  // shared with the threads
};

}  // namespace rcuda
