#include "softgpu/driver/condition.h"

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace softgpu::driver {
namespace {

struct Conditions {
  std::shared_mutex mutex;
  std::unordered_map<CUgraphConditionalHandle, std::weak_ptr<Condition>> by_handle;
  CUgraphConditionalHandle next = 1;
};

Conditions& conditions() {
  static auto* all = new Conditions;
  return *all;
}

}  // namespace

std::shared_ptr<Condition> Condition::make(unsigned initial, bool reset) {
  Conditions& all = conditions();
  std::unique_lock lock(all.mutex);
  const std::shared_ptr<Condition> made(new Condition(all.next++, initial, reset));
  all.by_handle[made->handle_] = made;
  return made;
}

std::shared_ptr<Condition> Condition::find(CUgraphConditionalHandle handle) {
  Conditions& all = conditions();
  std::shared_lock lock(all.mutex);
  const auto found = all.by_handle.find(handle);
  return found == all.by_handle.end() ? nullptr : found->second.lock();
}

Condition::Condition(CUgraphConditionalHandle handle, unsigned initial, bool reset)
    : handle_(handle), initial_(initial), reset_(reset), value_(initial) {}

Condition::~Condition() {
  Conditions& all = conditions();
  std::unique_lock lock(all.mutex);
  all.by_handle.erase(handle_);
}

}  // namespace softgpu::driver
