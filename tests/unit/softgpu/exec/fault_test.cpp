// Faults that end a grid: the error code, and whether the message names the culprit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/softgpu/exec/test_device.h"

namespace softgpu::exec {
namespace {

using testing::HasSubstr;

std::string kernel(const std::string& body) {
  return R"(
.visible .entry kernel(.param .u64 p)
{
  .reg .b64 %a, %rd<8>;
  .reg .b32 %t, %r<16>;
  .reg .pred %p<4>;
  ld.param.u64 %a, [p];
  mov.u32 %t, %tid.x;
)" + body +
         "\n  ret;\n}\n";
}

class FaultTest : public testing::Test {
 protected:
  Fault run(const std::string& body, uint64_t argument, const std::string& before = "",
            Dim3 grid = {1}, Dim3 block = {64}) {
    device_.load_body(before + kernel(body));
    return device_.launch("kernel", grid, block, Arguments() << argument);
  }
  TestDevice device_;
};

TEST_F(FaultTest, IllegalAddressNamesKernelThreadAddressAndLine) {
  auto* data = device_.array<uint32_t>(64);
  const Fault fault = run(R"(
  setp.ne.u32 %p1, %t, 37;
  mul.wide.u32 %rd1, %t, 4;
  add.u64 %rd1, %rd1, %a;
  @!%p1 add.u64 %rd1, %rd1, 0x1000000;
  st.global.u32 [%rd1], %t;)",
                          reinterpret_cast<uint64_t>(data));
  EXPECT_EQ(fault.code, CUDA_ERROR_ILLEGAL_ADDRESS);
  char address[32];
  std::snprintf(address, sizeof address, "%p",
                static_cast<void*>(reinterpret_cast<std::byte*>(data + 37) + 0x1000000));
  EXPECT_THAT(fault.message, HasSubstr("kernel 'kernel'"));
  EXPECT_THAT(fault.message, HasSubstr("block [0,0,0], thread [37,0,0]"));
  EXPECT_THAT(fault.message, HasSubstr(address));
  EXPECT_THAT(fault.message, HasSubstr("PTX line 17"));
}

TEST_F(FaultTest, NullAndHostAddresses) {
  EXPECT_EQ(run("  ld.global.u32 %r1, [%a];", 0).code, CUDA_ERROR_ILLEGAL_ADDRESS);
  uint32_t on_the_stack = 0;
  EXPECT_EQ(run("  ld.u32 %r1, [%a];", reinterpret_cast<uint64_t>(&on_the_stack)).code,
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(run("  ld.u32 %r1, [%a];", ~uint64_t{3}).code, CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FaultTest, OneElementBeyondTheEnd) {
  auto* data = device_.array<uint32_t>(63);
  const std::string body = "  mul.wide.u32 %rd1, %t, 4;\n  add.u64 %rd1, %rd1, %a;\n  ";
  EXPECT_EQ(run(body + "ld.global.u32 %r1, [%rd1];", reinterpret_cast<uint64_t>(data)).code,
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(
      run(body + "ld.global.u32 %r1, [%rd1];", reinterpret_cast<uint64_t>(data), "", {1}, {63})
          .code,
      CUDA_SUCCESS);
}

TEST_F(FaultTest, AccessToReleasedMemory) {
  const CUdeviceptr data = device_.allocate(4096);
  EXPECT_EQ(run("  ld.global.u32 %r1, [%a];", data).code, CUDA_SUCCESS);
  ASSERT_TRUE(device_.memory().remove(data));
  EXPECT_EQ(device_.launch("kernel", {1}, {1}, Arguments() << data).code,
            CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_TRUE(device_.memory().add(data, 4096));
  EXPECT_EQ(device_.launch("kernel", {1}, {1}, Arguments() << data).code, CUDA_SUCCESS);
}

TEST_F(FaultTest, Misaligned) {
  const CUdeviceptr data = device_.allocate(4096);
  for (const char* access :
       {"ld.global.u32 %r1, [%a+2]", "st.global.u16 [%a+1], 3", "ld.global.u64 %rd1, [%a+4]",
        "ld.global.v2.u32 {%r1, %r2}, [%a+4]", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%a+8]",
        "atom.global.add.u32 %r1, [%a+6], 1", "red.global.add.u64 [%a+4], 1"}) {
    const Fault fault = run(std::string("  ") + access + ";", data);
    EXPECT_EQ(fault.code, CUDA_ERROR_MISALIGNED_ADDRESS) << access;
    EXPECT_THAT(fault.message, HasSubstr("misaligned address")) << access;
  }
}

TEST_F(FaultTest, SharedAndLocalBounds) {
  const std::string shared = "  .shared .align 16 .b8 s[256];\n  mov.u32 %r5, s;\n  ";
  EXPECT_EQ(run(shared + "st.shared.u32 [%r5+252], 1;", 0).code, CUDA_SUCCESS);
  EXPECT_EQ(run(shared + "st.shared.u32 [%r5+256], 1;", 0).code, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(run(shared + "ld.shared.u32 %r1, [%r5+-4];", 0).code, CUDA_ERROR_ILLEGAL_ADDRESS);
  const std::string local = "  .local .align 16 .b8 l[64];\n  mov.u64 %rd5, l;\n  ";
  EXPECT_EQ(run(local + "st.local.u32 [%rd5+60], 1;", 0).code, CUDA_SUCCESS);
  EXPECT_EQ(run(local + "st.local.u32 [%rd5+64], 1;", 0).code, CUDA_ERROR_ILLEGAL_ADDRESS);
  const std::string generic = local + "cvta.local.u64 %rd5, %rd5;\n  ";
  EXPECT_EQ(run(generic + "st.u32 [%rd5+60], 1;", 0).code, CUDA_SUCCESS);
  EXPECT_EQ(run(generic + "st.u32 [%rd5+64], 1;", 0).code, CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FaultTest, AddressesBelowTheirWindow) {
  const std::string variables = "  .shared .align 16 .b8 s[256];\n  .local .align 16 .b8 l[256];\n";
  for (const char* access :
       {"ld.shared.u32 %r1, [s+-4]", "st.shared.u32 [s+-4], 1", "st.shared.v2.u32 [s+-8], {%t, %t}",
        "red.shared.add.u32 [s+-4], 1", "ld.local.u32 %r1, [l+-4]", "st.local.u32 [l+-4], 1",
        "ld.param.u32 %r1, [p+-4]"}) {
    EXPECT_EQ(run(variables + access + ";", 0).code, CUDA_ERROR_ILLEGAL_ADDRESS) << access;
  }
  // One element per lane: ascending, descending, and the same for all; all of them below the
  // variable.
  for (const std::string space : {"shared", "local"}) {
    for (const char* index : {"sub.s32 %r1, %t, 32", "sub.s32 %r1, -1, %t", "mov.s32 %r1, -1"}) {
      const std::string body = variables + "  mov.u64 %rd1, " + space[0] + ";\n  " + index +
                               ";\n  mad.wide.s32 %rd1, %r1, 4, %rd1;\n  st." + space +
                               ".u32 [%rd1], %t;";
      EXPECT_EQ(run(body, 0, "", {1}, {32}).code, CUDA_ERROR_ILLEGAL_ADDRESS)
          << space << ": " << index;
      EXPECT_EQ(run(body, 0, "", {1}, {5}).code, CUDA_ERROR_ILLEGAL_ADDRESS)
          << space << ", some lanes: " << index;
    }
  }
}

TEST_F(FaultTest, WritesToConstantsParametersAndReadOnlyMemory) {
  const std::string before = ".const .align 4 .b32 c = 7;\n";
  EXPECT_EQ(
      run("  mov.u64 %rd1, c;\n  ld.const.u32 %r1, [c];\n  ld.u32 %r1, [%rd1];", 0, before).code,
      CUDA_SUCCESS);
  const Fault fault = run("  mov.u64 %rd1, c;\n  st.u32 [%rd1], 1;", 0, before);
  EXPECT_EQ(fault.code, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(fault.message, HasSubstr("write to read-only memory"));
  EXPECT_EQ(run("  mov.u64 %rd1, p;\n  cvta.param.u64 %rd1, %rd1;\n  ld.u64 %rd2, [%rd1];", 0).code,
            CUDA_SUCCESS);
  EXPECT_EQ(run("  mov.u64 %rd1, p;\n  cvta.param.u64 %rd1, %rd1;\n  st.u64 [%rd1], %rd1;", 0).code,
            CUDA_ERROR_ILLEGAL_ADDRESS);
  const CUdeviceptr read_only = device_.allocate(64, Access::kRead);
  EXPECT_EQ(run("  ld.global.u32 %r1, [%a];", read_only).code, CUDA_SUCCESS);
  EXPECT_EQ(run("  st.global.u32 [%a], 1;", read_only).code, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(run("  red.global.add.u32 [%a], 1;", read_only).code, CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FaultTest, RunawayRecursion) {
  const Fault fault = run("  call forever, ();", 0, R"(
.func forever() {
  .local .align 8 .b8 l[40];
  call forever, ();
  ret;
})");
  EXPECT_EQ(fault.code, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(fault.message, HasSubstr("stack overflow"));
}

TEST_F(FaultTest, TrapAndBadJumps) {
  EXPECT_EQ(run("  setp.eq.u32 %p1, %t, 5;\n  @%p1 trap;", 0).code, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(
      run("  ts: .branchtargets T0, T1;\n  mov.u32 %r1, 2;\n  brx.idx %r1, ts;\nT0:\nT1:", 0).code,
      CUDA_ERROR_ILLEGAL_INSTRUCTION);
  EXPECT_EQ(run("  pr: .callprototype _ ();\n  call %a, (), pr;", 0x1234).code,
            CUDA_ERROR_ILLEGAL_INSTRUCTION);
  EXPECT_EQ(run("  mov.u32 %r1, 16;\n  bar.sync %r1;", 0).code, CUDA_ERROR_ILLEGAL_INSTRUCTION);
}

TEST_F(FaultTest, OtherBlocksEndWithTheGrid) {
  auto* count = device_.array<uint32_t>(1);
  *count = 0;
  const Fault fault =
      run("  mov.u32 %r1, %ctaid.x;\n  setp.eq.u32 %p1, %r1, 0;\n  @%p1 trap;\nL:\n  "
          "ld.volatile.global.u32 %r2, [%a];\n  bra L;",
          reinterpret_cast<uint64_t>(count), "", {1000}, {32});
  EXPECT_EQ(fault.code, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(device_.launch("kernel", {1}, {1}, Arguments() << uint64_t{0}).code,
            CUDA_ERROR_LAUNCH_FAILED)
      << "and the next grid runs";
}

TEST_F(FaultTest, UnsupportedFormsFailWhereTheyAreReachable) {
  device_.load_body(R"(
.func helper() { tensormap.replace.tile.rank.global.b1024.b32 [0], 1; ret; }
.visible .entry clean(.param .u64 p) { ret; }
.visible .entry direct(.param .u64 p) { .reg .b32 %r1; wmma.fancy.b32 %r1, %r1; ret; }
.visible .entry indirect(.param .u64 p) { call helper, (); ret; }
)");
  EXPECT_EQ(device_.launch("clean", {1}, {1}, Arguments() << uint64_t{0}).code, CUDA_SUCCESS);
  EXPECT_EQ(device_.program().find_kernel("clean")->unsupported, "");
  EXPECT_THAT(device_.program().find_kernel("direct")->unsupported,
              HasSubstr("wmma.fancy.b32 at line"));
  EXPECT_THAT(device_.program().find_kernel("indirect")->unsupported,
              HasSubstr("tensormap.replace"));
  const Fault fault = device_.launch("direct", {1}, {1}, Arguments() << uint64_t{0});
  EXPECT_EQ(fault.code, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THAT(fault.message, HasSubstr("wmma.fancy.b32"));
}

// The directives that nvcc makes of __cluster_dims__ and __block_size__.
TEST_F(FaultTest, KernelsOfClustersDoNotLaunch) {
  device_.load_body(R"(
.visible .entry wide() .explicitcluster .reqnctapercluster 2, 1, 1 { ret; }
.visible .entry deep() .blocksareclusters .reqntid 32, 1, 1 .reqnctapercluster 1, 1, 3 { ret; }
.visible .entry single() .explicitcluster .reqnctapercluster 1, 1, 1 { ret; }
)");
  EXPECT_EQ(device_.program().find_kernel("wide")->unsupported, ".reqnctapercluster 2, 1, 1");
  for (const char* kernel : {"wide", "deep"}) {
    const Fault fault = device_.launch(kernel, {6}, {32}, Arguments());
    EXPECT_EQ(fault.code, CUDA_ERROR_NOT_SUPPORTED) << kernel;
    EXPECT_THAT(fault.message, HasSubstr(".reqnctapercluster")) << kernel;
  }
  EXPECT_EQ(device_.launch("single", {6}, {32}, Arguments()).code, CUDA_SUCCESS);
}

TEST_F(FaultTest, ModifiersOutsideTheListAreRefused) {
  for (const char* body :
       {"add.rn.u32 %r1, %r2, %r3;", "add.u32 %r1, %r2;", "add.u32 %rd1, %r2, %r3;",
        "ld.global.ca.ca.u32 %r1, [%a];", "mul.u32 %r1, %r2, %r3;", "cvt.s32.f32 %r1, %r2;",
        "cvt.rn.s32.s64 %r1, %rd1;", "setp.equ.u32 %p1, %r1, %r2;",
        "shfl.sync.sideways.b32 %r1, %r2, 1, 31, -1;", "atom.global.mul.u32 %r1, [%a], 1;",
        "st.const.u32 [%a], %r1;", "selp.b32 %r1, %r2, %r3, !%p1;"}) {
    device_.load_body(kernel(std::string("  ") + body));
    EXPECT_NE(device_.program().find_kernel("kernel")->unsupported, "") << body;
  }
}

TEST_F(FaultTest, AssertionPrintsAsCudaDoes) {
  const Fault fault = run(R"(
  .param .b64 a0;
  .param .b64 a1;
  .param .b32 a2;
  .param .b64 a3;
  .param .b64 a4;
  setp.ne.u32 %p1, %t, 33;
  @%p1 bra DONE;
  mov.u64 %rd1, message;
  cvta.global.u64 %rd1, %rd1;
  st.param.b64 [a0], %rd1;
  mov.u64 %rd1, file;
  cvta.global.u64 %rd1, %rd1;
  st.param.b64 [a1], %rd1;
  st.param.b32 [a2], 12;
  mov.u64 %rd1, function;
  cvta.global.u64 %rd1, %rd1;
  st.param.b64 [a3], %rd1;
  st.param.b64 [a4], 1;
  call.uni __assertfail, (a0, a1, a2, a3, a4);
DONE:)",
                          0, R"(
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 message[6] = {120, 32, 60, 32, 49};
.global .align 1 .b8 file[5] = {97, 46, 99, 117};
.global .align 1 .b8 function[9] = {118, 111, 105, 100, 32, 102, 40, 41};
)");
  EXPECT_EQ(fault.code, CUDA_ERROR_ASSERT);
  EXPECT_EQ(device_.take_errors(),
            "a.cu:12: void f(): block: [0,0,0], thread: [33,0,0] Assertion `x < 1` failed.\n");
}

TEST_F(FaultTest, ImpossibleLaunches) {
  device_.load_body(kernel(""));
  EXPECT_EQ(device_.launch("kernel", {0}, {1}, Arguments() << uint64_t{0}).code,
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(device_.launch("kernel", {1}, {1025}, Arguments() << uint64_t{0}).code,
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FaultTest, DeviceHeap) {
  const std::string before = R"(
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 p);
)";
  const auto body = [](const std::string& freed) {
    return R"(
  .param .b64 n;
  .param .b64 r;
  st.param.b64 [n], %a;
  call (r), malloc, (n);
  ld.param.b64 %rd1, [r];
  setp.eq.u64 %p1, %rd1, 0;
  @%p1 trap;
  st.u32 [%rd1], %t;
  ld.u32 %r1, [%rd1];
  setp.ne.u32 %p1, %r1, %t;
  @%p1 trap;
  add.u64 %rd1, %rd1, )" +
           freed + R"(;
  st.param.b64 [n], %rd1;
  call free, (n);)";
  };
  const size_t blocks = device_.blocks_allocated();
  EXPECT_EQ(run(body("0"), 100, before).code, CUDA_SUCCESS);
  EXPECT_EQ(device_.blocks_allocated(), blocks);
  EXPECT_EQ(run(body("0"), 2 << 20, before).code, CUDA_ERROR_LAUNCH_FAILED)
      << "the heap gave more than it has";
  EXPECT_EQ(run(body("8"), 100, before, {1}, {1}).code, CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace softgpu::exec
