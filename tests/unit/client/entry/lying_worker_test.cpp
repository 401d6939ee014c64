// A worker that lies: it returns addresses outside of its windows, or answers that no real worker
// gives. The program must get an error, and its memory must not change. A wrong address also ends
// the session, with a log line that names the server. Each lie is tested in a process of its own,
// which has not called CUDA yet.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <cuda.h>
#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "client/process/process.h"
#include "common/wire/address_ranges.h"
#include "common/wire/codec.h"
#include "tests/support/puppet_server.h"

namespace rcuda::client {
namespace {

using Answer = test::PuppetServer::Answer;
using Command = test::PuppetServer::Command;
using api::Opcode;

constexpr size_t kBytes = 128u << 10;
constexpr uint32_t kMinted = wire::kWorkerMinted | 7;
constexpr char kPtx[] = ".version 8.0\n.target sm_75\n.address_size 64\n";

// The program's own memory, whose address the lies contain.
alignas(65536) std::array<uint64_t, kBytes / 8> table;
uint64_t there() { return reinterpret_cast<uintptr_t>(table.data()); }

// The program: one process with a server that lies.
struct Program {
  explicit Program(const char* medium)
      : puppet(test::PuppetServer::welcome_with(1), transport::find_medium(medium)->traits.reach) {
    table.fill(0x5eed);
    puppet.let_client_leave();
    puppet.on(wire::Custom::kImageQuery, [](const auto&) { return answer(uint64_t{1}); });
    named(Opcode::cuDeviceGetDefaultMemPool);
    named(Opcode::cuLibraryGetModule);
    ::setenv("RCUDA_DEVICES", ("127.0.0.1@" + std::to_string(puppet.port()) + ":0").c_str(), 1);
    ::setenv("RCUDA_TRANSPORT", medium, 1);
    ::setenv("RCUDA_SECURITY", "none", 1);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    CUcontext context;
    check(cuInit(0));
    check(cuDevicePrimaryCtxRetain(&context, 0));
    check(cuCtxSetCurrent(context));
  }

  // The reply is these values, in this order.
  template <typename... Values>
  static Answer answer(const Values&... values) {
    wire::Encoder out;
    (out.value(values), ...);
    return {CUDA_SUCCESS, {out.body().begin(), out.body().end()}};
  }
  template <typename... Values>
  void on(Opcode opcode, const Values&... values) {
    puppet.on(static_cast<uint16_t>(opcode), [=](const Command&) { return answer(values...); });
  }
  void named(Opcode opcode) { on(opcode, kMinted); }
  static void check(CUresult result) {
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "the program got error %d too early\n", result);
    std::_Exit(2);
  }

  CUmodule module() {
    CUmodule loaded = nullptr;
    check(cuModuleLoadData(&loaded, kPtx));
    return loaded;
  }
  CUlibrary library() {
    CUlibrary loaded = nullptr;
    check(cuLibraryLoadData(&loaded, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    return loaded;
  }
  CUmemoryPool pool() {
    CUmemoryPool found = nullptr;
    check(cuDeviceGetDefaultMemPool(&found, 0));
    return found;
  }
  uint64_t window() { return Process::get().sessions().front()->welcome().windows.front().base; }

  test::PuppetServer puppet;
};

struct Lie {
  const char* name;
  std::function<CUresult(Program&)> tell;
  CUresult result = kSessionLost;
  const char* medium = "shm";
};

void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }

// Ends the process: 0 if the program got the error and its memory is as it was.
[[noreturn]] void run(const Lie& lie) {
  auto* const program = new Program(lie.medium);  // not destroyed: the process ends here
  const CUresult result = lie.tell(*program);
  bool is_whole = true;
  for (const uint64_t word : table) is_whole &= word == 0x5eed;
  size_t free = 0, total = 0;
  program->on(Opcode::cuMemGetInfo_v2, size_t{1}, size_t{2});
  const CUresult later = cuMemGetInfo_v2(&free, &total);
  const bool is_lost = lie.result == kSessionLost;
  const bool is_right = result == lie.result && later == (is_lost ? kSessionLost : CUDA_SUCCESS);
  if (!is_right) std::fprintf(stderr, "the program got %d, and later %d\n", result, later);
  if (!is_whole) std::fprintf(stderr, "the program's memory has changed\n");
  std::fflush(stderr);
  std::_Exit(is_right && is_whole ? 0 : 1);
}

class LyingWorkerTest : public ::testing::TestWithParam<Lie> {};

TEST_P(LyingWorkerTest, IsNotBelieved) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process, whose CUDA is not initialised
  const Lie& lie = GetParam();
  const bool ends = lie.result == kSessionLost;
  EXPECT_EXIT(run(lie), ::testing::ExitedWithCode(0),
              ends ? "127.0.0.1:[0-9]+ over [a-z]+ is lost: protocol error: the worker('s reply)? " : "");
}

// ---- addresses ---------------------------------------------------------------------------------

CUresult plain(Program& program) {
  CUdeviceptr got = 0;
  program.on(Opcode::cuMemAlloc_v2, there());
  return cuMemAlloc_v2(&got, kBytes);
}

CUresult beyond_the_window(Program& program) {
  CUdeviceptr got = 0;
  program.on(Opcode::cuMemAlloc_v2, program.window() + wire::kBaseBytes - kBytes / 2);
  return cuMemAlloc_v2(&got, kBytes);
}

CUresult pitched(Program& program) {
  CUdeviceptr got = 0;
  size_t pitch = 0;
  program.on(Opcode::cuMemAllocPitch_v2, program.window(), size_t{1} << 61);
  return cuMemAllocPitch_v2(&got, &pitch, 64, 16, 4);
}

CUresult narrow_pitch(Program& program) {
  CUdeviceptr got = 0;
  size_t pitch = 0;
  program.on(Opcode::cuMemAllocPitch_v2, program.window(), size_t{8});
  return cuMemAllocPitch_v2(&got, &pitch, 64, 16, 4);
}

CUresult in_stream_order(Program& program) {
  CUdeviceptr got = 0;
  program.on(Opcode::cuMemAllocAsync, there());
  return cuMemAllocAsync(&got, kBytes, nullptr);
}

// The program has registered its memory, and the memory stays registered.
CUresult in_place_of_host_memory(Program& program) {
  CUdeviceptr got = 0;
  unsigned type = 0;
  Program::check(cuMemHostRegister_v2(table.data(), kBytes, CU_MEMHOSTREGISTER_PORTABLE));
  program.on(Opcode::cuMemAllocAsync, there());
  const CUresult result = cuMemAllocAsync(&got, kBytes, nullptr);
  Program::check(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, there()));
  return type == CU_MEMORYTYPE_HOST ? result : CUDA_ERROR_UNKNOWN;
}

CUresult from_pool(Program& program) {
  CUdeviceptr got = 0;
  const CUmemoryPool pool = program.pool();
  program.on(Opcode::cuMemAllocFromPoolAsync, there());
  return cuMemAllocFromPoolAsync(&got, kBytes, pool, nullptr);
}

CUresult imported_from_pool(Program& program) {
  CUdeviceptr got = 0;
  CUmemPoolPtrExportData data{};
  const CUmemoryPool pool = program.pool();
  program.on(Opcode::rcuda_pool_import_pointer, there(), kBytes);
  return cuMemPoolImportPointer(&got, pool, &data);
}

CUresult managed(Program& program) {
  CUdeviceptr got = 0;
  program.on(Opcode::cuMemAllocManaged, there());
  return cuMemAllocManaged(&got, kBytes, CU_MEM_ATTACH_GLOBAL);
}

CUresult variable(Program& program, unsigned is_managed) {
  CUdeviceptr got = 0;
  size_t bytes = 0;
  const CUmodule module = program.module();
  program.on(Opcode::rcuda_module_global, there(), size_t{64}, is_managed);
  return cuModuleGetGlobal_v2(&got, &bytes, module, "variable");
}

// Only the first byte of the variable is in the window.
CUresult huge_variable(Program& program) {
  CUdeviceptr got = 0;
  size_t bytes = 0;
  const CUmodule module = program.module();
  program.on(Opcode::rcuda_module_global, program.window(), ~size_t{0}, 1u);
  return cuModuleGetGlobal_v2(&got, &bytes, module, "variable");
}

CUresult variable_of_library(Program& program) {
  CUdeviceptr got = 0;
  size_t bytes = 0;
  const CUlibrary library = program.library();
  program.on(Opcode::cuLibraryGetGlobal, there(), size_t{64});
  return cuLibraryGetGlobal(&got, &bytes, library, "variable");
}

CUresult managed_of_library(Program& program) {
  CUdeviceptr got = 0;
  size_t bytes = 0;
  const CUlibrary library = program.library();
  program.on(Opcode::cuLibraryGetManaged, there(), size_t{64});
  return cuLibraryGetManaged(&got, &bytes, library, "variable");
}

CUresult opened(Program& program) {
  CUdeviceptr got = 0;
  program.on(Opcode::cuIpcOpenMemHandle_v2, there());
  return cuIpcOpenMemHandle_v2(&got, {}, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

CUresult opened_of_any_size(Program& program) {
  CUdeviceptr got = 0;
  program.on(Opcode::cuIpcOpenMemHandle_v2, program.window());
  program.on(Opcode::cuMemGetAddressRange_v2, program.window(), ~size_t{0});
  return cuIpcOpenMemHandle_v2(&got, {}, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

CUresult reserved(Program& program) {
  CUdeviceptr got = 0;
  program.on(Opcode::cuMemAddressReserve, there());
  return cuMemAddressReserve(&got, kBytes, 0, 0, 0);
}

CUresult mapped(Program& program) {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  Program::check(cuMemCreate(&handle, kBytes, &properties, 0));
  (void)program;
  return cuMemMap(there(), kBytes, 0, handle, 0);
}

CUresult range_of_mapped(Program& program) {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  Program::check(cuMemCreate(&handle, kBytes, &properties, 0));
  Program::check(cuMemMap(program.window(), kBytes, 0, handle, 0));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  program.on(Opcode::cuMemGetAddressRange_v2, there(), kBytes);
  return cuMemGetAddressRange_v2(&base, &bytes, program.window());
}

CUresult of_graph(Program& program) {
  CUgraph graph;
  CUgraphNode node;
  Program::check(cuGraphCreate(&graph, 0));
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  parameters.bytesize = kBytes;
  program.puppet.on(static_cast<uint16_t>(Opcode::cuGraphAddMemAllocNode), [](const Command&) {
    CUDA_MEM_ALLOC_NODE_PARAMS answered{};
    answered.poolProps.location = {CU_MEM_LOCATION_TYPE_HOST, {5}};
    answered.bytesize = 1;
    answered.dptr = there();
    return Program::answer(wire::ObjectId{kMinted}, answered);
  });
  const CUresult result = cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters);
  return parameters.bytesize == kBytes && parameters.dptr == 0 ? result : CUDA_SUCCESS;
}

INSTANTIATE_TEST_SUITE_P(
    Addresses, LyingWorkerTest,
    ::testing::Values(
        Lie{"plain", plain}, Lie{"beyond_the_window", beyond_the_window}, Lie{"pitched", pitched},
        Lie{"narrow_pitch", narrow_pitch}, Lie{"in_stream_order", in_stream_order},
        Lie{"in_place_of_host_memory", in_place_of_host_memory}, Lie{"from_pool", from_pool},
        Lie{"imported_from_pool", imported_from_pool}, Lie{"managed", managed, kSessionLost, "tcp"},
        Lie{"variable", [](Program& program) { return variable(program, 0); }},
        Lie{"managed_variable", [](Program& program) { return variable(program, 1); }},
        Lie{"huge_variable", huge_variable}, Lie{"variable_of_library", variable_of_library},
        Lie{"managed_of_library", managed_of_library}, Lie{"opened", opened},
        Lie{"opened_of_any_size", opened_of_any_size}, Lie{"reserved", reserved},
        Lie{"mapped", mapped}, Lie{"range_of_mapped", range_of_mapped}, Lie{"of_graph", of_graph}),
    [](const auto& lie) { return std::string(lie.param.name); });

// ---- other fields ------------------------------------------------------------------------------

// More nodes than the array has room for.
CUresult nodes(Program& program) {
  CUgraph graph;
  std::array<CUgraphNode, 2> found{};
  size_t count = found.size();
  Program::check(cuGraphCreate(&graph, 0));
  program.puppet.on(static_cast<uint16_t>(Opcode::cuGraphGetNodes), [](const Command&) {
    wire::Encoder out;
    const std::array<wire::ObjectId, 2> ids{kMinted, kMinted + 1};
    out.array(ids.data(), ids.size());
    out.value(size_t{1000});
    return Answer{CUDA_SUCCESS, {out.body().begin(), out.body().end()}};
  });
  const CUresult result = cuGraphGetNodes(graph, found.data(), &count);
  return count == found.size() ? result : CUDA_SUCCESS;
}

// More groups than the application has requested: the client would write past the end of its array.
CUresult groups(Program& program) {
  CUdevResource all{};
  all.type = CU_DEV_RESOURCE_TYPE_SM;
  program.on(Opcode::cuDeviceGetDevResource, all);
  Program::check(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  std::array<CUdevResource, 64> made{};
  unsigned count = 1;
  program.puppet.on(static_cast<uint16_t>(Opcode::rcuda_split_resource), [&](const Command&) {
    wire::Encoder out;
    out.array(&all, 1);
    out.value(64u);
    out.value(all);
    return Answer{CUDA_SUCCESS, {out.body().begin(), out.body().end()}};
  });
  made[1].type = CU_DEV_RESOURCE_TYPE_SM;
  const CUdevResource before = made[1];
  const CUresult result = cuDevSmResourceSplitByCount(made.data(), &count, &all, nullptr, 0, 8);
  return std::memcmp(&before, &made[1], sizeof before) == 0 ? result : CUDA_SUCCESS;
}

// A length of the text that exceeds the application's buffer. Applications may trust this length.
CUresult log_sizes(Program& program) {
  std::array<char, 64> text{};
  CUmodule module;
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {text.data(), reinterpret_cast<void*>(text.size())};
  program.puppet.on(wire::Custom::kModuleLoad, [](const Command&) {
    wire::JitLogs logs{};
    logs.info.text_bytes = 4;
    logs.info.size_value = 4000;
    Answer answer = Program::answer(logs);
    answer.body.resize(answer.body.size() + 4, std::byte{'a'});
    return answer;
  });
  Program::check(cuModuleLoadDataEx(&module, kPtx, 2, options, values));
  return reinterpret_cast<uintptr_t>(values[1]) <= text.size() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

// A linked image with a pointer to other memory of the program, which a load of the image would
// follow.
CUresult linked_image(Program& program) {
  struct {
    uint32_t magic = 0x466243B1, version = 1;
    uint64_t data = there(), prelinked = 0;
  } wrapper;
  CUlinkState state;
  void* image = nullptr;
  size_t bytes = 0;
  Program::check(cuLinkCreate_v2(0, nullptr, nullptr, &state));
  program.puppet.on(static_cast<uint16_t>(Opcode::rcuda_link_complete), [&](const Command&) {
    wire::Encoder out;
    out.value(uint64_t{sizeof wrapper});
    out.array(reinterpret_cast<const std::byte*>(&wrapper), sizeof wrapper);
    out.value(0u);
    return Answer{CUDA_SUCCESS, {out.body().begin(), out.body().end()}};
  });
  return cuLinkComplete(state, &image, &bytes);
}

// The worker returns, as a library's module, a module that the program has loaded itself.
CUresult module_of_another(Program& program) {
  CUmodule module = nullptr;
  (void)program.module();
  const CUlibrary library = program.library();
  program.on(Opcode::cuLibraryGetModule, wire::ObjectId{1});
  return cuLibraryGetModule(&module, library);
}

// The worker returns the same function for two kernels; the ends of both kernels would destroy it.
CUresult one_function(Program& program) {
  CUfunction function = nullptr;
  const CUlibrary library = program.library();
  CUkernel one = nullptr, other = nullptr;
  program.puppet.on(wire::Custom::kFunctionInfo, [](const Command&) {
    return Answer{CUDA_SUCCESS, std::vector<std::byte>(8 + 4 * wire::kFunctionAttributeCount)};
  });
  Program::check(cuLibraryGetKernel(&one, library, "one"));
  Program::check(cuLibraryGetKernel(&other, library, "other"));
  program.named(Opcode::cuKernelGetFunction);
  Program::check(cuKernelGetFunction(&function, one));
  return cuKernelGetFunction(&function, other);
}

INSTANTIATE_TEST_SUITE_P(OtherFields, LyingWorkerTest,
                         ::testing::Values(Lie{"nodes", nodes, CUDA_ERROR_UNKNOWN},
                                           Lie{"groups", groups, CUDA_ERROR_UNKNOWN},
                                           Lie{"log_sizes", log_sizes, CUDA_ERROR_UNKNOWN},
                                           Lie{"linked_image", linked_image, CUDA_ERROR_UNKNOWN},
                                           Lie{"module_of_another", module_of_another},
                                           Lie{"one_function", one_function}),
                         [](const auto& lie) { return std::string(lie.param.name); });

}  // namespace
}  // namespace rcuda::client
