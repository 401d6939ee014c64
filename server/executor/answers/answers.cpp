#include "server/executor/answers/answers.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/cuda/errors.h"

namespace rcuda::server {

void Answers::signal(WordSignal signal, CUresult result, transport::Wake wake) {
  if (signal.sequence == 0) return;
  if (cuda::is_sticky(result)) latch(result);
  const uint64_t value = wire::CompletionWord::make(signal.sequence, static_cast<uint32_t>(result));
  MutexLock lock(words_mutex_);
  if (signal.sequence < words_[signal.word]) return;
  words_[signal.word] = signal.sequence;
  (void)link_.put(wire::ClientWindow::kCompletionWords + 8ull * signal.word,
                  std::as_bytes(std::span(&value, 1)), {}, wake);
}

bool Answers::has_signalled(WordSignal signal) {
  MutexLock lock(words_mutex_);
  return words_[signal.word] >= signal.sequence;
}

void Answers::end_wait(WordSignal signal, CUresult result, transport::Wake wake) {
  if (signal.sequence != 0 && before_end_) before_end_(signal);
  this->signal(signal, result, wake);
}

void Answers::reply(const ReplyTarget& target, CUresult result, std::span<const std::byte> body) {
  if (cuda::is_sticky(result)) latch(result);
  if (body.size() > target.capacity()) {
    RCUDA_DEBUG("a reply of %zu bytes does not fit its slot of %zu bytes: sent without its body",
                body.size(), target.capacity());
    body = {};
    if (result == CUDA_SUCCESS) result = CUDA_ERROR_INVALID_VALUE;
  }
  const wire::ReplyHeader header{static_cast<uint32_t>(result), 0};
  const auto bytes = static_cast<uint32_t>(sizeof header + body.size());
  const uint32_t padded = (bytes + 7) & ~7u;
  const uint64_t stamp = wire::ReplyStamp::make(target.call, bytes);
  constexpr std::byte kZeros[8] = {};
  const transport::Bytes pieces[] = {std::as_bytes(std::span(&header, 1)), body,
                                     transport::Bytes(kZeros, padded - bytes),
                                     std::as_bytes(std::span(&stamp, 1))};
  (void)link_.put(uint64_t{target.slot} + target.slot_bytes - sizeof stamp - padded, pieces,
                  target.wake);
}

uint64_t Answers::latch(CUresult error) {
  MutexLock lock(mutex_);
  if (sticky_ != CUDA_SUCCESS) return 0;
  if (cuda::is_sticky(error)) {
    sticky_ = error;
    RCUDA_INFO(
        "CUDA error %d makes the session's contexts unusable: all later calls of the session fail",
        static_cast<int>(error));
  }
  return publish(error);
}

void Answers::withdraw(uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(errors_, number, wire::CompletionWord::sequence);
  if (number == 0 || found == errors_.end()) return;
  const bool is_last = *found == errors_.back();
  errors_.erase(found);
  if (is_last) put_error_word(errors_.empty() ? 0 : errors_.back());
}

void Answers::forget_sticky() {
  MutexLock lock(mutex_);
  if (sticky_ != CUDA_SUCCESS) (void)publish(CUDA_SUCCESS);
  sticky_ = CUDA_SUCCESS;
}

void Answers::show_park_word(uint64_t word) {
  (void)link_.put(wire::ClientWindow::kParkWord, std::as_bytes(std::span(&word, 1)), {},
                  transport::Wake::kNow);
}

uint64_t Answers::publish(CUresult error) {
  const uint64_t value = wire::CompletionWord::make(++last_error_, static_cast<uint32_t>(error));
  errors_.push_back(value);
  if (errors_.size() > kMostKept) errors_.pop_front();
  put_error_word(value);
  return last_error_;
}

void Answers::put_error_word(uint64_t value) {
  (void)link_.put(wire::ClientWindow::kErrorWord, std::as_bytes(std::span(&value, 1)), {},
                  transport::Wake::kNo);
}

}  // namespace rcuda::server
