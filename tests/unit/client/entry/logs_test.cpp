#include <filesystem>
#include <string>

#include <cuda.h>
#include <gtest/gtest.h>

namespace {

void CUDA_CB nobody(void*, CUlogLevel, char*, size_t) {}

TEST(LogsTest, CallbacksComeAndGo) {
  CUlogsCallbackHandle one = nullptr, two = nullptr;
  ASSERT_EQ(cuLogsRegisterCallback(&nobody, nullptr, &one), CUDA_SUCCESS);
  ASSERT_EQ(cuLogsRegisterCallback(&nobody, nullptr, &two), CUDA_SUCCESS);
  EXPECT_NE(one, nullptr);
  EXPECT_NE(one, two);
  EXPECT_EQ(cuLogsUnregisterCallback(one), CUDA_SUCCESS);
  EXPECT_EQ(cuLogsUnregisterCallback(one), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsUnregisterCallback(two), CUDA_SUCCESS);
  EXPECT_EQ(cuLogsRegisterCallback(&nobody, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuLogsRegisterCallback(nullptr, nullptr, &one), CUDA_ERROR_INVALID_VALUE);
}

TEST(LogsTest, TheLogIsEmpty) {
  CUlogIterator iterator = 7;
  ASSERT_EQ(cuLogsCurrent(&iterator, 0), CUDA_SUCCESS);
  char text[8] = "before";
  size_t bytes = sizeof text;
  EXPECT_EQ(cuLogsDumpToMemory(&iterator, text, &bytes, 0), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 0u);
  EXPECT_STREQ(text, "");
  const std::string path = testing::TempDir() + "logs_test.txt";
  EXPECT_EQ(cuLogsDumpToFile(nullptr, path.c_str(), 0), CUDA_SUCCESS);
  EXPECT_EQ(std::filesystem::file_size(path), 0u);
  std::filesystem::remove(path);
}

TEST(LogsTest, RefusesFlagsAndNulls) {
  CUlogIterator iterator = 0;
  char text[8];
  size_t bytes = sizeof text;
  EXPECT_EQ(cuLogsCurrent(&iterator, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsCurrent(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsDumpToMemory(&iterator, text, &bytes, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsDumpToMemory(&iterator, nullptr, &bytes, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsDumpToFile(&iterator, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
