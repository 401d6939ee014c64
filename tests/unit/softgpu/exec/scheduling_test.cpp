// Strands, warps, blocks and grids: divergence, locks, barriers, collectives, calls.
#include <atomic>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "tests/unit/softgpu/exec/test_device.h"

namespace softgpu::exec {
namespace {

// Declares the registers that every kernel here uses, and loads its one parameter into %out.
std::string kernel(const std::string& body) {
  return R"(
.visible .entry kernel(.param .u64 p_out)
{
  .reg .b64 %out, %rd<16>;
  .reg .b32 %t, %b, %r<32>;
  .reg .pred %p<8>;
  ld.param.u64 %out, [p_out];
  mov.u32 %t, %tid.x;
  mov.u32 %b, %ctaid.x;
)" + body +
         "\n  ret;\n}\n";
}

// [%out + 4 * global thread index] = %r0
constexpr char kStoreResult[] = R"(
  mov.u32 %r30, %ntid.x;
  mad.lo.u32 %r30, %b, %r30, %t;
  mul.wide.u32 %rd15, %r30, 4;
  add.u64 %rd15, %rd15, %out;
  st.global.u32 [%rd15], %r0;
)";

class SchedulingTest : public testing::Test {
 protected:
  std::vector<uint32_t> run(const std::string& text, Dim3 grid, Dim3 block, size_t words,
                            bool cooperative = false) {
    device_.load_body(text);
    auto* out = device_.array<uint32_t>(words);
    std::fill_n(out, words, 0u);
    const Fault fault = device_.launch("kernel", grid, block, Arguments() << out, 0, cooperative);
    EXPECT_EQ(fault.code, CUDA_SUCCESS) << fault.message;
    return {out, out + words};
  }
  TestDevice device_;
};

TEST_F(SchedulingTest, DivergedLanesConvergeAgain) {
  const auto stored = run(kernel(std::string(R"(
  mov.u32 %r1, 0;
LOOP:
  setp.ge.u32 %p1, %r1, %t;
  @%p1 bra DONE;
  add.u32 %r1, %r1, 1;
  bra LOOP;
DONE:
  activemask.b32 %r0;
)") + kStoreResult),
                          {1}, {32}, 32);
  for (const uint32_t mask : stored) EXPECT_EQ(mask, ~0u);
}

// Every thread takes the lock in turn: lanes of one warp, warps of a block and blocks.
TEST_F(SchedulingTest, SpinLockBetweenAllThreads) {
  const auto out = run(kernel(R"(
AGAIN:
  atom.global.cas.b32 %r1, [%out], 0, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra AGAIN;
  ld.volatile.global.u32 %r2, [%out+4];
  add.u32 %r2, %r2, 1;
  st.volatile.global.u32 [%out+4], %r2;
  membar.gl;
  atom.global.exch.b32 %r3, [%out], 0;
)"),
                       {4}, {96}, 2);
  EXPECT_EQ(out[0], 0u);
  EXPECT_EQ(out[1], 4u * 96);
}

TEST_F(SchedulingTest, WarpWaitsForAnotherWarpsFlag) {
  const auto out = run(kernel(std::string(R"(
  .shared .b32 flag;
  setp.ne.u32 %p1, %t, 0;
  @%p1 bra NOT_FIRST;
  st.shared.u32 [flag], 0;
NOT_FIRST:
  bar.sync 0;
  setp.ge.u32 %p1, %t, 32;
  @%p1 bra PRODUCE;
WAIT:
  ld.volatile.shared.u32 %r1, [flag];
  setp.eq.u32 %p2, %r1, 0;
  @%p2 bra WAIT;
  mov.u32 %r0, %r1;
  bra DONE;
PRODUCE:
  st.volatile.shared.u32 [flag], 77;
  mov.u32 %r0, 1;
DONE:
)") + kStoreResult),
                       {1}, {64}, 64);
  for (int k = 0; k < 64; ++k) EXPECT_EQ(out[static_cast<size_t>(k)], k < 32 ? 77u : 1u);
}

TEST_F(SchedulingTest, BlocksWaitForLaterBlocks) {
  // The first 40 blocks wait for the last one, which can run only because of time-slicing.
  const auto out = run(kernel(R"(
  setp.eq.u32 %p1, %b, 40;
  @%p1 bra LAST;
WAIT:
  ld.acquire.gpu.global.u32 %r1, [%out];
  setp.eq.u32 %p2, %r1, 0;
  @%p2 bra WAIT;
  red.global.add.u32 [%out+4], 1;
  ret;
LAST:
  st.release.gpu.global.u32 [%out], 1;
)"),
                       {41}, {1}, 2);
  EXPECT_EQ(out[1], 40u);
}

// The lanes of one block write pairs of equal words, each lane at its own %at. The lanes of the
// other block read them and must never see halves of two different pairs. `store` is the text that
// stores {%low, %low}; `load` loads {%low, %high}.
std::string pairs(const std::string& store, const std::string& load) {
  return kernel(R"(
  .reg .b64 %low, %high, %at;
  .reg .b128 %both;
  mul.wide.u32 %at, %t, 16;
  add.u64 %at, %out, %at;
  mov.u32 %r1, 0;
  setp.eq.u32 %p1, %b, 0;
  @%p1 bra READ;
WRITE:
  add.u32 %r1, %r1, 1;
  cvt.u64.u32 %low, %r1;
  )" + store + R"(
  setp.lt.u32 %p2, %r1, 20000;
  @%p2 bra WRITE;
  ret;
READ:
  )" + load + R"(
  setp.ne.u64 %p2, %low, %high;
  @%p2 st.global.u32 [%out], 1;
  setp.lt.u64 %p2, %low, 20000;
  @%p2 bra READ;
)");
}

TEST_F(SchedulingTest, SixteenBytesAreOneAccess) {
  for (const char* store : {"st.relaxed.gpu.global", "st.volatile.global", "st.global.cg"}) {
    std::string load = store;
    load.replace(0, 2, "ld");
    const auto out = run(pairs(std::string(store) + ".v2.b64 [%at+16], {%low, %low};",
                               load + ".v2.b64 {%low, %high}, [%at+16];"),
                         {2}, {1}, 8);
    EXPECT_EQ(out[0], 0u) << "torn by " << store;
  }
}

// 32 lanes access consecutive scalars.
TEST_F(SchedulingTest, ScalarsOfSixteenBytesAreOneAccess) {
  const auto out = run(pairs("mov.b128 %both, {%low, %low};\n  st.global.b128 [%at+16], %both;",
                             "ld.global.b128 %both, [%at+16];\n  mov.b128 {%low, %high}, %both;"),
                       {2}, {32}, 4 + 32 * 4);
  EXPECT_EQ(out[0], 0u);
}

// One block increments a word, and the lanes of the other block compare the values that they load.
TEST_F(SchedulingTest, LanesSeeTheSameBytesAlike) {
  for (const char* load : {"ld.volatile.global.u32 %r1, [%out+16]",
                           "ld.relaxed.gpu.global.v2.u32 {%r1, %r2}, [%out+16]"}) {
    const auto out = run(kernel(R"(
  mov.u32 %r1, 0;
  setp.eq.u32 %p1, %b, 0;
  @%p1 bra READ;
  setp.ne.u32 %p1, %t, 0;
  @%p1 exit;
WRITE:
  add.u32 %r1, %r1, 1;
  st.volatile.global.u32 [%out+16], %r1;
  setp.lt.u32 %p2, %r1, 100000;
  @%p2 bra WRITE;
  ret;
READ:
  )" + std::string(load) + R"(;
  shfl.sync.idx.b32 %r3, %r1, 0, 31, 0xffffffff;
  setp.ne.u32 %p2, %r1, %r3;
  @%p2 st.global.u32 [%out], 1;
  setp.lt.u32 %p2, %r3, 100000;
  @%p2 bra READ;
)"),
                         {2}, {32}, 8);
    EXPECT_EQ(out[0], 0u) << load;
  }
}

TEST_F(SchedulingTest, GridWaitsForAnotherGrid) {
  device_.load_body(kernel(R"(
WAIT:
  ld.volatile.global.u32 %r1, [%out];
  setp.eq.u32 %p2, %r1, 0;
  @%p2 bra WAIT;
)") + R"(
.visible .entry set(.param .u64 p_out) {
  .reg .b64 %rd1;
  ld.param.u64 %rd1, [p_out];
  st.volatile.global.u32 [%rd1], 1;
  ret;
})");
  auto* flag = device_.array<uint32_t>(1);
  *flag = 0;
  // More waiting blocks than any test machine has worker threads.
  std::thread waiter([&] {
    EXPECT_EQ(device_.launch("kernel", {200}, {64}, Arguments() << flag).code, CUDA_SUCCESS);
  });
  EXPECT_EQ(device_.launch("set", {1}, {1}, Arguments() << flag).code, CUDA_SUCCESS);
  waiter.join();
}

TEST_F(SchedulingTest, BarrierDoesNotWaitForExitedThreads) {
  const auto out = run(kernel(std::string(R"(
  setp.gt.u32 %p1, %t, 40;
  @%p1 exit;
  bar.sync 0;
  mov.u32 %r0, 5;
)") + kStoreResult),
                       {1}, {100}, 100);
  for (size_t k = 0; k < 100; ++k) EXPECT_EQ(out[k], k <= 40 ? 5u : 0u);
}

TEST_F(SchedulingTest, BarrierInDivergedCode) {
  // Both halves of each warp reach the same barrier at different places.
  const auto out = run(kernel(std::string(R"(
  .shared .align 4 .b8 area[512];
  mov.u32 %r5, area;
  shl.b32 %r6, %t, 2;
  add.u32 %r6, %r5, %r6;
  and.b32 %r1, %t, 1;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra EVEN;
  st.shared.u32 [%r6], %t;
  bar.sync 3;
  bra JOIN;
EVEN:
  mul.lo.u32 %r2, %t, 10;
  st.shared.u32 [%r6], %r2;
  barrier.sync 3;
JOIN:
  xor.b32 %r7, %t, 1;
  shl.b32 %r7, %r7, 2;
  add.u32 %r7, %r5, %r7;
  ld.shared.u32 %r0, [%r7];
)") + kStoreResult),
                       {1}, {128}, 128);
  for (uint32_t k = 0; k < 128; ++k) EXPECT_EQ(out[k], (k & 1) != 0 ? (k - 1) * 10 : k + 1);
}

TEST_F(SchedulingTest, CountedBarriersTakeAPartialWarpAsWhole) {
  // 40 threads are two warps, which count as 64 threads.
  const auto out = run(kernel(std::string(R"(
  bar.sync 7, 64;
  mov.u32 %r0, 9;
)") + kStoreResult),
                       {1}, {40}, 40);
  for (const uint32_t v : out) EXPECT_EQ(v, 9u);
}

TEST_F(SchedulingTest, AllSixteenBarriersAreIndependent) {
  // Warp w waits at barrier w, where warp 15 - w arrives.
  std::string body = "  shr.u32 %r1, %t, 5;\n";
  body +=
      "  mov.u32 %r2, 15;\n  sub.u32 %r2, %r2, %r1;\n  bar.arrive %r2, 64;\n  bar.sync %r1, 64;\n  "
      "mov.u32 %r0, 1;\n";
  const auto out = run(kernel(body + kStoreResult), {1}, {512}, 512);
  EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0u), 512u);
}

TEST_F(SchedulingTest, CollectiveMeetsFromDifferentPlaces) {
  // Odd and even lanes execute different shuffle instructions with the same members.
  const auto out = run(kernel(std::string(R"(
  mul.lo.u32 %r3, %t, 3;
  and.b32 %r1, %t, 1;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra EVEN;
  shfl.sync.bfly.b32 %r0, %r3, 1, 31, 0xffffffff;
  bra JOIN;
EVEN:
  add.u32 %r3, %r3, 1000;
  shfl.sync.bfly.b32 %r0, %r3, 1, 31, 0xffffffff;
JOIN:
)") + kStoreResult),
                       {2}, {64}, 128);
  for (uint32_t k = 0; k < 128; ++k) {
    const uint32_t partner = (k % 64) ^ 1;
    EXPECT_EQ(out[k], partner * 3 + ((partner & 1) == 0 ? 1000 : 0));
  }
}

TEST_F(SchedulingTest, CollectiveDoesNotWaitForExitedLanes) {
  const auto out = run(kernel(std::string(R"(
  setp.ge.u32 %p1, %t, 20;
  @%p1 ret;
  setp.lt.u32 %p2, %t, 5;
  vote.sync.ballot.b32 %r0, %p2, 0xffffffff;
)") + kStoreResult),
                       {1}, {32}, 32);
  for (size_t k = 0; k < 32; ++k) EXPECT_EQ(out[k], k < 20 ? 0x1fu : 0u);
}

TEST_F(SchedulingTest, GuardedCollectiveForSomeLanes) {
  const auto out = run(kernel(std::string(R"(
  mov.u32 %r0, 0;
  setp.lt.u32 %p1, %t, 8;
  @%p1 redux.sync.add.u32 %r0, %t, 0xff;
)") + kStoreResult),
                       {1}, {32}, 32);
  for (size_t k = 0; k < 32; ++k) EXPECT_EQ(out[k], k < 8 ? 28u : 0u);
}

TEST_F(SchedulingTest, WarpSyncOrdersDivergedLanes) {
  const auto out = run(kernel(std::string(R"(
  .shared .align 4 .b8 area[128];
  mov.u32 %r5, area;
  setp.lt.u32 %p1, %t, 16;
  @%p1 bra LOW;
  shl.b32 %r6, %t, 2;
  add.u32 %r6, %r6, %r5;
  st.shared.u32 [%r6], %t;
  bar.warp.sync 0xffffffff;
  mov.u32 %r0, 0;
  bra DONE;
LOW:
  bar.warp.sync 0xffffffff;
  add.u32 %r6, %t, 16;
  shl.b32 %r6, %r6, 2;
  add.u32 %r6, %r6, %r5;
  ld.shared.u32 %r0, [%r6];
DONE:
)") + kStoreResult),
                       {1}, {32}, 32);
  for (uint32_t k = 0; k < 16; ++k) EXPECT_EQ(out[k], k + 16);
}

TEST_F(SchedulingTest, GridWideBarrier) {
  // As in cooperative groups: the first thread of each block adds its block to the count and waits.
  const auto out = run(kernel(R"(
  mov.u32 %r10, %nctaid.x;
  mov.u32 %r9, 1;
ROUND:
  red.global.add.u32 [%out], 1;
  bar.sync 0;
  setp.ne.u32 %p1, %t, 0;
  @%p1 bra AFTER;
  membar.gl;
  atom.global.add.u32 %r1, [%out+4], 1;
  mul.lo.u32 %r2, %r10, %r9;
WAIT:
  ld.acquire.gpu.global.u32 %r3, [%out+4];
  setp.lt.u32 %p2, %r3, %r2;
  @%p2 bra WAIT;
AFTER:
  bar.sync 0;
  ld.volatile.global.u32 %r4, [%out];
  mov.u32 %r5, %ntid.x;
  mul.lo.u32 %r6, %r5, %r10;
  mul.lo.u32 %r6, %r6, %r9;
  setp.lt.u32 %p3, %r4, %r6;
  @%p3 red.global.add.u32 [%out+8], 1;
  add.u32 %r9, %r9, 1;
  setp.le.u32 %p4, %r9, 5;
  @%p4 bra ROUND;
)"),
                       {300}, {64}, 3, true);
  EXPECT_EQ(out[0], 300u * 64 * 5);
  EXPECT_EQ(out[2], 0u) << "a thread passed the barrier before all had arrived";
}

TEST_F(SchedulingTest, CooperativeLaunchProvidesAWorkspace) {
  const auto out = run(kernel(R"(
  mov.u32 %r1, %envreg1;
  mov.u32 %r2, %envreg2;
  mov.b64 %rd1, {%r2, %r1};
  atom.global.add.u32 %r3, [%rd1+4], 1;
  red.global.max.u32 [%out], %r3;
)"),
                       {8}, {1}, 1, true);
  EXPECT_EQ(out[0], 7u);
}

TEST_F(SchedulingTest, RecursionAndDivergedIndirectCalls) {
  device_.load_body(R"(
.func (.param .b32 ret) fib(.param .b32 n);
.func (.param .b32 ret) twice(.param .b32 n) {
  .reg .b32 %r<3>;
  ld.param.u32 %r1, [n];
  add.u32 %r2, %r1, %r1;
  st.param.b32 [ret], %r2;
  ret;
}
.global .align 8 .u64 table[2] = {fib, twice};
.func (.param .b32 ret) fib(.param .b32 n) {
  .reg .b32 %r<8>;
  .reg .pred %p1;
  ld.param.u32 %r1, [n];
  setp.lt.u32 %p1, %r1, 2;
  @%p1 bra BASE;
  sub.u32 %r2, %r1, 1;
  {
  .param .b32 a;
  .param .b32 r;
  st.param.b32 [a], %r2;
  call.uni (r), fib, (a);
  ld.param.b32 %r3, [r];
  }
  sub.u32 %r4, %r1, 2;
  {
  .param .b32 a;
  .param .b32 r;
  st.param.b32 [a], %r4;
  call (r), fib, (a);
  ld.param.b32 %r5, [r];
  }
  add.u32 %r1, %r3, %r5;
BASE:
  st.param.b32 [ret], %r1;
  ret;
})" + kernel(std::string(R"(
  and.b32 %r1, %t, 1;
  mul.wide.u32 %rd1, %r1, 8;
  mov.u64 %rd2, table;
  add.u64 %rd2, %rd2, %rd1;
  ld.global.u64 %rd3, [%rd2];
  shr.u32 %r2, %t, 2;
  proto: .callprototype (.param .b32 _) _ (.param .b32 _);
  {
  .param .b32 a;
  .param .b32 r;
  st.param.b32 [a], %r2;
  call (r), %rd3, (a), proto;
  ld.param.b32 %r0, [r];
  }
)") + kStoreResult));
  auto* out = device_.array<uint32_t>(64);
  const Fault fault = device_.launch("kernel", {1}, {64}, Arguments() << out);
  ASSERT_EQ(fault.code, CUDA_SUCCESS) << fault.message;
  uint32_t fib[17] = {0, 1};
  for (int k = 2; k < 17; ++k) fib[k] = fib[k - 1] + fib[k - 2];
  for (uint32_t k = 0; k < 64; ++k) EXPECT_EQ(out[k], (k & 1) != 0 ? k / 4 * 2 : fib[k / 4]) << k;
}

TEST_F(SchedulingTest, LocalVariablesOfCalledFunctionsAreAligned) {
  // The results are the bits of each variable's address that its alignment requires to be 0.
  const auto out = run(R"(
.func (.param .b32 ret) inner() {
  .local .align 256 .b8 wide[256];
  .reg .b32 %r<2>;
  mov.u32 %r0, wide;
  and.b32 %r1, %r0, 255;
  st.param.b32 [ret], %r1;
  ret;
}
.func (.param .b32 ret) outer() {
  .local .align 64 .b8 line[64];
  .reg .b32 %r<3>;
  .param .b32 r;
  call (r), inner, ();
  ld.param.b32 %r0, [r];
  mov.u32 %r1, line;
  and.b32 %r2, %r1, 63;
  or.b32 %r0, %r0, %r2;
  st.param.b32 [ret], %r0;
  ret;
})" + kernel(std::string(R"(
  .local .align 8 .b8 own[8];
  .param .b32 r;
  call (r), outer, ();
  ld.param.b32 %r0, [r];
)") + kStoreResult),
                       {1}, {32}, 32);
  EXPECT_EQ(out, std::vector<uint32_t>(32, 0));
}

TEST_F(SchedulingTest, ThreadsExitFromInsideCalls) {
  const auto out = run(R"(
.func leave_or_stay(.param .b32 t) {
  .reg .b32 %r1;
  .reg .pred %p1;
  ld.param.u32 %r1, [t];
  setp.lt.u32 %p1, %r1, 10;
  @%p1 exit;
  ret;
})" + kernel(std::string(R"(
  .param .b32 a;
  st.param.b32 [a], %t;
  call leave_or_stay, (a);
  bar.sync 0;
  activemask.b32 %r0;
)") + kStoreResult),
                       {1}, {64}, 64);
  for (size_t k = 0; k < 64; ++k) EXPECT_EQ(out[k], k < 10 ? 0u : k < 32 ? 0xfffffc00u : ~0u);
}

// Before sm_70, a collective's members were the active lanes.
TEST_F(SchedulingTest, CollectivesWithoutMembers) {
  const auto out = run(kernel(std::string(R"(
  setp.ge.u32 %p1, %t, 12;
  @%p1 bra HIGH;
  setp.lt.u32 %p2, %t, 3;
  vote.ballot.b32 %r0, %p2;
  bra DONE;
HIGH:
  shfl.idx.b32 %r0, %t, 20, 31;
DONE:
)") + kStoreResult),
                       {1}, {32}, 32);
  for (size_t k = 0; k < 32; ++k) EXPECT_EQ(out[k], k < 12 ? 7u : 20u);
}

TEST_F(SchedulingTest, DeadlockHangsUntilStoppedAndLeavesTheWorkersFree) {
  device_.load_body(kernel(R"(
  setp.lt.u32 %p1, %t, 32;
  @%p1 bra LOW;
  bar.sync 1;
  ret;
LOW:
  bar.sync 0;
)") + ".visible .entry quick(.param .u64 p) { ret; }");
  std::atomic<bool> stop{false};
  std::atomic<bool> returned{false};
  Fault fault;
  std::thread stuck([&] {
    fault = device_.launch("kernel", {20}, {64}, Arguments() << uint64_t{0}, 0, false, &stop);
    returned = true;
  });
  for (int k = 0; k < 50; ++k) {
    EXPECT_EQ(device_.launch("quick", {10}, {32}, Arguments() << uint64_t{0}).code, CUDA_SUCCESS);
  }
  EXPECT_FALSE(returned);
  stop = true;
  stuck.join();
  EXPECT_EQ(fault.code, CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(SchedulingTest, EndlessLoopCanBeStopped) {
  device_.load_body(kernel("FOREVER:\n  bra FOREVER;"));
  std::atomic<bool> stop{false};
  std::thread stopper([&] { stop = true; });
  EXPECT_EQ(device_.launch("kernel", {4}, {64}, Arguments() << uint64_t{0}, 0, false, &stop).code,
            CUDA_ERROR_LAUNCH_FAILED);
  stopper.join();
}

TEST_F(SchedulingTest, SpecialRegistersInThreeDimensions) {
  const auto out = run(kernel(R"(
  mov.u32 %r1, %tid.y;
  mov.u32 %r2, %tid.z;
  mov.u32 %r3, %ctaid.y;
  mov.u32 %r4, %ctaid.z;
  mov.u32 %r5, %nctaid.x;
  mov.u32 %r6, %nctaid.y;
  mad.lo.u32 %r7, %r4, %r6, %r3;
  mad.lo.u32 %r7, %r7, %r5, %b;
  mov.u32 %r8, %ntid.y;
  mov.u32 %r9, %ntid.x;
  mov.u32 %r10, %ntid.z;
  mad.lo.u32 %r11, %r2, %r8, %r1;
  mad.lo.u32 %r11, %r11, %r9, %t;
  mul.lo.u32 %r12, %r8, %r9;
  mul.lo.u32 %r12, %r12, %r10;
  mad.lo.u32 %r13, %r7, %r12, %r11;
  mul.wide.u32 %rd1, %r13, 4;
  add.u64 %rd1, %rd1, %out;
  atom.global.add.u32 %r14, [%rd1], 1;
)"),
                       {3, 2, 4}, {5, 3, 2}, 3 * 2 * 4 * 30);
  for (const uint32_t v : out) EXPECT_EQ(v, 1u);
}

}  // namespace
}  // namespace softgpu::exec
