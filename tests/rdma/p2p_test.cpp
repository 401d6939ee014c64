// Copies between workers over verbs: two engines on softgpu with a Link of real queue pairs between
// them, and every strategy. softgpu's memory registers like any memory, so GPUDirect works. Run by
// the rig; the test checks bytes and counters, not times.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "p2p/engine/engine.h"
#include "server/executor/peers/cuda_device_ops.h"
#include "tests/support/engine_open.h"
#include "tests/support/link_pair.h"
#include "tests/support/session_harness.h"

namespace rcuda::p2p {
namespace {

using namespace std::chrono_literals;
using server::CudaDeviceOps;
using transport::LinkCounters;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kRoom = 6 * kMiB;
constexpr unsigned char kUntouched = 0xee;

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u32 count) {
  .reg .u64 %a, %o; .reg .u32 %i, %n, %v; .reg .pred %p;
  ld.param.u64 %a, [data];
  ld.param.u32 %n, [count];
  mov.u32 %i, %tid.x;
loop:
  setp.ge.u32 %p, %i, %n;
  @%p bra done;
  cvt.u64.u32 %o, %i;
  add.u64 %o, %o, %a;
  ld.global.u8 %v, [%o];
  add.u32 %v, %v, 1;
  st.global.u8 [%o], %v;
  add.u32 %i, %i, 32;
  bra loop;
done:
  ret;
}
)";

struct Case {
  const char* name;
  Staging small;  // expected staging for a copy of one byte, and (large) of kRoom bytes
  Staging large;
};
constexpr Case kCases[] = {
    {"v1", Staging::kRegistered, Staging::kRegistered},
    {"v2a", Staging::kDevice, Staging::kDevice},
    {"v2b", Staging::kHost, Staging::kHost},
    {"v3a", Staging::kDevice, Staging::kDevice},
    {"v3b", Staging::kHost, Staging::kHost},
    {"v4a", Staging::kDevice, Staging::kDevice},
    {"v4b", Staging::kHost, Staging::kHost},
    {"hybrid", Staging::kDevice, Staging::kHost},
};

// Counters of both sides: registrations, and bytes moved by CPUs and by adapters.
struct Cost {
  uint64_t registrations, copied_bytes, transfer_bytes;
};

class VerbsCopy : public ::testing::TestWithParam<Case> {
 protected:
  struct Side {
    CUcontext context = nullptr;
    CUstream stream = nullptr;  // of the program
    CUstream other = nullptr;   // for kernels that run during the copies
    CUfunction add_one = nullptr;
    CUdeviceptr memory = 0;
    CUdeviceptr elsewhere = 0;
    std::unique_ptr<CudaDeviceOps> ops;
    std::unique_ptr<Engine> engine;
    transport::Link* link = nullptr;  // the engine's
  };

  const api::DriverTable& driver() { return test::TestDriver::get().table; }

  void SetUp() override {
    const auto planner = parse_planner_options(GetParam().name, "verbs");
    ASSERT_TRUE(planner.ok()) << planner.status().message();
    EngineOptions options;
    options.planner = *planner;
    options.inbox_bytes = options.device_inbox_bytes = 4 * kMiB;
    options.measure = false;  // measurements would also send bytes
    for (int i = 0; i < 2; ++i) {
      Side& side = sides_[i];
      CUmodule module = nullptr;
      size_t total = 0;
      ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&side.context, i), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuCtxSetCurrent(side.context), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuStreamCreate(&side.stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuStreamCreate(&side.other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuModuleGetFunction(&side.add_one, module, "add_one"), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuMemAlloc_v2(&side.memory, kRoom), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuMemAlloc_v2(&side.elsewhere, 4096), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuMemsetD8_v2(side.elsewhere, 0, 4096), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuMemGetInfo_v2(&free_at_start_[i], &total), CUDA_SUCCESS);
      auto ops =
          CudaDeviceOps::create(driver(), {{{i, side.context}}, [this](CUresult) { ++errors_; }});
      ASSERT_TRUE(ops.ok()) << ops.status().message();
      side.ops = *std::move(ops);
      auto engine = Engine::create(*side.ops, options);
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      side.engine = *std::move(engine);
    }
    transport::LinkOptions link;
    link.window_bytes = PeerWindow::kBytes;
    auto pair = test::make_link_pair(test::medium_named("verbs"), link, link);
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    SessionToken token;
    token.fill(std::byte{7});
    cut_ = pair->cut;
    sides_[0].link = pair->client.get();
    sides_[1].link = pair->server.get();
    sides_[0].engine->attach(1, std::move(pair->client), token, true);
    sides_[1].engine->attach(0, std::move(pair->server), token, false);
    std::mt19937_64 random(4711);
    pattern_.resize(kRoom);
    for (size_t i = 0; i < kRoom; i += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(pattern_.data() + i, &word, sizeof word);
    }
  }

  void TearDown() override {
    for (Side& side : sides_) {
      driver().cuCtxSetCurrent(side.context);
      driver().cuCtxSynchronize();
      side.engine.reset();
      side.ops.reset();
      driver().cuMemFree_v2(side.memory);
      driver().cuMemFree_v2(side.elsewhere);
      driver().cuStreamDestroy_v2(side.stream);
      driver().cuStreamDestroy_v2(side.other);
    }
    for (int i = 0; i < 2; ++i) driver().cuDevicePrimaryCtxRelease_v2(i);
  }

  Cost cost() {
    Cost sum{};
    for (const Side& side : sides_) {
      const LinkCounters counters = side.link->counters();
      sum.registrations += counters.registrations;
      sum.copied_bytes += counters.copied_bytes;
      sum.transfer_bytes += counters.transfer_bytes;
    }
    return sum;
  }

  // Checks that the plan has this staging: the strategy's own, not a substitute.
  void expect_plan(int from, uint64_t bytes, Staging staging) {
    auto forecast = sides_[from].engine->plan(1 - from, 0, 0, bytes);
    // Each side measures the legs of the copies that it sends. So a copy that the peer has sent
    // does not imply that this side has measured.
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (forecast.ok() && !forecast->measured && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
      forecast = sides_[from].engine->plan(1 - from, 0, 0, bytes);
    }
    ASSERT_TRUE(forecast.ok()) << forecast.status().message();
    ASSERT_TRUE(forecast->measured) << "the measurements do not end";
    EXPECT_EQ(forecast->plan.staging, staging) << to_string(forecast->plan);
    EXPECT_EQ(forecast->plan.route, Route::kVerbs) << to_string(forecast->plan);
  }

  // Makes one copy, without streams of the program or in one stream of each side.
  void copy(int from, const Shape& source, const Shape& destination, bool in_streams) {
    PeerCopy halves[2];
    for (int i = 0; i < 2; ++i) {
      PeerCopy& half = halves[i];
      half.id = next_id_;
      half.peer = static_cast<PeerId>(1 - i);
      half.outgoing = i == from;
      half.memory = half.outgoing ? source : destination;
      half.peer_has_stream = half.outgoing && in_streams;
      half.done = [this](const Status& status) {
        if (!status.ok()) ++failed_;
        ++over_;
      };
      if (in_streams) half.stream = CudaDeviceOps::stream_ref(sides_[i].stream, sides_[i].context);
    }
    ++next_id_;
    started_ += 2;
    for (int i = 0; i < 2; ++i) {
      const Status queued = sides_[i].engine->copy(std::move(halves[i]));
      ASSERT_TRUE(queued.ok()) << queued.message();
    }
  }
  void await_ends() {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (over_ < started_ && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_EQ(over_, started_) << "a copy does not end";
  }
  void finish() {
    await_ends();
    ASSERT_EQ(failed_, 0);
    ASSERT_EQ(errors_, 0);
  }

  void write(int side, const std::vector<unsigned char>& bytes) {
    ASSERT_EQ(driver().cuCtxSetCurrent(sides_[side].context), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuMemcpyHtoD_v2(sides_[side].memory, bytes.data(), bytes.size()),
              CUDA_SUCCESS);
    ASSERT_EQ(driver().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  void set(int side, unsigned char value, size_t bytes) {
    ASSERT_EQ(driver().cuCtxSetCurrent(sides_[side].context), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuMemsetD8_v2(sides_[side].memory, value, bytes), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuCtxSynchronize(), CUDA_SUCCESS);  // copies without streams do not wait
  }
  std::vector<unsigned char> read(int side, size_t bytes) {
    std::vector<unsigned char> all(bytes);
    EXPECT_EQ(driver().cuCtxSetCurrent(sides_[side].context), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuMemcpyDtoH_v2(all.data(), sides_[side].memory, bytes), CUDA_SUCCESS);
    return all;
  }
  void launch(const Side& side, CUstream stream, CUdeviceptr memory, uint32_t count) {
    ASSERT_EQ(driver().cuCtxSetCurrent(side.context), CUDA_SUCCESS);
    void* parameters[] = {&memory, &count};
    ASSERT_EQ(
        driver().cuLaunchKernel(side.add_one, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr),
        CUDA_SUCCESS);
  }

  Side sides_[2];
  size_t free_at_start_[2] = {};
  // Cuts the connection, as the death of a worker or of the network does.
  std::function<void()> cut_;
  std::vector<unsigned char> pattern_;
  uint64_t next_id_ = 1;
  int started_ = 0;
  std::atomic<int> over_ = 0;
  std::atomic<int> failed_ = 0;
  std::atomic<int> errors_ = 0;
};

TEST_P(VerbsCopy, EverySizeAndAlignmentArrivesAndNothingIsRegisteredAnew) {
  // Requests the first copy before the Links are made. That copy, too, must use GPUDirect if the
  // strategy does.
  constexpr size_t kFirst = 4099;
  write(0, pattern_);
  set(1, kUntouched, 2 * kFirst);
  copy(0, Shape::plain(sides_[0].memory + 3, kFirst), Shape::plain(sides_[1].memory + 1, kFirst),
       false);
  finish();
  for (int from = 0; from < 2; ++from) {
    expect_plan(from, 1, GetParam().small);
    expect_plan(from, kRoom, GetParam().large);
  }

  constexpr uint64_t kSizes[] = {1,       2,       7,       64,      511,       4097,        65'535,
                                 200'000, 200'001, 614'401, 1 << 20, kMiB + 13, 4 * kMiB + 5};
  constexpr uint64_t kOffsets[][2] = {{0, 0}, {1, 0}, {0, 3}, {5, 2}, {509, 13}};
  const bool registers = GetParam().small == Staging::kRegistered;
  uint64_t copies = 0, bytes = 0;
  const Cost before = cost();
  int turn = 0;
  for (const uint64_t size : kSizes) {
    for (const auto& [out, in] : kOffsets) {
      if (size > 65'535 && turn++ % 3 != 0) continue;  // emulated bandwidth is low
      const int from = static_cast<int>(copies % 2);
      const size_t shown = size + in + 64;
      write(from, pattern_);
      set(1 - from, kUntouched, shown);
      copy(from, Shape::plain(sides_[from].memory + out, size),
           Shape::plain(sides_[1 - from].memory + in, size), false);
      finish();
      std::vector<unsigned char> expected(shown, kUntouched);
      std::copy_n(pattern_.begin() + static_cast<ptrdiff_t>(out), size,
                  expected.begin() + static_cast<ptrdiff_t>(in));
      ASSERT_TRUE(read(1 - from, shown) == expected) << size << " bytes, " << out << " to " << in;
      ++copies;
      bytes += size;
    }
  }
  const Cost after = cost();
  EXPECT_EQ(after.transfer_bytes - before.transfer_bytes, bytes);
  EXPECT_EQ(after.copied_bytes, before.copied_bytes);
  EXPECT_EQ(after.registrations - before.registrations, registers ? 2 * copies : 0);
  std::printf("%s: %llu copies, %llu bytes on the wire, %llu registrations, %llu copied by a CPU\n",
              GetParam().name, static_cast<unsigned long long>(copies),
              static_cast<unsigned long long>(after.transfer_bytes - before.transfer_bytes),
              static_cast<unsigned long long>(after.registrations - before.registrations),
              static_cast<unsigned long long>(after.copied_bytes - before.copied_bytes));
}

TEST_P(VerbsCopy, ShapesArrive) {
  constexpr uint64_t kWidth = 333, kHeight = 41, kDepth = 7, kPitch = 512, kOtherPitch = 401;
  const Shape source{sides_[0].memory + 5, kWidth, kHeight, kDepth, kPitch, kPitch * 43};
  const Shape destination{sides_[1].memory + 2, kWidth, kHeight, kDepth, kOtherPitch,
                          kOtherPitch * kHeight};
  const size_t shown = 2 + kOtherPitch * kHeight * kDepth + 64;
  write(0, pattern_);
  set(1, kUntouched, shown);
  copy(0, source, destination, false);
  finish();
  std::vector<unsigned char> expected(shown, kUntouched);
  for (uint64_t z = 0; z < kDepth; ++z) {
    for (uint64_t y = 0; y < kHeight; ++y) {
      std::copy_n(pattern_.begin() + static_cast<ptrdiff_t>(5 + (z * 43 + y) * kPitch), kWidth,
                  expected.begin() + static_cast<ptrdiff_t>(2 + (z * kHeight + y) * kOtherPitch));
    }
  }
  EXPECT_TRUE(read(1, shown) == expected);
}

// Copies in streams of both sides. The streams fill the memory before the copy and add to it after
// the copy, while kernels run in other streams. Both directions run at the same time, in disjoint
// halves of each device's memory.
TEST_P(VerbsCopy, CopiesKeepTheirPlaceInStreamsBesideKernels) {
  constexpr uint32_t kBytes = 700'001;
  constexpr uint64_t kHalf = kRoom / 2;
  constexpr int kRounds = 3, kKernels = 8;
  // Streams are only held for peers whose connection is open.
  ASSERT_TRUE(testing::wait_until_open(*sides_[0].engine, 1, 60s));
  ASSERT_TRUE(testing::wait_until_open(*sides_[1].engine, 0, 60s));
  for (int round = 0; round < kRounds; ++round) {
    const auto value = static_cast<unsigned char>(10 * round + 1);
    for (const Side& side : sides_) {
      ASSERT_EQ(driver().cuCtxSetCurrent(side.context), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuMemsetD8Async(side.memory, value, kBytes, side.stream), CUDA_SUCCESS);
    }
    for (const Side& side : sides_) {
      for (int i = 0; i < kKernels; ++i) launch(side, side.other, side.elsewhere, 4096);
    }
    for (int from = 0; from < 2; ++from) {
      copy(from, Shape::plain(sides_[from].memory, kBytes),
           Shape::plain(sides_[1 - from].memory + kHalf, kBytes), true);
    }
    for (const Side& side : sides_) {
      ASSERT_EQ(driver().cuCtxSetCurrent(side.context), CUDA_SUCCESS);
      // Too late to be copied.
      ASSERT_EQ(driver().cuMemsetD8Async(side.memory, 0, kBytes, side.stream), CUDA_SUCCESS);
      launch(side, side.stream, side.memory + kHalf, 1000);
    }
    finish();
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(driver().cuCtxSetCurrent(sides_[i].context), CUDA_SUCCESS);
      ASSERT_EQ(driver().cuStreamSynchronize(sides_[i].stream), CUDA_SUCCESS);
      std::vector<unsigned char> expected(kBytes, value);
      std::fill_n(expected.begin(), 1000, static_cast<unsigned char>(value + 1));
      const std::vector<unsigned char> seen = read(i, kHalf + kBytes);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                             seen.begin() + static_cast<ptrdiff_t>(kHalf)))
          << "round " << round;
    }
  }
  for (const Side& side : sides_) {
    ASSERT_EQ(driver().cuCtxSetCurrent(side.context), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuStreamSynchronize(side.other), CUDA_SUCCESS);
    unsigned char last = 0;
    ASSERT_EQ(driver().cuMemcpyDtoH_v2(&last, side.elsewhere + 4095, 1), CUDA_SUCCESS);
    EXPECT_EQ(last, kRounds * kKernels);
  }
}

// Four large copies each way, and the Link is cut while they are in flight. Both sides are
// notified, streams continue, staging memory is freed, and the GPUs stay usable.
TEST_P(VerbsCopy, APeerThatDiesInMidCopyEndsCopiesOnBothSides) {
  constexpr uint64_t kBytes = kRoom / 2;
  copy(0, Shape::plain(sides_[0].memory, 4096), Shape::plain(sides_[1].memory + kBytes, 4096),
       false);
  finish();
  const uint64_t sent = cost().transfer_bytes;
  for (int i = 0; i < 4; ++i) {
    for (int from = 0; from < 2; ++from) {
      copy(from, Shape::plain(sides_[from].memory, kBytes),
           Shape::plain(sides_[1 - from].memory + kBytes, kBytes), true);
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (cost().transfer_bytes == sent && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  cut_();
  await_ends();
  EXPECT_GT(failed_, 0);
  // Each failed half in a stream is an error of that stream.
  EXPECT_EQ(errors_, failed_);
  copy(0, Shape::plain(sides_[0].memory, 4096), Shape::plain(sides_[1].memory, 4096), false);
  const int failed = failed_;
  await_ends();
  EXPECT_EQ(failed_, failed + 2) << "a lost peer is lost for good";
  for (Side& side : sides_) {
    ASSERT_EQ(driver().cuCtxSetCurrent(side.context), CUDA_SUCCESS);
    launch(side, side.stream, side.elsewhere, 4096);
    ASSERT_EQ(driver().cuStreamSynchronize(side.stream), CUDA_SUCCESS);
    size_t after = 0, total = 0;
    side.engine.reset();
    side.ops.reset();
    ASSERT_EQ(driver().cuMemGetInfo_v2(&after, &total), CUDA_SUCCESS);
    EXPECT_EQ(free_at_start_[&side - sides_], after);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, VerbsCopy, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rcuda::p2p
