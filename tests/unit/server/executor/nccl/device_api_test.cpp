// The requirements of a device communicator that a worker reads, and structs of unknown size.
#include "server/executor/nccl/device_api.h"

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

constexpr uint32_t kVersionedBytes = 64, kVersionedLists = sizeof(nccl::DeviceRequirements);

template <typename T>
void append(std::vector<std::byte>* to, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to->insert(to->end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> tail_of(const nccl::DeviceTail& head, size_t size_in_struct) {
  std::vector<std::byte> tail;
  append(&tail, head);
  std::vector<std::byte> requirements(head.requirement_bytes);
  if (head.lists_at != 0) {
    const nccl::DeviceRequirements versioned{size_in_struct, 0, 0};
    std::memcpy(requirements.data(), &versioned, sizeof versioned);
  }
  tail.insert(tail.end(), requirements.begin(), requirements.end());
  tail.resize((tail.size() + 7) & ~size_t{7});
  for (uint32_t i = 0; i < head.resources; ++i) append(&tail, nccl::DeviceResource{});
  for (uint32_t i = 0; i < head.teams; ++i) append(&tail, nccl::DeviceTeam{});
  return tail;
}

TEST(DeviceRequirementsTest, BothLayoutsAreRead) {
  const auto old = DeviceCommunicator::read(tail_of({nccl::kRequirementsOf228, 0, 2, 1}, 0));
  ASSERT_NE(old, nullptr);
  EXPECT_FALSE(old->is_versioned());
  const auto versioned =
      DeviceCommunicator::read(tail_of({kVersionedBytes, kVersionedLists, 0, 0}, kVersionedBytes));
  ASSERT_NE(versioned, nullptr);
  EXPECT_TRUE(versioned->is_versioned());
}

// NCCL reads as many bytes as the struct says.
TEST(DeviceRequirementsTest, OnlyWholeStructsAreRead) {
  EXPECT_EQ(DeviceCommunicator::read(tail_of({nccl::kRequirementsOf228 - 8, 0, 0, 0}, 0)), nullptr);
  EXPECT_EQ(DeviceCommunicator::read(tail_of({16, 0, 0, 0}, 0)), nullptr);
  for (const size_t size :
       {size_t{0}, size_t{kVersionedBytes - 1}, size_t{kVersionedBytes + 1}, size_t{1} << 40}) {
    EXPECT_EQ(DeviceCommunicator::read(tail_of({kVersionedBytes, kVersionedLists, 0, 0}, size)),
              nullptr)
        << size;
  }
  EXPECT_EQ(DeviceCommunicator::read(tail_of({kVersionedLists, kVersionedLists, 0, 0}, 16)),
            nullptr);
  EXPECT_EQ(DeviceCommunicator::read(tail_of({kVersionedBytes, 8, 0, 0}, kVersionedBytes)),
            nullptr);
}

TEST(DeviceRequirementsTest, ATailThatIsCutIsNotRead) {
  const std::vector<std::byte> whole = tail_of({nccl::kRequirementsOf228, 0, 2, 2}, 0);
  ASSERT_NE(DeviceCommunicator::read(whole), nullptr);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_EQ(DeviceCommunicator::read(std::span(whole).first(bytes)), nullptr) << bytes;
  }
}

// The pattern differs from the values that a struct most often ends with.
TEST(FilledStructTest, ALastByteOfZeroOrOnesCounts) {
  for (const int value : {0x00, 0xff}) {
    for (const size_t bytes : {1u, 7u, 64u, 255u, 1000u}) {
      FilledStruct filled;
      std::memset(filled.data(), value, bytes);
      EXPECT_EQ(filled.written().size(), bytes) << value;
    }
  }
}

}  // namespace
}  // namespace rcuda::server
