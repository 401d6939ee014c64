#include "client/process/advice_book.h"

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

class AdviceBookTest : public ::testing::Test {
 protected:
  Allocation allocate(uint64_t base) {
    Allocation made;
    made.base = base;
    made.bytes = 0x1000;
    EXPECT_TRUE(memory_.add(made));
    return *memory_.find(base);
  }
  bool is_read_mostly(const Allocation& allocation) {
    int answer = 0;
    EXPECT_EQ(book_.of(allocation).get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, &answer, sizeof answer),
              CUDA_SUCCESS);
    return answer != 0;
  }
  void advise(const Allocation& allocation) {
    EXPECT_EQ(book_.of(allocation).take(CU_MEM_ADVISE_SET_READ_MOSTLY, {}), CUDA_SUCCESS);
  }

  Registry memory_;
  AdviceBook book_{memory_};
};

TEST_F(AdviceBookTest, NewMemoryAtAnOldAddressHasNoAdvice) {
  const Allocation first = allocate(0x1000);
  advise(first);
  EXPECT_TRUE(is_read_mostly(first));
  ASSERT_TRUE(memory_.remove(0x1000));
  const Allocation second = allocate(0x1000);
  EXPECT_FALSE(is_read_mostly(second));
  EXPECT_EQ(book_.size(), 1u);
}

TEST_F(AdviceBookTest, ForgetsFreedMemory) {
  advise(allocate(0x1000));
  for (uint64_t i = 2; i < 1000; ++i) {
    advise(allocate(i * 0x1000));
    ASSERT_TRUE(memory_.remove(i * 0x1000));
    EXPECT_LE(book_.size(), 2u);
  }
  EXPECT_TRUE(is_read_mostly(*memory_.find(0x1000)));
}

TEST_F(AdviceBookTest, KeepsThatOfLiveMemory) {
  for (uint64_t i = 1; i < 100; ++i) advise(allocate(i * 0x1000));
  for (uint64_t i = 1; i < 100; ++i) EXPECT_TRUE(is_read_mostly(*memory_.find(i * 0x1000)));
  EXPECT_EQ(book_.size(), 99u);
}

}  // namespace
}  // namespace rcuda::client
