#include "client/copy/locate.h"

#include <gtest/gtest.h>

#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class LocateTest : public TwoPuppetsTest {
 protected:
  CUresult at(uint64_t address, size_t bytes, Side side = Side::kAny) {
    return locate(address, bytes, side, &found_.emplace());
  }
  CUresult at(const void* address, size_t bytes, Side side = Side::kAny) {
    return at(reinterpret_cast<uintptr_t>(address), bytes, side);
  }

  std::optional<Location> found_;
};

constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;

TEST_F(LocateTest, WhatNobodyKnowsIsPageable) {
  char host[16];
  ASSERT_EQ(at(host, sizeof host), CUDA_SUCCESS);
  EXPECT_EQ(found_->home, Home::kPageable);
  EXPECT_FALSE(found_->owner);
  EXPECT_EQ(at(host, sizeof host, Side::kHost), CUDA_SUCCESS);
  EXPECT_EQ(at(host, sizeof host, Side::kDevice), kInvalid);
}

TEST_F(LocateTest, DeviceMemoryIsItsWorkers) {
  const CUdeviceptr one = allocate(first_session(), 0x10000, 256);
  const CUdeviceptr two = allocate(second_session(), 0x10000, 256);
  ASSERT_EQ(at(one + 255, 1), CUDA_SUCCESS);
  EXPECT_EQ(found_->home, Home::kDevice);
  EXPECT_EQ(found_->owner->session, &first_session());
  ASSERT_EQ(at(two, 256, Side::kDevice), CUDA_SUCCESS);
  EXPECT_EQ(found_->owner->session, &second_session());
  EXPECT_EQ(found_->owner->device, 1u);
  EXPECT_EQ(at(two, 256, Side::kHost), kInvalid);
}

TEST_F(LocateTest, NothingRunsOutOfItsAllocation) {
  const CUdeviceptr address = allocate(first_session(), 0x20000, 256);
  EXPECT_EQ(at(address, 257), kInvalid);
  EXPECT_EQ(at(address + 255, 2), kInvalid);
  EXPECT_EQ(at(address, ~0ull - address), kInvalid);
  EXPECT_EQ(at(address, ~0ull), kInvalid);  // wraps around
  EXPECT_EQ(at(uint64_t{0}, 1), kInvalid);
}

TEST_F(LocateTest, AddressesOfAWindowThatAreNoAllocationsAreRefused) {
  EXPECT_EQ(at(first_session().welcome().windows.front().base + 0x5'0000'0000, 1), kInvalid);
  const CUdeviceptr freed = allocate(second_session(), 0x30000, 64);
  ASSERT_TRUE(process().memory().remove(freed));
  EXPECT_EQ(at(freed, 1), kInvalid);
}

TEST_F(LocateTest, PageLockedMemoryIsEverywhere) {
  alignas(16) static char host[64];
  Allocation pinned;
  pinned.base = reinterpret_cast<uintptr_t>(host);
  pinned.bytes = sizeof host;
  pinned.placement = Placement::kRegistered;
  pinned.reachable = true;
  ASSERT_TRUE(process().memory().add(pinned));
  EXPECT_EQ(at(host + 8, 8), CUDA_SUCCESS);
  EXPECT_EQ(found_->home, Home::kExposed);
  EXPECT_EQ(at(host, 64, Side::kHost), CUDA_SUCCESS);
  EXPECT_EQ(at(host, 64, Side::kDevice), CUDA_SUCCESS);  // kernels may use the pointer too
  EXPECT_EQ(at(host, 65), kInvalid);
  process().memory().remove(pinned.base);
}

TEST_F(LocateTest, NeighbouringMappingsOfOneReservationAreOnePiece) {
  const CUdeviceptr base = first_session().welcome().windows.front().base + 0x40'0000;
  for (uint64_t piece = 0; piece < 2; ++piece) {
    Allocation mapped;
    mapped.base = base + piece * 0x20'0000;
    mapped.bytes = 0x20'0000;
    mapped.placement = Placement::kMapped;
    mapped.session = &first_session();
    ASSERT_TRUE(process().memory().add(mapped));
  }
  EXPECT_EQ(at(base + 0x1f'ffff, 2), CUDA_SUCCESS);
  process().memory().remove(base);
  process().memory().remove(base + 0x20'0000);
}

TEST_F(LocateTest, ACopyInAnotherServersStreamWaitsForItFirst) {
  Context& second = *process().device(1)->primary;
  push_context(&second);
  (void)sent_to_second(wire::Custom::kSignal);
  second.timeline->count();  // as if work were queued in its default stream
  const Route owner{&first_session(), wire::primary_context_id(0), 0};
  const auto stream = stream_at(owner, nullptr);
  ASSERT_EQ(stream.result(), CUDA_SUCCESS);
  pop_context();
  EXPECT_EQ(stream->route.session, &first_session());
  EXPECT_EQ(stream->route.id, 0u);
  EXPECT_EQ(sent_to_second(wire::Custom::kSignal).size(), 1u);
}

}  // namespace
}  // namespace rcuda::client
