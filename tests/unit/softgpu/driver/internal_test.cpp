// Parts of the driver that no entry point exposes: arenas, configuration, the link model, JIT logs,
// and which objects keep others alive.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "softgpu/driver/arena.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/jit_options.h"
#include "softgpu/driver/link.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {
namespace {

TEST(FreeRanges, TakesFirstFitAndMerges) {
  FreeRanges ranges(1000);
  EXPECT_EQ(ranges.take(100, 1), 0u);
  EXPECT_EQ(ranges.take(100, 64), 128u);
  EXPECT_EQ(ranges.take(28, 1), 100u);
  EXPECT_EQ(ranges.take(773, 1), std::nullopt);
  EXPECT_EQ(ranges.take(772, 1), 228u);
  EXPECT_EQ(ranges.take(1, 1), std::nullopt);
  ranges.give_back(128, 100);
  ranges.give_back(0, 100);
  ranges.give_back(228, 772);
  EXPECT_FALSE(ranges.whole(1000));
  ranges.give_back(100, 28);
  EXPECT_TRUE(ranges.whole(1000));
}

TEST(Arena, BlocksKeepTheirContents) {
  Arena arena("test");
  std::mt19937 random(5);
  struct Held {
    Arena::Block block;
    uint8_t value;
  };
  std::vector<Held> held;
  for (int i = 0; i < 500; ++i) {
    if (!held.empty() && random() % 3 == 0) {
      std::swap(held[random() % held.size()], held.back());
      const auto* bytes = reinterpret_cast<const uint8_t*>(held.back().block.address);
      for (size_t at = 0; at < held.back().block.bytes; at += 501) {
        ASSERT_EQ(bytes[at], held.back().value);
      }
      arena.release(held.back().block);
      held.pop_back();
      continue;
    }
    std::optional<Arena::Block> block = arena.allocate(random() % (1 << (random() % 22)) + 1);
    ASSERT_TRUE(block);
    const auto value = static_cast<uint8_t>(random());
    std::memset(reinterpret_cast<void*>(block->address), value, block->bytes);
    held.push_back({*block, value});
  }
  for (const Held& h : held) arena.release(h.block);
}

TEST(Arena, SaysWhenAddressesRunOut) {
  Arena arena("test");
  EXPECT_EQ(arena.allocate(kArenaFileBytes + 1), std::nullopt);
  EXPECT_TRUE(arena.allocate(4096));
}

class ConfigurationTest : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name :
         {"SOFTGPU_DEVICES", "SOFTGPU_MEMORY", "SOFTGPU_PCIE_GBPS", "SOFTGPU_PCIE_LATENCY_US",
          "SOFTGPU_PEER_GBPS", "SOFTGPU_CONNECTIONS", "SOFTGPU_COPY_LOG", "SOFTGPU_NO_ROOM",
          "SOFTGPU_SHARED_MEMORY", "SOFTGPU_INIT_MS", "SOFTGPU_CONTEXT_MS",
          "SOFTGPU_CONTEXT_END_MS", "SOFTGPU_THREADS", "SOFTGPU_NVLINKS", "SOFTGPU_NVLINK_END",
          "SOFTGPU_MPS",
          "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(ConfigurationTest, HasDefaults) {
  auto read = read_configuration();
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->devices, 1);
  EXPECT_EQ(read->memory_bytes, size_t{16} << 30);
  EXPECT_EQ(read->pcie_bytes_per_ns, 0);
  EXPECT_EQ(read->connections, 0);
  EXPECT_EQ(read->init_time.count(), 0);
  EXPECT_EQ(read->context_time.count(), 0);
  EXPECT_EQ(read->context_end_time.count(), 0);
  EXPECT_EQ(read->threads, 0);
  EXPECT_EQ(read->mps, 0);
  EXPECT_EQ(read->mps_percent, 100);
}

TEST_F(ConfigurationTest, ReadsSettings) {
  ::setenv("SOFTGPU_DEVICES", "4", 1);
  ::setenv("SOFTGPU_MEMORY", "640K", 1);
  ::setenv("SOFTGPU_PCIE_GBPS", "55.5", 1);
  ::setenv("SOFTGPU_PCIE_LATENCY_US", "1.5", 1);
  ::setenv("SOFTGPU_CONNECTIONS", "32", 1);
  ::setenv("SOFTGPU_INIT_MS", "320", 1);
  ::setenv("SOFTGPU_CONTEXT_MS", "105", 1);
  ::setenv("SOFTGPU_CONTEXT_END_MS", "60", 1);
  ::setenv("SOFTGPU_THREADS", "3", 1);
  ::setenv("SOFTGPU_NVLINKS", "2", 1);
  ::setenv("SOFTGPU_NVLINK_END", "0", 1);
  ::setenv("SOFTGPU_MPS", "1", 1);
  ::setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25", 1);
  auto read = read_configuration();
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->devices, 4);
  EXPECT_EQ(read->memory_bytes, size_t{640} << 10);
  EXPECT_EQ(read->pcie_bytes_per_ns, 55.5);
  EXPECT_EQ(read->pcie_latency_ns, 1500);
  EXPECT_EQ(read->connections, 32);
  EXPECT_EQ(read->init_time.count(), 320);
  EXPECT_EQ(read->context_time.count(), 105);
  EXPECT_EQ(read->context_end_time.count(), 60);
  EXPECT_EQ(read->threads, 3);
  EXPECT_EQ(read->nvlinks, 2);
  EXPECT_EQ(read->nvlink_end, 0);
  EXPECT_EQ(read->mps, 1);
  EXPECT_EQ(read->mps_percent, 25);
}

TEST_F(ConfigurationTest, NamesWhatIsMalformed) {
  const std::pair<const char*, const char*> malformed[] = {
      {"SOFTGPU_DEVICES", "two"},    {"SOFTGPU_DEVICES", "17"},
      {"SOFTGPU_MEMORY", "16X"},     {"SOFTGPU_MEMORY", "-1"},
      {"SOFTGPU_MEMORY", "0"},       {"SOFTGPU_MEMORY", "99999999999999T"},
      {"SOFTGPU_PCIE_GBPS", "fast"}, {"SOFTGPU_PEER_GBPS", "-3"},
      {"SOFTGPU_CONNECTIONS", "33"}, {"SOFTGPU_INIT_MS", "60001"},
      {"SOFTGPU_CONTEXT_MS", "-1"},  {"SOFTGPU_CONTEXT_END_MS", "1s"},
      {"SOFTGPU_THREADS", "4abc"},   {"SOFTGPU_THREADS", "1025"},
      {"SOFTGPU_MPS", "2"},          {"SOFTGPU_NVLINKS", "5"},
      {"SOFTGPU_NVLINK_END", "gpu"},
  };
  for (const auto& [name, value] : malformed) {
    ::setenv(name, value, 1);
    auto read = read_configuration();
    ASSERT_FALSE(read.ok()) << name << "=" << value;
    EXPECT_NE(read.status().message().find(name), std::string::npos);
    ::unsetenv(name);
  }
}

using std::chrono::nanoseconds;

TEST(CopyEngine, TransfersOfOneDirectionQueue) {
  CopyEngine engine(1.0, 0);  // 1 byte per ns
  const auto first = engine.book(100'000'000'000);
  const auto second = engine.book(50'000'000);
  EXPECT_EQ(first.end - first.begin, nanoseconds(100'000'000'000));
  EXPECT_EQ(second.begin, first.end);
  EXPECT_EQ(second.done - first.done, nanoseconds(50'000'000));
}

TEST(CopyEngine, LatencyDelaysWithoutOccupying) {
  CopyEngine engine(1.0, 1'000'000'000);
  const auto first = engine.book(100'000'000'000);
  const auto second = engine.book(500'000'000);
  EXPECT_EQ(first.done - first.end, nanoseconds(1'000'000'000));
  EXPECT_EQ(second.done - first.done, nanoseconds(500'000'000));
}

TEST(CopyEngine, WhatIsGivenUpFreesTheEngine) {
  CopyEngine engine(1.0, 0);
  const auto first = engine.book(100'000'000'000);
  const auto second = engine.book(100'000'000'000);
  engine.give_back(first);
  engine.give_back(second);
  EXPECT_LT(engine.book(1).begin, first.end);
}

TEST(CopyEngine, WithoutModelIsNotPaced) {
  EXPECT_FALSE(CopyEngine(0, 0).paced());
  EXPECT_TRUE(CopyEngine(0, 1000).paced());
  EXPECT_TRUE(CopyEngine(10, 0).paced());
}

TEST(JitLog, NeverWritesBeyondItsBuffer) {
  char text[32];
  std::memset(text, 'x', sizeof text);
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {text, reinterpret_cast<void*>(uintptr_t{16})};
  JitLog log;
  ASSERT_EQ(JitLog::read(2, options, values, &log), CUDA_SUCCESS);
  log.error("a line that is longer than the buffer");
  log.error("another");
  log.finish();
  EXPECT_EQ(std::strlen(text), 15u);
  EXPECT_EQ(text[16], 'x');
  EXPECT_EQ(reinterpret_cast<uintptr_t>(values[1]), 15u);
}

TEST(LinkImage, ReadsBackWhatItPacked) {
  const std::vector<std::string> units = {"first", std::string(10'000, 'y'), "third"};
  const std::vector<std::byte> image = link_image(units);
  auto measured = rcuda::image::measure(image.data());
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->format, rcuda::image::Format::kElf);
  EXPECT_LE(measured->parts[0].size(), image.size());
  std::vector<std::string> read;
  EXPECT_TRUE(linked_units(measured->parts[0], &read));
  EXPECT_EQ(read, units);
}

TEST(LinkImage, RefusesDamage) {
  const std::vector<std::byte> image = link_image({"only"});
  std::mt19937 random(9);
  for (size_t bytes = 0; bytes < image.size(); ++bytes) {
    const std::vector<std::byte> cut(image.begin(), image.begin() + static_cast<long>(bytes));
    std::vector<std::string> read;
    EXPECT_FALSE(linked_units(cut, &read)) << bytes;
  }
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> damaged = image;
    damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    std::vector<std::string> read;
    linked_units(damaged, &read);  // must not read outside of the image
    for (const std::string& unit : read) EXPECT_LE(unit.size(), image.size());
  }
}

// A thread may be in a call with a stream while another thread destroys the context.
TEST(Streams, KeepTheirContextForWhoeverHoldsThem) {
  CUcontext handle = nullptr;
  CUstream stream_handle = nullptr;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxCreate_v2(&handle, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&stream_handle, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const std::weak_ptr<Context> context = Context::from_handle(handle);
  std::shared_ptr<Stream> stream = handle_table<Stream>().find(stream_handle);
  ASSERT_EQ(cuCtxDestroy_v2(handle), CUDA_SUCCESS);
  EXPECT_FALSE(context.expired());
  EXPECT_TRUE(stream->closed());
  stream.reset();
  EXPECT_TRUE(context.expired());
}

TEST(Streams, RecordingAContextLeavesNoneBehind) {
  CUcontext handle = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxCreate_v2(&handle, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  const std::shared_ptr<Context> context = Context::from_handle(handle);
  const long before = context.use_count();  // each stream holds a reference
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(cuCtxRecordEvent(handle, event), CUDA_SUCCESS);
    ASSERT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  }
  // A stream's thread may keep its reference for a moment; the last one is released with the next
  // recording.
  while (context.use_count() > before + 1) std::this_thread::yield();
  EXPECT_EQ(cuCtxDestroy_v2(handle), CUDA_SUCCESS);
}

TEST(Streams, AContextThatHasEndedHasNoMore) {
  CUcontext handle = nullptr;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxCreate_v2(&handle, 0, 0), CUDA_SUCCESS);
  const std::shared_ptr<Context> context = Context::from_handle(handle);
  ASSERT_EQ(cuCtxDestroy_v2(handle), CUDA_SUCCESS);
  StreamSet& streams = streams_of(*context);
  EXPECT_EQ(streams.create(CU_STREAM_NON_BLOCKING, 0), nullptr);
  EXPECT_EQ(streams.legacy()->enqueue(EmptyOperation{}), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(streams.per_thread()->enqueue(EmptyOperation{}), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

}  // namespace
}  // namespace softgpu::driver
