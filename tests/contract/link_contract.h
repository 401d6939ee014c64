// The fixture of the transport contract suite: every test runs over every medium of the table, bare
// and behind a FaultLink, and asks traits for what holds there. RCUDA_TEST_MEDIA ("shm,tcp,verbs")
// chooses the media; what needs more than a socket is left out unless named.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "common/base/unique_fd.h"
#include "tests/support/fault_link.h"
#include "tests/support/link_pair.h"

namespace rcuda::test {

struct LinkCase {
  const Medium* medium = nullptr;
  bool faulty = false;   // Links are slow and late
  bool wrapped = false;  // since the suite makes them so
};
void PrintTo(const LinkCase& link_case, std::ostream* out);

std::vector<LinkCase> link_cases();
std::string link_case_name(const testing::TestParamInfo<LinkCase>& info);

// Long enough to never decide a test on a loaded machine; a test that waits for it has failed.
inline constexpr auto kPatience = std::chrono::seconds(100);
inline auto soon() { return std::chrono::steady_clock::now() + kPatience; }

// Sanitizers, emulation and faults are slow: scales the number of repetitions.
int rounds(int full, bool faulty);

inline uint64_t load(transport::Link& link, uint64_t offset) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(link.window().data() + offset))
      .load(std::memory_order_acquire);
}
Status put_word(transport::Link& link, uint64_t offset, uint64_t word,
                transport::Wake wake = transport::Wake::kYes);

// Fills or checks bytes that depend on a seed and their place.
void fill_pattern(std::span<std::byte> bytes, uint64_t seed);
testing::AssertionResult has_pattern(std::span<const std::byte> bytes, uint64_t seed);

// A memfd-backed block of memory, as pinned client memory is.
struct SharedBlock {
  explicit SharedBlock(size_t bytes);
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;

  int fd = -1;
  std::span<std::byte> bytes;
};

// This process has all the open files that it may have, for as long as this lives.
class DescriptorLimit {
 public:
  DescriptorLimit();
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

// Runs one transfer to its end.
Status write_and_wait(transport::Link& link, transport::RegionId region, uint64_t offset,
                      std::span<const std::byte> from);
Status read_and_wait(transport::Link& link, transport::RegionId region, uint64_t offset,
                     std::span<std::byte> into);

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
