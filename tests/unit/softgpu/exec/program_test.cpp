// Linking, placement of variables, and the information about kernels and globals for the driver.
#include "softgpu/exec/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/softgpu/exec/test_device.h"

namespace softgpu::exec {
namespace {

constexpr char kHeader[] = ".version 8.0\n.target sm_75\n.address_size 64\n";

uint32_t word_at(const Program& program, const std::string& name, size_t index = 0) {
  const Global* global = program.find_global(name);
  EXPECT_NE(global, nullptr) << name;
  uint32_t value = 0;
  if (global != nullptr)
    std::memcpy(&value, reinterpret_cast<const std::byte*>(global->address) + 4 * index,
                sizeof value);
  return value;
}

TEST(ProgramTest, GlobalsAreInitialised) {
  TestDevice device;
  device.load(std::string(kHeader) + R"(
.visible .global .align 4 .u32 number = 7;
.visible .global .align 4 .b8 bytes[8] = {1, 2, 3, 4, 5};
.visible .global .align 8 .u64 pointer = number;
.visible .global .align 8 .u64 inside = generic(bytes+4);
.visible .global .attribute(.managed) .align 4 .u32 shared_with_host = 3;
.const .align 4 .u32 constant = 9;
)");
  const Program& program = device.program();
  EXPECT_EQ(word_at(program, "number"), 7u);
  EXPECT_EQ(word_at(program, "bytes"), 0x04030201u);
  EXPECT_EQ(word_at(program, "bytes", 1), 5u);
  EXPECT_EQ(word_at(program, "constant"), 9u);
  uint64_t pointers[2];
  std::memcpy(&pointers[0], reinterpret_cast<void*>(program.find_global("pointer")->address), 8);
  std::memcpy(&pointers[1], reinterpret_cast<void*>(program.find_global("inside")->address), 8);
  EXPECT_EQ(pointers[0], program.find_global("number")->address);
  EXPECT_EQ(pointers[1], program.find_global("bytes")->address + 4);
  EXPECT_TRUE(program.find_global("shared_with_host")->managed);
  EXPECT_FALSE(program.find_global("number")->managed);
  EXPECT_EQ(program.find_global("bytes")->size_bytes, 8u);
  EXPECT_EQ(program.find_global("nothing"), nullptr);
}

TEST(ProgramTest, MemoryIsReleasedWithTheProgram) {
  TestDevice device;
  device.load(std::string(kHeader) +
              ".visible .global .align 4 .u32 a[1000];\n.const .align 4 .u32 b;\n");
  EXPECT_EQ(device.blocks_allocated(), 2u);
  device.load(std::string(kHeader));
  EXPECT_EQ(device.blocks_allocated(), 0u);
}

TEST(ProgramTest, KernelsTellWhatTheyNeed) {
  TestDevice device;
  device.load(std::string(kHeader) + R"(
.shared .align 4 .b8 common_area[100];
.extern .shared .align 16 .b8 dynamic_area[];
.func helper() { .reg .b32 %r1; .local .align 8 .b8 l[24]; mov.u32 %r1, common_area; ret; }
.visible .entry first(.param .u32 a, .param .u64 b, .param .align 4 .b8 c[12])
.maxntid 128, 2, 1
{
  .shared .align 8 .b8 own[64];
  call helper, ();
  ret;
}
.visible .entry second() .reqntid 64 { ret; }
)");
  const Kernel* first = device.program().find_kernel("first");
  ASSERT_NE(first, nullptr);
  ASSERT_EQ(first->parameters.size(), 3u);
  EXPECT_EQ(first->parameters[1].offset_bytes, 8u);
  EXPECT_EQ(first->parameters[2].size_bytes, 12u);
  EXPECT_EQ(first->parameter_bytes, 28u);
  EXPECT_EQ(first->static_shared_bytes, 168u) << "100 bytes, 4 of padding, 64 bytes";
  EXPECT_GE(first->local_bytes, 24u);
  EXPECT_EQ(first->max_threads_per_block, 256u);
  EXPECT_EQ(first->ptx_version, 75u);
  const Kernel* second = device.program().find_kernel("second");
  EXPECT_EQ(second->static_shared_bytes, 0u);
  EXPECT_EQ(second->max_threads_per_block, 1024u) << ".reqntid sets no maximum";
  EXPECT_EQ(second->required_block[0], 64u);
  EXPECT_EQ(device.program().kernels().size(), 2u);
  EXPECT_EQ(device.program().find_kernel("helper"), nullptr);
}

// As nvcc -rdc=true emits it: declarations in one unit, definitions in another.
TEST(ProgramTest, UnitsAreLinked) {
  TestDevice device;
  device.load({std::string(kHeader) + R"(
.extern .func (.param .b32 r) scale(.param .b32 x);
.extern .global .align 4 .u32 factor;
.global .align 4 .u32 mine = 5;
.visible .entry kernel(.param .u64 p) {
  .reg .b64 %rd1;
  .reg .b32 %r<4>;
  .param .b32 x;
  .param .b32 r;
  ld.param.u64 %rd1, [p];
  ld.global.u32 %r1, [factor];
  ld.global.u32 %r2, [mine];
  add.u32 %r1, %r1, %r2;
  st.param.b32 [x], %r1;
  call.uni (r), scale, (x);
  ld.param.b32 %r3, [r];
  st.global.u32 [%rd1], %r3;
  ret;
})",
               std::string(kHeader) + R"(
.visible .global .align 4 .u32 factor = 10;
.global .align 4 .u32 mine = 1000;
.visible .func (.param .b32 r) scale(.param .b32 x) {
  .reg .b32 %r<4>;
  ld.param.u32 %r1, [x];
  ld.global.u32 %r2, [mine];
  mul.lo.u32 %r3, %r1, %r2;
  st.param.b32 [r], %r3;
  ret;
})"});
  auto* out = device.array<uint32_t>(1);
  EXPECT_EQ(device.launch("kernel", {1}, {1}, Arguments() << out).code, CUDA_SUCCESS);
  EXPECT_EQ(*out, 15000u) << "each unit sees its own static variable";
}

TEST(ProgramTest, WeakDefinitionsGiveWay) {
  const auto unit = [](const std::string& linkage, int value) {
    return std::string(kHeader) + linkage + " .func (.param .b32 r) f() { st.param.b32 [r], " +
           std::to_string(value) + "; ret; }\n";
  };
  const std::string entry = std::string(kHeader) + R"(
.extern .func (.param .b32 r) f();
.visible .entry kernel(.param .u64 p) {
  .reg .b64 %rd1;
  .reg .b32 %r1;
  .param .b32 r;
  ld.param.u64 %rd1, [p];
  call (r), f, ();
  ld.param.b32 %r1, [r];
  st.global.u32 [%rd1], %r1;
  ret;
})";
  TestDevice device;
  auto* out = device.array<uint32_t>(1);
  device.load({unit(".weak", 1), unit(".visible", 2), entry});
  device.launch("kernel", {1}, {1}, Arguments() << out);
  EXPECT_EQ(*out, 2u);
  device.load({unit(".weak", 3), unit(".weak", 4), entry});
  device.launch("kernel", {1}, {1}, Arguments() << out);
  EXPECT_EQ(*out, 3u);
  EXPECT_EQ(device.try_load({unit(".visible", 1), unit(".visible", 2), entry}).code(),
            rcuda::Code::kInvalidArgument);
}

TEST(ProgramTest, WeakAndCommonVariablesGiveWay) {
  const auto unit = [](const std::string& linkage, const std::string& initial) {
    return std::string(kHeader) + linkage + " .global .u32 v" + initial + ";\n";
  };
  const std::string strong = unit(".visible", " = 7");
  TestDevice device;
  const auto value = [&] {
    return *reinterpret_cast<const uint32_t*>(device.program().find_global("v")->address);
  };
  for (const std::string& other : {unit(".weak", " = 1"), unit(".common", "")}) {
    device.load({other, strong});
    EXPECT_EQ(value(), 7u) << other;
    device.load({strong, other});
    EXPECT_EQ(value(), 7u) << other;
  }
  device.load({unit(".weak", " = 1"), unit(".weak", " = 2")});
  EXPECT_EQ(value(), 1u);
  EXPECT_EQ(device.try_load({strong, unit(".visible", "")}).code(), rcuda::Code::kInvalidArgument);
}

TEST(ProgramTest, UnresolvedSymbolsAreNamed) {
  TestDevice device;
  rcuda::Status status =
      device.try_load({std::string(kHeader) +
                       ".extern .func lost();\n.visible .entry k() { call lost, (); ret; }"});
  EXPECT_EQ(status.code(), rcuda::Code::kNotFound);
  EXPECT_THAT(status.message(), testing::HasSubstr("'lost'"));
  status = device.try_load(
      {std::string(kHeader) + ".extern .global .u32 gone;\n.visible .global .u64 p = gone;"});
  EXPECT_EQ(status.code(), rcuda::Code::kNotFound);
  EXPECT_THAT(status.message(), testing::HasSubstr("'gone'"));
}

TEST(ProgramTest, DeviceRuntimeIsMissedWhereItIsCalled) {
  TestDevice device;
  device.load(std::string(kHeader) + R"(
.extern .func (.param .b32 r) cudaDeviceSynchronize();
.extern .func (.param .b32 r) __cuda_syscall_cnpv2GetLastError();
.extern .func (.param .b32 r) cnpGetLastError();
.visible .entry parent() { .param .b32 r; call (r), cudaDeviceSynchronize, (); ret; }
.visible .entry system() { .param .b32 r; call (r), __cuda_syscall_cnpv2GetLastError, (); ret; }
.visible .entry older() { .param .b32 r; call (r), cnpGetLastError, (); ret; }
.visible .entry other() { ret; }
)");
  for (const char* caller : {"parent", "system", "older"}) {
    EXPECT_NE(device.program().find_kernel(caller)->unsupported, "") << caller;
  }
  EXPECT_EQ(device.launch("other", {1}, {1}, Arguments()).code, CUDA_SUCCESS);
}

TEST(ProgramTest, DynamicSharedMemoryLiesBehindTheStaticOne) {
  TestDevice device;
  device.load(std::string(kHeader) + R"(
.extern .shared .align 16 .b8 dynamic_area[];
.visible .entry kernel(.param .u64 p) {
  .shared .align 4 .b8 own[64];
  .reg .b64 %rd<3>;
  .reg .b32 %r<8>;
  .reg .pred %p1;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x;
  shl.b32 %r2, %r1, 2;
  mov.u32 %r3, dynamic_area;
  add.u32 %r4, %r3, %r2;
  st.shared.u32 [%r4], %r1;
  mov.u32 %r5, own;
  st.shared.u32 [%r5+60], 1;
  bar.sync 0;
  xor.b32 %r6, %r2, 4;
  add.u32 %r4, %r3, %r6;
  ld.shared.u32 %r7, [%r4];
  cvt.u64.u32 %rd2, %r2;
  add.u64 %rd2, %rd1, %rd2;
  st.global.u32 [%rd2], %r7;
  ret;
})");
  auto* out = device.array<uint32_t>(64);
  EXPECT_EQ(device.launch("kernel", {1}, {64}, Arguments() << out, 256).code, CUDA_SUCCESS);
  for (uint32_t k = 0; k < 64; ++k) EXPECT_EQ(out[k], k ^ 1);
  EXPECT_EQ(device.launch("kernel", {1}, {64}, Arguments() << out, 252).code,
            CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(ProgramTest, OutOfMemory) {
  auto module = std::make_unique<ptx::Module>();
  ptx::Variable variable;
  variable.name = "v";
  variable.size_bytes = 100;
  module->variables.push_back(variable);
  DeviceAllocator allocator;
  allocator.allocate = [](size_t, bool) { return CUdeviceptr{0}; };
  allocator.release = [](CUdeviceptr) { FAIL(); };
  std::vector<std::unique_ptr<ptx::Module>> units;
  units.push_back(std::move(module));
  EXPECT_EQ(load(std::move(units), allocator).status().code(), rcuda::Code::kOutOfMemory);
}

}  // namespace
}  // namespace softgpu::exec
