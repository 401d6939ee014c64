#include "client/code/parameters.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

// (char, <3 bytes of padding>, int, double)
struct ThreeParameters : FunctionInfo {
  ThreeParameters() {
    parameters = {{0, 1}, {4, 4}, {8, 8}};
    parameter_bytes = 16;
  }
};

template <typename T>
T at(const std::vector<std::byte>& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

TEST(ParametersTest, ArePackedWhereTheKernelWantsThem) {
  const ThreeParameters info;
  char letter = 'r';
  int number = -7;
  double ratio = 0.5;
  void* parameters[] = {&letter, &number, &ratio};
  size_t bytes = 0;
  ASSERT_EQ(parameter_bytes(info, parameters, nullptr, &bytes), CUDA_SUCCESS);
  ASSERT_EQ(bytes, 16u);
  std::vector<std::byte> packed(24, std::byte{0xee});  // padded to 8, plus a guard
  ASSERT_EQ(pack_parameters(info, parameters, nullptr, packed), CUDA_SUCCESS);
  EXPECT_EQ(at<char>(packed, 0), 'r');
  EXPECT_EQ(at<char>(packed, 1), 0);  // gaps are zeroed, so that no bytes of this process leak
  EXPECT_EQ(at<int>(packed, 4), -7);
  EXPECT_EQ(at<double>(packed, 8), 0.5);
  EXPECT_EQ(at<uint64_t>(packed, 16), 0u);
}

TEST(ParametersTest, AMissingOneIsRefused) {
  const ThreeParameters info;
  size_t bytes = 0;
  EXPECT_EQ(parameter_bytes(info, nullptr, nullptr, &bytes), CUDA_ERROR_INVALID_VALUE);
  int number = 0;
  void* parameters[] = {&number, nullptr, &number};
  std::vector<std::byte> packed(16);
  EXPECT_EQ(pack_parameters(info, parameters, nullptr, packed), CUDA_ERROR_INVALID_VALUE);
}

TEST(ParametersTest, ABufferIsTakenAsItIs) {
  const ThreeParameters info;
  uint64_t buffer[] = {1, 2};
  size_t buffer_bytes = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &buffer_bytes, CU_LAUNCH_PARAM_BUFFER_POINTER,
                   buffer, CU_LAUNCH_PARAM_END};
  size_t bytes = 0;
  ASSERT_EQ(parameter_bytes(info, nullptr, extra, &bytes), CUDA_SUCCESS);
  ASSERT_EQ(bytes, sizeof buffer);
  std::vector<std::byte> packed(bytes);
  ASSERT_EQ(pack_parameters(info, nullptr, extra, packed), CUDA_SUCCESS);
  EXPECT_EQ(at<uint64_t>(packed, 8), 2u);
  // Both forms at once.
  void* parameters[] = {buffer};
  EXPECT_EQ(parameter_bytes(info, parameters, extra, &bytes), CUDA_ERROR_INVALID_VALUE);
}

TEST(ParametersTest, WhatABufferLeavesOutIsZero) {
  const ThreeParameters info;
  uint64_t buffer[] = {1, ~uint64_t{0}};
  size_t buffer_bytes = 8;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &buffer_bytes, CU_LAUNCH_PARAM_END};
  size_t bytes = 0;
  ASSERT_EQ(parameter_bytes(info, nullptr, extra, &bytes), CUDA_SUCCESS);
  ASSERT_EQ(bytes, info.parameter_bytes);
  std::vector<std::byte> packed(bytes);
  ASSERT_EQ(pack_parameters(info, nullptr, extra, packed), CUDA_SUCCESS);
  EXPECT_EQ(at<uint64_t>(packed, 0), 1u);
  EXPECT_EQ(at<uint64_t>(packed, 8), 0u);
}

TEST(ParametersTest, RefusesAMalformedExtra) {
  const ThreeParameters info;
  size_t bytes = 0;
  uint64_t buffer[] = {1};
  size_t buffer_bytes = sizeof buffer, too_many = wire::kMaxParameterBytes + 1;
  void* no_size[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_END};
  void* no_pointer[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &buffer_bytes, CU_LAUNCH_PARAM_END};
  void* unknown[] = {reinterpret_cast<void*>(77), buffer, CU_LAUNCH_PARAM_END};
  void* large[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &too_many,
                   CU_LAUNCH_PARAM_END};
  for (void** extra : {no_size, no_pointer, unknown, large}) {
    EXPECT_EQ(parameter_bytes(info, nullptr, extra, &bytes), CUDA_ERROR_INVALID_VALUE);
  }
}

TEST(ParametersTest, AKernelWithoutNeedsNone) {
  const FunctionInfo info;
  size_t bytes = 1;
  EXPECT_EQ(parameter_bytes(info, nullptr, nullptr, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(pack_parameters(info, nullptr, nullptr, {}), CUDA_SUCCESS);
}

}  // namespace
}  // namespace rcuda::client
