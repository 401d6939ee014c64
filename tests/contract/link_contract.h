// The fixture of the transport contract suite. Every test runs over every medium of the table, bare
// and in a FaultLink; the traits decide what it expects. RCUDA_TEST_MEDIA ("shm,tcp,verbs") chooses
// the media. Media that need more than a socket run only if it names them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "common/base/unique_fd.h"
#include "tests/support/fault_link.h"
#include "tests/support/link_pair.h"

namespace rcuda::test {

struct LinkCase {
  const Medium* medium = nullptr;
  bool faulty = false;   // the Links are slow and late
  bool wrapped = false;  // if faulty: by the suite's FaultLinks (true) or by the medium itself
};
void PrintTo(const LinkCase& link_case, std::ostream* out);

std::vector<LinkCase> link_cases();
std::string link_case_name(const testing::TestParamInfo<LinkCase>& info);

// A working test never reaches this limit, even on a loaded machine; a test that reaches it has
// failed.
inline constexpr auto kPatience = std::chrono::seconds(100);
inline auto soon() { return std::chrono::steady_clock::now() + kPatience; }

// Scales a number of repetitions: sanitizers, emulation and faults are slow.
int rounds(int full, bool faulty);

inline uint64_t load(transport::Link& link, uint64_t offset) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(link.window().data() + offset))
      .load(std::memory_order_acquire);
}
Status put_word(transport::Link& link, uint64_t offset, uint64_t word,
                transport::Wake wake = transport::Wake::kYes);

// Fills or checks bytes that depend on a seed and their position.
void fill_pattern(std::span<std::byte> bytes, uint64_t seed);
testing::AssertionResult has_pattern(std::span<const std::byte> bytes, uint64_t seed);

// A memfd-backed block of memory, like page-locked client memory.
struct SharedBlock {
  explicit SharedBlock(size_t bytes);
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;

  int fd = -1;
  std::span<std::byte> bytes;
};

// While this object lives, the process cannot open another descriptor.
class DescriptorLimit {
 public:
  DescriptorLimit();
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

// Runs one transfer and blocks until it has ended.
Status write_and_wait(transport::Link& link, transport::RegionId region, uint64_t offset,
                      std::span<const std::byte> from);
Status read_and_wait(transport::Link& link, transport::RegionId region, uint64_t offset,
                     std::span<std::byte> into);

// Counts transfers in flight.
class Pending {
 public:
  ~Pending() { (void)wait(); }  // also after a failed assertion
  transport::TransferDone begin() {
    std::lock_guard lock(mutex_);
    ++count_;
    return [this](const Status& status) {
      std::lock_guard lock(mutex_);
      if (!status.ok()) last_error_ = status;
      --count_;
      changed_.notify_all();
    };
  }
  bool wait(int most = 0) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return count_ <= most; });
  }
  Status last_error() {
    std::lock_guard lock(mutex_);
    return last_error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
  Status last_error_;
};

class LinkContract : public testing::TestWithParam<LinkCase> {
 protected:
  void connect(const transport::LinkOptions& client = {},
               const transport::LinkOptions& server = {});
  bool faulty() const { return GetParam().faulty; }
  bool wrapped() const { return GetParam().wrapped; }
  const Medium& medium() const { return *GetParam().medium; }
  const transport::MediumTraits& traits() const { return medium().traits; }
  transport::Link& client() { return *client_; }
  transport::Link& server() { return *server_; }

  std::unique_ptr<transport::Link> client_;
  std::unique_ptr<transport::Link> server_;
  std::function<void()> cut_;
};

}  // namespace rcuda::test
