// Exported allocations between two workers, both in this process, which runs out of descriptors.
#include "server/executor/memory/shared_allocations.h"

#include <cerrno>
#include <ctime>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rcuda::server {
namespace {

UniqueFd open_null() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// While this object lives, the process can open `left` more descriptors.
class FewDescriptors {
 public:
  static constexpr const char* kNotHere = "UBSan asks with a pipe whether memory can be read";
#if defined(__SANITIZE_ADDRESS__)
  static constexpr bool kAreEnough = false;
#else
  static constexpr bool kAreEnough = true;
#endif

  explicit FewDescriptors(size_t left) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = 256;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (UniqueFd taken = open_null()) taken_.push_back(std::move(taken));
    EXPECT_EQ(errno, EMFILE);
    EXPECT_GE(taken_.size(), left);
    taken_.resize(taken_.size() - left);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class SharedAllocationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = exporter_.add(open_null());
    ASSERT_TRUE(made) << made.status().message();
    token_ = *made;
  }
  void expect_import() {
    const auto imported = importer_.import_descriptor(token_);
    ASSERT_TRUE(imported) << imported.status().message();
    struct stat one {
    }, other{};
    ASSERT_EQ(::fstat(imported->get(), &one), 0);
    ASSERT_EQ(::fstat(open_null().get(), &other), 0);
    EXPECT_EQ(one.st_rdev, other.st_rdev);
  }

  SharedAllocations exporter_, importer_;
  wire::AllocationToken token_{};
};

// While a caller waits in vain, the exporter must not use the CPU. There is no earlier caller whose
// socket the exporter could close meanwhile.
TEST_F(SharedAllocationsTest, WithoutADescriptorForTheCallerItRests) {
  if (!FewDescriptors::kAreEnough) GTEST_SKIP() << FewDescriptors::kNotHere;
  {
    const FewDescriptors few(1);  // the importer's socket
    const double before = cpu_seconds();
    EXPECT_FALSE(importer_.import_descriptor(token_));
    EXPECT_LT(cpu_seconds() - before, 0.2);
  }
  expect_import();
}

TEST_F(SharedAllocationsTest, AnotherWorkerGetsTheDescriptor) { expect_import(); }

TEST_F(SharedAllocationsTest, PassingAnAllocationOnTakesNoDescriptorButTheCallers) {
  if (!FewDescriptors::kAreEnough) GTEST_SKIP() << FewDescriptors::kNotHere;
  for (int i = 0; i < 100; ++i) {
    const FewDescriptors few(3);  // the two sockets and the descriptor that arrives
    const auto imported = importer_.import_descriptor(token_);
    ASSERT_TRUE(imported) << i << ": " << imported.status().message();
  }
}

TEST_F(SharedAllocationsTest, WhatIsNotExportedAnyMoreIsNotFound) {
  EXPECT_TRUE(exporter_.remove(token_));
  EXPECT_EQ(importer_.import_descriptor(token_).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace rcuda::server
