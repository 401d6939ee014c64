// A library to preload into a program: makes time() an hour fast. Other clocks are not changed.
#include <ctime>

#include <sys/time.h>

extern "C" __attribute__((visibility("default"))) std::time_t time(std::time_t* result) noexcept {
  timeval now{};
  ::gettimeofday(&now, nullptr);
  const std::time_t value = now.tv_sec + 3600;
  if (result != nullptr) *result = value;
  return value;
}
