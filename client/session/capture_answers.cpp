#include "client/session/capture_answers.h"

#include <atomic>

#include "common/base/mutex.h"

namespace rcuda::client {
namespace {

Mutex mutex;  // guards writes to `captures` and `spoiled`
std::atomic<int> captures{0};
std::atomic<bool> spoiled{false};
thread_local int answers = 0;
thread_local int all_answers = 0;

}  // namespace

void set_captures(int count) {
  MutexLock lock(mutex);
  captures.store(count, std::memory_order_relaxed);
  if (count == 0) spoiled.store(false, std::memory_order_relaxed);
}

bool any_capture() { return captures.load(std::memory_order_relaxed) > 0; }

CaptureAnswers::CaptureAnswers(bool always) : always_(always) {
  ++(always_ ? all_answers : answers);
}
CaptureAnswers::~CaptureAnswers() { --(always_ ? all_answers : answers); }

bool awaits_answers() {
  if (all_answers > 0) return true;
  return any_capture() && (answers > 0 || spoiled.load(std::memory_order_relaxed));
}

void note_refusal(CUresult result) {
  if (result < CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result > CUDA_ERROR_CAPTURED_EVENT) return;
  MutexLock lock(mutex);
  if (any_capture()) spoiled.store(true, std::memory_order_relaxed);
}

}  // namespace rcuda::client
