// The cost of a session over verbs, in work requests, completions and copied bytes; and GPU memory
// that the adapter accesses directly. Run by the rig, where the "GPU" is softgpu and the adapter is
// soft-RoCE: the counts are those of real hardware, the times are not.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "api/opcodes.h"
#include "server/executor/images/image_cache.h"
#include "tests/support/session_harness.h"

namespace rcuda::test {
namespace {

using server::Sha256;
using transport::LinkCounters;
using wire::Custom;

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry add_one(.param .u64 data) {
  .reg .u64 %a; .reg .u32 %v;
  ld.param.u64 %a, [data];
  ld.global.u32 %v, [%a];
  add.u32 %v, %v, 1;
  st.global.u32 [%a], %v;
  ret;
}
)";

LinkCounters operator-(const LinkCounters& a, const LinkCounters& b) {
  LinkCounters difference;
  difference.puts = a.puts - b.puts;
  difference.work_requests = a.work_requests - b.work_requests;
  difference.doorbells = a.doorbells - b.doorbells;
  difference.completions = a.completions - b.completions;
  difference.receives = a.receives - b.receives;
  difference.transfer_bytes = a.transfer_bytes - b.transfer_bytes;
  difference.copied_bytes = a.copied_bytes - b.copied_bytes;
  difference.registrations = a.registrations - b.registrations;
  return difference;
}

class VerbsSession : public ::testing::Test {
 protected:
  struct Both {
    LinkCounters client, worker;
  };

  // The worker polls all the time: for a sleeping worker the counts would include a wake-up.
  VerbsSession() : session_({.medium = &medium_named("verbs"), .spin = std::chrono::hours(1)}) {}

  ProtocolClient& client() { return session_.client(); }
  const api::DriverTable& driver() { return session_.driver(); }

  void SetUp() override {
    CUcontext context;
    driver().cuDevicePrimaryCtxRetain(&context, 0);
    driver().cuCtxSetCurrent(context);
  }
  void TearDown() override {
    if (const Status link = client().link().status(); !link.ok()) {
      ADD_FAILURE() << link.message() << "; the worker: " << session_.wait_end().message();
    }
    driver().cuDevicePrimaryCtxRelease_v2(0);
  }

  Both counters() { return {client().link().counters(), session_.worker_link().counters()}; }
  void report(const char* what, int operations, const Both& before) {
    const Both now = counters();
    const LinkCounters sides[] = {now.client - before.client, now.worker - before.worker};
    std::printf("%s, %d times\n", what, operations);
    for (const LinkCounters& side : sides) {
      std::printf(
          "  %s %llu work requests, %llu doorbells, %llu completions (%llu of receives), %llu "
          "bytes "
          "transferred, %llu copied by the CPU, %llu registrations\n",
          &side == sides ? "client:" : "worker:",
          static_cast<unsigned long long>(side.work_requests),
          static_cast<unsigned long long>(side.doorbells),
          static_cast<unsigned long long>(side.completions),
          static_cast<unsigned long long>(side.receives),
          static_cast<unsigned long long>(side.transfer_bytes),
          static_cast<unsigned long long>(side.copied_bytes),
          static_cast<unsigned long long>(side.registrations));
    }
  }

  // Waits until the Link sends nothing of its own. A side that goes to sleep requests a wake-up
  // (arm), gets an answer, and is woken once; the progress threads do this at their own speed. Here
  // only the client sleeps, while it waits for an answer.
  void settle() {
    const auto answered = [this] {
      const Both now = counters();
      return now.worker.arm_answers == now.client.arms;
    };
    ASSERT_TRUE(spin_until(answered)) << "the client asks to be woken and is not answered";
    signal_and_spin();  // takes the wake-up
    const auto taken = [this] {
      const Both now = counters();
      return now.client.receives == now.worker.arm_answers + now.worker.wakes;
    };
    ASSERT_TRUE(spin_until(taken)) << "the client is woken and does not notice";
  }

  // Never sleeps, like a client that polls.
  static bool spin_until(const std::function<bool()>& reached) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!reached()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void signal_and_spin() {
    ASSERT_TRUE(client().post(Custom::kSignal, wire::SignalBody{0, 7, ++sequence_}).ok());
    ASSERT_TRUE(spin_until([this] { return client().word_reached(7, sequence_); }))
        << "signal " << sequence_ << " of the worker does not come";
  }

  void load_kernel() {
    const auto* at = reinterpret_cast<const std::byte*>(kPtx);
    const std::span<const std::byte> image(at, sizeof kPtx - 1);
    const Sha256 hash = server::sha256(image);
    wire::ImageChunkBody chunk{};
    std::memcpy(chunk.sha256, hash.data(), hash.size());
    wire::ImageQueryBody query{};
    std::memcpy(query.sha256, hash.data(), hash.size());
    query.bytes = image.size();
    ASSERT_TRUE(client().call(Custom::kImageQuery, query));
    chunk.staging_offset = ~0ull;
    chunk.bytes = static_cast<uint32_t>(image.size());
    ASSERT_TRUE(client().post(Custom::kImageChunk, chunk, image).ok());
    wire::ModuleLoadBody load{};
    load.object = 1;
    load.image_count = 1;
    auto loaded = client().call(Custom::kModuleLoad, load, std::as_bytes(std::span(hash)));
    ASSERT_TRUE(loaded && loaded->result == CUDA_SUCCESS);
    const std::string name = "add_one";
    const wire::FunctionInfoBody body{5, 1, 0, static_cast<uint16_t>(name.size()), 0};
    auto found = client().call(Custom::kFunctionInfo, body, std::as_bytes(std::span(name)));
    ASSERT_TRUE(found && found->result == CUDA_SUCCESS);
  }

  Status launch(CUdeviceptr memory) {
    wire::LaunchBody body{};
    body.function = 5;
    std::fill_n(body.grid, 3, 1);
    std::fill_n(body.block, 3, 1);
    body.parameter_bytes = 8;
    return client().post(Custom::kLaunch, body, std::as_bytes(std::span(&memory, 1)));
  }

  CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(driver().cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
  }

  // Page-locked client memory, which the worker cannot map over verbs.
  std::span<std::byte> pin(size_t bytes) {
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(base, MAP_FAILED);
    const auto region = client().link().expose(base, bytes);
    EXPECT_TRUE(region.ok()) << region.status().message();
    wire::HostExposeBody body{};
    body.address = reinterpret_cast<uint64_t>(base);
    body.bytes = bytes;
    body.region = static_cast<uint64_t>(region->id);
    const auto answer = client().call(Custom::kHostExpose, body);
    EXPECT_TRUE(answer && answer->result == CUDA_SUCCESS);
    return {static_cast<std::byte*>(base), bytes};
  }

  void copy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
    wire::CopyBody body{};
    body.destination = destination;
    body.source = source;
    body.bytes = bytes;
    ASSERT_TRUE(client().post(Custom::kCopy, body).ok());
  }

  static CUdeviceptr address_of(const void* memory) {
    return reinterpret_cast<CUdeviceptr>(memory);
  }
  static void fill(std::span<std::byte> memory, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  }

  SessionHarness session_;
  uint64_t sequence_ = 0;
};

TEST_F(VerbsSession, APostedLaunchCostsOneWriteAndNoReceive) {
  load_kernel();
  const CUdeviceptr memory = allocate(4);
  driver().cuMemsetD8_v2(memory, 0, 4);
  settle();
  constexpr int kLaunches = 48;  // so few that the ring's flow control sends no answer
  const Both before = counters();
  for (int i = 0; i < kLaunches; ++i) ASSERT_TRUE(launch(memory).ok());
  const LinkCounters posted = client().link().counters() - before.client;
  EXPECT_EQ(posted.work_requests, kLaunches);
  EXPECT_LE(posted.doorbells, kLaunches);
  signal_and_spin();
  report("posted launch (and one signal)", kLaunches, before);
  const Both after = counters();
  EXPECT_EQ(after.worker.work_requests, before.worker.work_requests + 1);  // for the signal
  EXPECT_EQ(after.worker.receives, before.worker.receives);
  EXPECT_EQ(after.client.receives, before.client.receives);
  EXPECT_EQ((after.client - before.client).copied_bytes, 0u);
  uint32_t value = 0;
  driver().cuMemcpyDtoH_v2(&value, memory, sizeof value);
  EXPECT_EQ(value, uint32_t{kLaunches});
  driver().cuMemFree_v2(memory);
}

TEST_F(VerbsSession, ARoundTripCostsTwoWrites) {
  settle();
  constexpr int kTrips = 40;
  const Both before = counters();
  for (int i = 0; i < kTrips; ++i) signal_and_spin();
  const Both after = counters();
  report("round trip", kTrips, before);
  EXPECT_EQ((after.client - before.client).work_requests, kTrips);
  EXPECT_EQ((after.worker - before.worker).work_requests, kTrips);
  EXPECT_EQ((after.client - before.client).receives, 0u);
  EXPECT_EQ((after.worker - before.worker).receives, 0u);
}

TEST_F(VerbsSession, APinnedCopyCostsItsBytesAndNoneOfAnyCpu) {
  constexpr size_t kBytes = 3'000'001;
  const std::span<std::byte> pinned = pin(kBytes);
  const CUdeviceptr memory = allocate(kBytes);
  copy(memory, address_of(pinned.data()), kBytes);  // registers the GPU's memory
  settle();
  for (const bool to_device : {true, false}) {
    fill(pinned, to_device);
    if (!to_device) driver().cuMemsetD8_v2(memory, 0x5a, kBytes);
    const Both before = counters();
    if (to_device) {
      copy(memory, address_of(pinned.data()), kBytes);
    } else {
      copy(address_of(pinned.data()), memory, kBytes);
    }
    signal_and_spin();
    report(to_device ? "pinned copy of 3000001 bytes to the device" : "... and back", 1, before);
    const Both after = counters();
    const LinkCounters client_side = after.client - before.client;
    const LinkCounters worker_side = after.worker - before.worker;
    EXPECT_EQ(client_side.work_requests, 2u);  // the command and the signal
    EXPECT_EQ(client_side.transfer_bytes, 0u);
    EXPECT_EQ(client_side.copied_bytes, 0u);
    // One request for each queue pair of transfers, with a completion, and one for the signal.
    EXPECT_EQ(worker_side.work_requests, 5u);
    EXPECT_EQ(worker_side.completions, 4u);
    EXPECT_EQ(worker_side.transfer_bytes, kBytes);
    EXPECT_EQ(worker_side.copied_bytes, 0u);
    EXPECT_EQ(worker_side.registrations, 0u);
    std::vector<std::byte> seen(kBytes);
    driver().cuMemcpyDtoH_v2(seen.data(), memory, kBytes);
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), pinned.begin()));
  }
  driver().cuMemFree_v2(memory);
}

// GPU memory is registered when it is first used, and deregistered when it is freed. Other memory
// at the same address is registered again.
TEST_F(VerbsSession, GpuMemoryIsForgottenWhenItIsFreed) {
  constexpr size_t kBytes = 1u << 20;
  const std::span<std::byte> pinned = pin(kBytes);
  const auto free_remotely = [&](CUdeviceptr memory) {
    wire::Encoder out;
    out.value(memory);
    const auto answer = client().call(static_cast<uint16_t>(api::Opcode::cuMemFree_v2), out.body());
    ASSERT_TRUE(answer && answer->result == CUDA_SUCCESS);
  };
  CUdeviceptr before = 0;
  int same_address = 0;
  for (int i = 0; i < 6; ++i) {
    const CUdeviceptr memory = allocate(kBytes);
    same_address += memory == before;
    before = memory;
    const uint64_t registered = session_.worker_link().counters().registrations;
    for (int again = 0; again < 3; ++again) {
      fill(pinned, 10 * i + again);
      copy(memory, address_of(pinned.data()), kBytes);
      signal_and_spin();
      std::vector<std::byte> seen(kBytes);
      driver().cuMemcpyDtoH_v2(seen.data(), memory, kBytes);
      ASSERT_TRUE(std::equal(seen.begin(), seen.end(), pinned.begin())) << i << ' ' << again;
    }
    EXPECT_EQ(session_.worker_link().counters().registrations, registered + 1);
    // Every second time, the memory is freed without the worker's knowledge.
    if (i % 2 == 0) {
      free_remotely(memory);
    } else {
      driver().cuMemFree_v2(memory);
    }
  }
  std::printf("%d of 5 allocations had their predecessor's address\n", same_address);
}

// A random mix of commands and copies of all kinds, with every byte checked.
TEST_F(VerbsSession, ARandomMixMovesEveryByte) {
  constexpr size_t kBytes = 2u << 20;
  constexpr int kBuffers = 3;
  load_kernel();
  const std::span<std::byte> pinned = pin(2 * kBytes);
  const CUdeviceptr counter = allocate(4);
  driver().cuMemsetD8_v2(counter, 0, 4);
  struct Buffer {
    CUdeviceptr memory = 0;
    std::vector<std::byte> expected;
  };
  std::vector<Buffer> buffers(kBuffers);
  const auto make = [&](Buffer& buffer) {
    buffer.memory = allocate(kBytes);
    driver().cuMemsetD8_v2(buffer.memory, 0, kBytes);
    buffer.expected.assign(kBytes, std::byte{0});
  };
  for (Buffer& buffer : buffers) make(buffer);
  const char* seed = std::getenv("RCUDA_TEST_SEED");
  std::mt19937_64 random(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 4711);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  const char* rounds_text = std::getenv("RCUDA_TEST_ROUNDS");
  const int rounds = rounds_text != nullptr ? std::atoi(rounds_text) : 400;
  uint32_t launches = 0;
  uint64_t to_device = 0, to_client = 0;
  for (int round = 0; round < rounds; ++round) {
    Buffer& buffer = buffers[below(kBuffers)];
    const size_t bytes = 1 + below(below(4) == 0 ? kBytes : 20'000);
    const size_t at = below(kBytes - bytes + 1);
    const size_t host_at = below(2 * kBytes - bytes + 1);
    switch (below(6)) {
      case 0:
      case 1:
        fill(pinned.subspan(host_at, bytes), random());
        copy(buffer.memory + at, address_of(pinned.data() + host_at), bytes);
        std::copy_n(pinned.begin() + static_cast<ptrdiff_t>(host_at), bytes,
                    buffer.expected.begin() + static_cast<ptrdiff_t>(at));
        to_device += bytes;
        signal_and_spin();  // before the pinned memory changes again
        break;
      case 2:
      case 3: {
        std::fill_n(pinned.begin() + static_cast<ptrdiff_t>(host_at), bytes, std::byte{0xee});
        copy(address_of(pinned.data() + host_at), buffer.memory + at, bytes);
        signal_and_spin();
        ASSERT_TRUE(std::equal(pinned.begin() + static_cast<ptrdiff_t>(host_at),
                               pinned.begin() + static_cast<ptrdiff_t>(host_at + bytes),
                               buffer.expected.begin() + static_cast<ptrdiff_t>(at)))
            << "round " << round;
        to_client += bytes;
        break;
      }
      case 4:
        for (size_t n = below(40); n > 0; --n, ++launches) ASSERT_TRUE(launch(counter).ok());
        break;
      default:
        if (below(4) != 0) break;
        signal_and_spin();
        driver().cuMemFree_v2(buffer.memory);
        make(buffer);
    }
  }
  signal_and_spin();
  uint32_t value = 0;
  driver().cuMemcpyDtoH_v2(&value, counter, sizeof value);
  EXPECT_EQ(value, launches);
  for (Buffer& buffer : buffers) {
    std::vector<std::byte> seen(kBytes);
    driver().cuMemcpyDtoH_v2(seen.data(), buffer.memory, kBytes);
    EXPECT_TRUE(seen == buffer.expected);
    driver().cuMemFree_v2(buffer.memory);
  }
  driver().cuMemFree_v2(counter);
  EXPECT_EQ(client().error_word(), 0u);
  std::printf("%d rounds: %llu bytes to the device, %llu back, %u launches\n", rounds,
              static_cast<unsigned long long>(to_device),
              static_cast<unsigned long long>(to_client), launches);
}

}  // namespace
}  // namespace rcuda::test
