// Graph commands against a real worker loop on softgpu: copies of client memory, and the
// notification that no graph holds an object of the client any more.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "common/wire/codec.h"
#include "server/executor/images/image_cache.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using test::ProtocolClient;
using wire::Custom;

class GraphCommandsTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 4096;
  static constexpr wire::ObjectId kGraph = 1, kExecutable = 1;

  ProtocolClient& client() { return session_.client(); }
  const api::DriverTable& driver() { return session_.driver(); }

  void SetUp() override {
    CUdevice device;
    CUcontext context;
    driver().cuDeviceGet(&device, 0);
    driver().cuDevicePrimaryCtxRetain(&context, device);
    driver().cuCtxSetCurrent(context);
    ASSERT_EQ(driver().cuMemAlloc_v2(&device_, kBytes), CUDA_SUCCESS);
    host_ = static_cast<std::byte*>(std::aligned_alloc(4096, kBytes));
    ASSERT_EQ(call(api::Opcode::cuGraphCreate, 0u, kGraph), CUDA_SUCCESS);
  }
  void TearDown() override {
    driver().cuMemFree_v2(device_);
    std::free(host_);
    driver().cuDevicePrimaryCtxRelease_v2(0);
  }

  template <typename... Values>
  CUresult call(api::Opcode opcode, Values... values) {
    wire::Encoder out;
    (out.value(values), ...);
    auto answer = client().call(static_cast<uint16_t>(opcode), out.body());
    return answer ? answer->result : CUDA_ERROR_UNKNOWN;
  }
  CUresult expose(uint64_t callback) {
    wire::HostExposeBody body{};
    body.address = reinterpret_cast<uint64_t>(host_);
    body.bytes = kBytes;
    body.has_backing = 1;
    body.callback = callback;
    auto answer = client().call(Custom::kHostExpose, body);
    return answer ? answer->result : CUDA_ERROR_UNKNOWN;
  }
  CUresult add_copy(const CUDA_MEMCPY3D& copy) {
    wire::Encoder out;
    out.value(kGraph);
    out.array<wire::ObjectId>(nullptr, 0);
    out.value(size_t{0});
    out.value(copy);
    out.value(wire::ObjectId{0});
    auto answer =
        client().call(static_cast<uint16_t>(api::Opcode::cuGraphAddMemcpyNode), out.body());
    return answer ? answer->result : CUDA_ERROR_UNKNOWN;
  }
  CUDA_MEMCPY3D host_to_device() const {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = host_;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = device_;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 0x400;
    copy.Height = 2;
    copy.Depth = 1;
    return copy;
  }
  template <typename Event>
  Event next_event() {
    const std::vector<std::byte> frame = client().next_event();
    Event event{};
    EXPECT_EQ(frame.size(), sizeof event);
    std::memcpy(&event, frame.data(), std::min(frame.size(), sizeof event));
    return event;
  }
  test::SessionHarness session_;
  CUdeviceptr device_ = 0;
  std::byte* host_ = nullptr;
};

TEST_F(GraphCommandsTest, CopiesTouchOnlyMemoryThatTheDriverKnows) {
  ASSERT_EQ(expose(0), CUDA_SUCCESS);
  CUDA_MEMCPY3D copy = host_to_device();
  EXPECT_EQ(add_copy(copy), CUDA_SUCCESS);
  copy.srcHost = host_ - 1;
  EXPECT_EQ(add_copy(copy), CUDA_ERROR_INVALID_VALUE) << "begins before it";
  copy.srcHost = host_;
  copy.dstPitch = kBytes + 1;
  EXPECT_EQ(add_copy(copy), CUDA_ERROR_INVALID_VALUE) << "ends after it";
  copy.dstPitch = 0x400;
  copy.srcZ = SIZE_MAX;
  EXPECT_EQ(add_copy(copy), CUDA_ERROR_INVALID_VALUE) << "wraps around";
}

TEST_F(GraphCommandsTest, TheClientFillsItsMemoryBeforeEachLaunchReadsIt) {
  ASSERT_EQ(expose(99), CUDA_SUCCESS);
  ASSERT_EQ(add_copy(host_to_device()), CUDA_SUCCESS);
  ASSERT_EQ(call(api::Opcode::cuGraphInstantiateWithFlags, kGraph, uint64_t{0}, kExecutable),
            CUDA_SUCCESS);
  for (int round = 1; round <= 2; ++round) {
    ASSERT_EQ(call(api::Opcode::cuGraphLaunch, kExecutable, wire::ObjectId{0}), CUDA_SUCCESS);
    const auto event = next_event<wire::HostCallbackEvent>();
    EXPECT_EQ(event.callback, 99u);
    std::memset(host_, round, kBytes);
    client().acknowledge(event.slot, event.sequence);
    auto answer = client().call(Custom::kCopyToReply, wire::CopyToReplyBody{device_ + 0x7ff, 1, 0});
    ASSERT_TRUE(answer && answer->result == CUDA_SUCCESS);
    EXPECT_EQ(answer->body, std::vector<std::byte>(1, static_cast<std::byte>(round)));
  }
  // The graph and the executable graph both hold the object.
  ASSERT_EQ(call(api::Opcode::cuGraphDestroy, kGraph), CUDA_SUCCESS);
  ASSERT_EQ(call(api::Opcode::cuGraphExecDestroy, kExecutable), CUDA_SUCCESS);
  const auto event = next_event<wire::ReleasedEvent>();
  EXPECT_EQ(event.header.event, wire::Event::kReleased);
  EXPECT_EQ(event.callback, 99u);
}

TEST_F(GraphCommandsTest, WhatAGraphRetainsIsReleasedWithIt) {
  ASSERT_EQ(call(api::Opcode::rcuda_graph_retain, kGraph, uint64_t{7}), CUDA_SUCCESS);
  ASSERT_EQ(call(api::Opcode::rcuda_graph_retain, kGraph, uint64_t{8}), CUDA_SUCCESS);
  EXPECT_EQ(call(api::Opcode::rcuda_graph_retain, kGraph, uint64_t{7}), CUDA_ERROR_INVALID_VALUE)
      << "the number is in use";
  ASSERT_EQ(call(api::Opcode::rcuda_graph_release, kGraph, uint64_t{7}), CUDA_SUCCESS);
  EXPECT_EQ(next_event<wire::ReleasedEvent>().callback, 7u);
  EXPECT_EQ(call(api::Opcode::rcuda_graph_release, kGraph, uint64_t{9}), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(call(api::Opcode::cuGraphDestroy, kGraph), CUDA_SUCCESS);
  EXPECT_EQ(next_event<wire::ReleasedEvent>().callback, 8u);
}

// The client replaces its pageable memory by memory for the copied rows only, and moves the copy's
// base address so that the first row lies there.
TEST_F(GraphCommandsTest, ACapturedShapeTakesMemoryThatBeginsBehindItsBase) {
  constexpr wire::ObjectId kStream = 1;
  ASSERT_EQ(expose(6), CUDA_SUCCESS);
  ASSERT_EQ(call(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, kStream),
            CUDA_SUCCESS);
  ASSERT_EQ(call(api::Opcode::cuStreamBeginCapture_v2, kStream,
                 static_cast<int32_t>(CU_STREAM_CAPTURE_MODE_RELAXED)),
            CUDA_SUCCESS);
  wire::CopyShapeBody copy{};
  copy.source.pitch_bytes = copy.destination.pitch_bytes = copy.width_bytes = 0x400;
  copy.source.height = copy.destination.height = copy.height = 2;
  copy.depth = 1;
  copy.source.type = wire::MemoryType::kHost;
  copy.source.y = 3;
  copy.source.address = reinterpret_cast<uint64_t>(host_) - 3 * copy.source.pitch_bytes;
  copy.destination.type = wire::MemoryType::kDevice;
  copy.destination.address = device_;
  copy.stream = kStream;
  ASSERT_EQ(client().call(Custom::kCopyShape, copy)->result, CUDA_SUCCESS);
  wire::Encoder end;
  end.value(kStream);
  end.value(uint32_t{1});
  const auto ended =
      client().call(static_cast<uint16_t>(api::Opcode::cuStreamEndCapture), end.body());
  ASSERT_TRUE(ended && ended->result == CUDA_SUCCESS);
  const auto captured = wire::Decoder(ended->body).value<wire::ObjectId>();
  ASSERT_EQ(call(api::Opcode::cuGraphDestroy, captured), CUDA_SUCCESS);
  EXPECT_EQ(next_event<wire::ReleasedEvent>().callback, 6u);
}

TEST_F(GraphCommandsTest, MemoryThatNoGraphTookIsReleasedWhenItGoes) {
  ASSERT_EQ(expose(5), CUDA_SUCCESS);
  const wire::HostUnexposeBody body{reinterpret_cast<uint64_t>(host_), 0};
  auto answer = client().call(Custom::kHostUnexpose, body);
  ASSERT_TRUE(answer && answer->result == CUDA_SUCCESS);
  EXPECT_EQ(next_event<wire::ReleasedEvent>().callback, 5u);
}

// A driver whose answer about a kernel node can be changed. The session copies its entries.
struct ChangedNodes {
  ChangedNodes() : table(test::TestDriver::get().table), real(table.cuGraphKernelNodeGetParams_v2) {
    current = this;
    table.cuGraphKernelNodeGetParams_v2 = [](CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
      const CUresult result = current->real(node, params);
      EXPECT_NE(params->func, nullptr);
      EXPECT_NE(params->kern, nullptr);
      current->change(params);
      return result;
    };
  }
  ~ChangedNodes() { table.cuGraphKernelNodeGetParams_v2 = real; }

  static inline ChangedNodes* current = nullptr;
  api::DriverTable& table;
  decltype(table.cuGraphKernelNodeGetParams_v2) const real;
  void (*change)(CUDA_KERNEL_NODE_PARAMS*) = nullptr;
};
class KernelNodesTest : public ChangedNodes, public GraphCommandsTest {};

// Drivers differ in the handle by which a node names a library's kernel, and return parameters in
// the form in which they were passed. In every case the client must get its own kernel and the
// bytes of the parameters.
TEST_F(KernelNodesTest, AreTheClientsHoweverTheDriverNamesThem) {
  constexpr wire::ObjectId kLibrary = 1, kKernel = 9;
  const std::string image = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry both(.param .u64 a, .param .u32 b) { ret; }
)";
  const auto bytes = std::as_bytes(std::span(image));
  const Sha256 hash = sha256(bytes);
  wire::ImageQueryBody query{};
  std::memcpy(query.sha256, hash.data(), hash.size());
  query.bytes = image.size();
  ASSERT_TRUE(client().call(Custom::kImageQuery, query));
  wire::ImageChunkBody chunk{};
  std::memcpy(chunk.sha256, hash.data(), hash.size());
  chunk.staging_offset = ~0ull;
  chunk.bytes = static_cast<uint32_t>(image.size());
  ASSERT_TRUE(client().post(Custom::kImageChunk, chunk, bytes).ok());
  wire::ModuleLoadBody load{};
  load.object = kLibrary;
  load.image_count = 1;
  auto loaded = client().call(Custom::kLibraryLoad, load, std::as_bytes(std::span(hash)));
  ASSERT_TRUE(loaded && loaded->result == CUDA_SUCCESS);
  const wire::FunctionInfoBody info{kKernel, kLibrary, 1, 4, 0};
  auto known = client().call(Custom::kFunctionInfo, info, std::as_bytes(std::span("both", 4)));
  ASSERT_TRUE(known && known->result == CUDA_SUCCESS);

  void (*const forms[])(CUDA_KERNEL_NODE_PARAMS*) = {
      [](CUDA_KERNEL_NODE_PARAMS*) {},
      [](CUDA_KERNEL_NODE_PARAMS* params) { params->func = nullptr; },
      [](CUDA_KERNEL_NODE_PARAMS* params) { params->kern = nullptr; },
      [](CUDA_KERNEL_NODE_PARAMS* params) {
        params->func = reinterpret_cast<CUfunction>(params->kern);
        params->kern = nullptr;
      }};
  for (uint32_t are_packed : {0u, 1u}) {
    const char given[12] = "parameters!";
    wire::Encoder add;
    add.value(kGraph);
    add.array<wire::ObjectId>(nullptr, 0);
    add.value(size_t{0});
    add.value(wire::ObjectId{0});
    add.value(kKernel);
    add.value(wire::ObjectId{0});
    CUDA_KERNEL_NODE_PARAMS shape{};
    shape.gridDimX = 3;
    shape.gridDimY = shape.gridDimZ = shape.blockDimX = shape.blockDimY = shape.blockDimZ = 1;
    add.value(shape);
    add.array(given, sizeof given);
    add.value(sizeof given);
    add.value(are_packed);
    auto added =
        client().call(static_cast<uint16_t>(api::Opcode::rcuda_graph_add_kernel_node), add.body());
    ASSERT_TRUE(added && added->result == CUDA_SUCCESS);
    wire::Decoder node(added->body);
    const auto id = node.value<wire::ObjectId>();
    for (const auto& form : forms) {
      change = form;
      wire::Encoder ask;
      ask.value(id);
      ask.value(uint32_t{100});
      ask.value(uint32_t{1});
      ask.value(size_t{100});
      auto answer =
          client().call(static_cast<uint16_t>(api::Opcode::rcuda_graph_kernel_node), ask.body());
      ASSERT_TRUE(answer && answer->result == CUDA_SUCCESS);
      wire::Decoder told(answer->body);
      EXPECT_EQ(told.value<CUDA_KERNEL_NODE_PARAMS>().gridDimX, 3u);
      EXPECT_EQ(told.value<wire::ObjectId>(), 0u) << "the function has no name of its own";
      EXPECT_EQ(told.value<wire::ObjectId>(), kKernel);
      EXPECT_EQ(told.value<wire::ObjectId>(), 1u) << "the context";
      const auto parameters = told.array<char>();
      EXPECT_EQ(std::string(parameters.data(), parameters.size()), std::string(given, 12));
      EXPECT_EQ(told.value<size_t>(), 12u);
      EXPECT_EQ(told.value<uint32_t>(), are_packed);
      EXPECT_TRUE(told.complete());
    }
    change = [](CUDA_KERNEL_NODE_PARAMS* params) {
      params->func = nullptr;
      params->kern = nullptr;
    };
    wire::Encoder ask;
    ask.value(id);
    ask.value(uint32_t{100});
    ask.value(uint32_t{1});
    ask.value(size_t{100});
    auto answer =
        client().call(static_cast<uint16_t>(api::Opcode::rcuda_graph_kernel_node), ask.body());
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->result, CUDA_ERROR_INVALID_HANDLE);
  }
}

// A graph's DOT output that is too large for one reply: the worker keeps the rest until the client
// has read it.
TEST_F(GraphCommandsTest, ALargePictureIsReadInPieces) {
  for (uint32_t i = 0; i < 4000; ++i) {
    wire::Encoder node;
    node.value(kGraph);
    node.array<wire::ObjectId>(nullptr, 0);
    node.value(size_t{0});
    const auto added =
        client().call(static_cast<uint16_t>(api::Opcode::cuGraphAddEmptyNode), node.body());
    ASSERT_TRUE(added && added->result == CUDA_SUCCESS);
  }
  wire::Encoder question;
  question.value(kGraph);
  question.value(0u);
  const auto answer =
      client().call(static_cast<uint16_t>(api::Opcode::rcuda_graph_dot), question.body());
  ASSERT_TRUE(answer && answer->result == CUDA_SUCCESS);
  wire::Decoder in(answer->body);
  const auto bytes = in.value<uint64_t>();
  const auto first = in.array<char>();
  const auto number = in.value<uint32_t>();
  ASSERT_TRUE(in.complete());
  ASSERT_GT(bytes, 2 * api::kBlobPieceBytes);
  ASSERT_NE(number, 0u);
  std::string text(first.begin(), first.end());
  const auto read = [&](uint64_t offset) {
    return client().call(Custom::kBlobRead, wire::BlobReadBody{offset, number, 0});
  };
  while (text.size() < bytes) {
    const auto piece = read(text.size());
    ASSERT_TRUE(piece && piece->result == CUDA_SUCCESS);
    ASSERT_FALSE(piece->body.empty());
    const auto* characters = reinterpret_cast<const char*>(piece->body.data());
    text.append(characters, piece->body.size());
  }
  EXPECT_EQ(text.size(), bytes);
  EXPECT_TRUE(text.starts_with("digraph"));
  EXPECT_EQ(text.find_last_not_of("\n"), text.rfind('}'));
  // When the blob has been read to its end, the worker drops it.
  for (const uint64_t offset : {uint64_t{0}, bytes - 1, bytes, ~uint64_t{0}}) {
    const auto again = read(offset);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->result, CUDA_ERROR_INVALID_VALUE) << offset;
  }
}

}  // namespace
}  // namespace rcuda::server
