#include "common/transport/arrivals.h"

#include <iterator>
#include <utility>

namespace rcuda::transport {
namespace {

constexpr char kOver[] = "the connection ended before the peer's write arrived";

}  // namespace

template <typename Matches>
std::vector<Arrivals::Ended> Arrivals::take_locked(const Matches& matches) {
  std::vector<Ended> taken;
  for (auto at = writes_.begin(); at != writes_.end();) {
    Write& write = at->second;
    const bool takes = write.expected != 0 && matches(write);
    if (takes) taken.push_back(std::move(write.ended));
    at = takes ? writes_.erase(at) : std::next(at);
  }
  return taken;
}

void Arrivals::arrived(uint32_t immediate, uint64_t bytes) {
  std::vector<Ended> lost;
  Ended ended;
  Status why;
  {
    MutexLock lock(mutex_);
    if (!over_.ok()) return;
    auto found = writes_.find(immediate);
    if (found == writes_.end() && early_ == kMostEarly) {
      why = over_ =
          Status(Code::kProtocol, "the peer sent more than " + std::to_string(kMostEarly) +
                                      " writes before the messages that announce them; "
                                      "later copies over this connection fail");
      lost = take_locked([](const Write&) { return true; });
    } else {
      if (found == writes_.end()) {
        found = writes_.try_emplace(immediate).first;
        ++early_;
      }
      found->second.arrived += bytes;
      if (!found->second.is_whole()) return;
      ended = std::move(found->second.ended);
      writes_.erase(found);
    }
  }
  if (ended) ended({});
  for (const Ended& each : lost) each(why);
}

void Arrivals::expect(uint32_t immediate, RegionId region, uint64_t bytes, Ended ended) {
  Status outcome;
  {
    MutexLock lock(mutex_);
    Write& write = writes_[immediate];
    if (write.expected != 0) {
      outcome = Status(Code::kProtocol, "the peer announced the write with immediate " +
                                            std::to_string(immediate) + " twice");
    } else {
      if (write.arrived != 0) --early_;
      write.expected = bytes;
      const bool is_whole = write.is_whole();
      if (!is_whole && over_.ok()) {
        write.region = region;
        write.ended = std::move(ended);
        return;
      }
      if (!is_whole) outcome = over_;
      writes_.erase(immediate);
    }
  }
  ended(outcome);
}

size_t Arrivals::expected() {
  MutexLock lock(mutex_);
  return writes_.size() - early_;
}

void Arrivals::withdraw(RegionId region) {
  std::vector<Ended> lost;
  {
    MutexLock lock(mutex_);
    lost = take_locked([region](const Write& write) { return write.region == region; });
  }
  for (const Ended& each : lost) {
    each({Code::kNotFound, "region " + std::to_string(static_cast<uint64_t>(region)) +
                               " was withdrawn before the peer's write into it arrived"});
  }
}

void Arrivals::end() {
  std::vector<Ended> lost;
  {
    MutexLock lock(mutex_);
    if (over_.ok()) over_ = Status(Code::kUnavailable, kOver);
    lost = take_locked([](const Write&) { return true; });
  }
  for (const Ended& each : lost) each({Code::kUnavailable, kOver});
}

}  // namespace rcuda::transport
