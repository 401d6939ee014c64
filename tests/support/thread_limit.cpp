#include "tests/support/thread_limit.h"

#include <cassert>
#include <mutex>
#include <system_error>
#include <thread>

// std::thread::_M_start_thread(std::unique_ptr<_State>, void (*)()). Its first parameter is passed
// by reference, like every object with a destructor.
#define RCUDA_START_THREAD \
  _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE
#define RCUDA_JOIN(a, b) a##b
#define RCUDA_NAMED(prefix, name) RCUDA_JOIN(prefix, name)

namespace rcuda::test {
namespace {

struct Limit {
  std::mutex mutex;  // guards the members below
  bool holds = false;
  bool of_process = false;
  std::thread::id thread;
  int more = 0;
  int refused = 0;
};

// Never destroyed, because threads may start until the process ends.
Limit& limit() {
  static auto* instance = new Limit;
  return *instance;
}

bool may_start() {
  Limit& now = limit();
  std::lock_guard lock(now.mutex);
  if (!now.holds || (!now.of_process && now.thread != std::this_thread::get_id())) return true;
  if (now.more > 0) {
    --now.more;
    return true;
  }
  ++now.refused;
  return false;
}

}  // namespace

ThreadLimit::ThreadLimit(int more, Of whose) {
  std::lock_guard lock(limit().mutex);
  assert(!limit().holds);
  limit().holds = true;
  limit().of_process = whose == Of::kProcess;
  limit().thread = std::this_thread::get_id();
  limit().more = more;
  limit().refused = 0;
}

ThreadLimit::~ThreadLimit() {
  std::lock_guard lock(limit().mutex);
  limit().holds = false;
}

int ThreadLimit::refused() const {
  std::lock_guard lock(limit().mutex);
  return limit().refused;
}

}  // namespace rcuda::test

extern "C" {

void RCUDA_NAMED(__real_, RCUDA_START_THREAD)(std::thread* thread, void* state, void (*depend)());

void RCUDA_NAMED(__wrap_, RCUDA_START_THREAD)(std::thread* thread, void* state, void (*depend)()) {
  if (!rcuda::test::may_start()) {
    throw std::system_error(EAGAIN, std::generic_category());
  }
  RCUDA_NAMED(__real_, RCUDA_START_THREAD)(thread, state, depend);
}

}  // extern "C"
