// Commands of the protocol against a real worker loop on softgpu.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "common/wire/codec.h"
#include "server/executor/images/image_cache.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using test::ProtocolClient;
using test::SessionHarness;
using wire::Custom;

struct Nothing {};

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u32 count) {
  .reg .u64 %a; .reg .u32 %i, %n, %v; .reg .pred %p;
  ld.param.u64 %a, [data];
  ld.param.u32 %n, [count];
  mov.u32 %i, %tid.x;
  setp.ge.u32 %p, %i, %n;
  @%p bra done;
  mad.wide.u32 %a, %i, 4, %a;
  ld.global.u32 %v, [%a];
  add.u32 %v, %v, 1;
  st.global.u32 [%a], %v;
done:
  ret;
}
.visible .entry trap_now() { trap; }
)";

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* at = reinterpret_cast<const std::byte*>(text.data());
  return {at, at + text.size()};
}

class SessionTest : public ::testing::Test {
 protected:
  ProtocolClient& client() { return session_.client(); }
  const api::DriverTable& driver() { return session_.driver(); }

  // The current context is per thread, so the test's own thread also needs the first device's
  // context.
  void SetUp() override {
    CUdevice device;
    CUcontext context;
    driver().cuDeviceGet(&device, 0);
    driver().cuDevicePrimaryCtxRetain(&context, device);
    driver().cuCtxSetCurrent(context);
  }
  void TearDown() override { driver().cuDevicePrimaryCtxRelease_v2(0); }

  CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(driver().cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  CUresult synchronize(uint32_t stream = 0, uint32_t context = 1) {
    EXPECT_TRUE(
        client().post(Custom::kSignal, wire::SignalBody{stream, 7, ++sequence_}, {}, context).ok());
    return client().wait_word(7, sequence_).value_or(CUDA_ERROR_UNKNOWN);
  }
  template <typename... Values>
  Status post(api::Opcode opcode, Values... values) {
    wire::Encoder out;
    (out.value(values), ...);
    return client().post(static_cast<uint16_t>(opcode), out.body());
  }
  Status watch(uint32_t event, WordSignal signal, wire::WatchFor purpose) {
    const wire::WatchEventBody body{event, signal.word, signal.sequence, 0, purpose, 0};
    return client().post(Custom::kWatchEvent, body);
  }
  std::vector<std::byte> read_back(CUdeviceptr source, uint32_t bytes, uint32_t stream = 0) {
    auto answer = client().call(Custom::kCopyToReply, wire::CopyToReplyBody{source, bytes, stream});
    EXPECT_TRUE(answer && answer->result == CUDA_SUCCESS);
    return answer ? answer->body : std::vector<std::byte>();
  }

  // Receives the next event, which must be a host function's.
  void next_callback(wire::HostCallbackEvent* event) {
    const std::vector<std::byte> frame = client().next_event();
    ASSERT_EQ(frame.size(), sizeof *event);
    std::memcpy(event, frame.data(), sizeof *event);
  }

  // Sends the image if the worker lacks it, and loads it as module 1. Returns the driver's result.
  CUresult load_module(const std::vector<std::byte>& image, uint32_t id = 1) {
    const Sha256 hash = sha256(image);
    wire::ImageQueryBody query{};
    std::memcpy(query.sha256, hash.data(), hash.size());
    query.bytes = image.size();
    auto present = client().call(Custom::kImageQuery, query);
    if (!present || present->result != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;
    uint32_t is_present = 0;
    std::memcpy(&is_present, present->body.data(), sizeof is_present);
    for (size_t at = 0; !is_present && at < image.size(); at += 1000) {
      wire::ImageChunkBody chunk{};
      std::memcpy(chunk.sha256, hash.data(), hash.size());
      chunk.offset = at;
      chunk.staging_offset = ~0ull;
      chunk.bytes = static_cast<uint32_t>(std::min<size_t>(1000, image.size() - at));
      EXPECT_TRUE(client()
                      .post(Custom::kImageChunk, chunk, std::span(image).subspan(at, chunk.bytes))
                      .ok());
    }
    wire::ModuleLoadBody load{};
    load.object = id;
    load.image_count = 1;
    auto loaded = client().call(Custom::kModuleLoad, load, std::as_bytes(std::span(hash)));
    return loaded ? loaded->result : CUDA_ERROR_UNKNOWN;
  }
  CUresult find_function(const std::string& name, uint32_t id, wire::FunctionInfoReply* info,
                         std::vector<wire::ParameterInfo>* parameters) {
    const wire::FunctionInfoBody body{id, 1, 0, static_cast<uint16_t>(name.size()), 0};
    auto answer = client().call(Custom::kFunctionInfo, body, bytes_of(name));
    if (!answer) return CUDA_ERROR_UNKNOWN;
    if (answer->result != CUDA_SUCCESS) return answer->result;
    auto* at = reinterpret_cast<std::byte*>(info) + sizeof(wire::ReplyHeader);
    std::memcpy(at, answer->body.data(), sizeof *info - sizeof(wire::ReplyHeader));
    parameters->resize(info->parameter_count);
    std::memcpy(parameters->data(), answer->body.data() + sizeof *info - sizeof(wire::ReplyHeader),
                info->parameter_count * sizeof(wire::ParameterInfo));
    return CUDA_SUCCESS;
  }

  SessionHarness session_;
  uint64_t sequence_ = 0;
};

TEST_F(SessionTest, PingIsAnswered) {
  auto answer = client().call(Custom::kPing, Nothing{});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->result, CUDA_SUCCESS);
  EXPECT_TRUE(answer->body.empty());
  EXPECT_TRUE(session_.end().ok());
}

TEST_F(SessionTest, BytesTravelInlineAndInReplies) {
  const CUdeviceptr memory = allocate(8192);
  std::vector<std::byte> sent(8192);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 31 + i / 256);
  ASSERT_TRUE(client().post(Custom::kCopyInline, wire::CopyInlineBody{memory, 8192, 0}, sent).ok());
  EXPECT_EQ(read_back(memory, 8192), sent);
  EXPECT_EQ(read_back(memory + 5, 3), std::vector<std::byte>(sent.begin() + 5, sent.begin() + 8));
  EXPECT_EQ(client().error_word(), 0u);
  driver().cuMemFree_v2(memory);
}

TEST_F(SessionTest, StagedCopiesSignalTheirWords) {
  const CUdeviceptr memory = allocate(1 << 20);
  std::byte* staging = session_.staging();
  for (size_t i = 0; i < (1 << 20); ++i) staging[i] = static_cast<std::byte>(i % 253);
  wire::CopyStagedBody copy{};
  copy.device_address = memory;
  copy.bytes = 1 << 20;
  copy.to_device = 1;
  copy.word = 3;
  copy.sequence = 1;
  ASSERT_TRUE(client().post(Custom::kCopyStaged, copy).ok());
  EXPECT_EQ(client().wait_word(3, 1), CUDA_SUCCESS);
  copy.to_device = 0;
  copy.staging_offset = 2 << 20;
  copy.sequence = 2;
  ASSERT_TRUE(client().post(Custom::kCopyStaged, copy).ok());
  EXPECT_EQ(client().wait_word(3, 2), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(staging, staging + (2 << 20), 1 << 20), 0);

  copy.device_address = 0x1234;  // the word carries the error; the error word is not set
  copy.sequence = 3;
  ASSERT_TRUE(client().post(Custom::kCopyStaged, copy).ok());
  EXPECT_EQ(client().wait_word(3, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(client().error_word(), 0u);
  driver().cuMemFree_v2(memory);
}

// The completion word belongs to the staging slot. The next copy that uses the slot waits for the
// word and gets the error.
TEST_F(SessionTest, AFailedCopyFromASlotIsReported) {
  wire::CopyStagedBody copy{};
  copy.device_address = 0x1234;
  copy.bytes = 16;
  copy.to_device = 1;
  copy.word = 3;
  copy.sequence = 1;
  auto answer = client().call(Custom::kCopyStaged, copy);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->result, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(client().wait_word(3, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(client().error_word(), 0u);  // reported by the word
  copy.sequence = 2;
  ASSERT_TRUE(client().post(Custom::kCopyStaged, copy).ok());
  ASSERT_TRUE(client().call(Custom::kPing, Nothing{}));
  EXPECT_NE(client().error_word(), 0u);
}

TEST_F(SessionTest, AFailedShapeFromASlotIsReported) {
  wire::CopyShapeBody copy{};
  copy.source = {0, 16, 1, 0, 0, 0, 0, wire::MemoryType::kHost, 0};
  copy.source_staged = 1;
  copy.destination = {0x1234, 16, 1, 0, 0, 0, 0, wire::MemoryType::kDevice, 0};
  copy.width_bytes = 16;
  copy.height = 1;
  copy.depth = 1;
  copy.word = 4;
  copy.sequence = 1;
  ASSERT_TRUE(client().post(Custom::kCopyShape, copy).ok());
  ASSERT_TRUE(client().call(Custom::kPing, Nothing{}));
  EXPECT_NE(client().error_word(), 0u);
}

TEST_F(SessionTest, ShapesArePackedThroughStaging) {
  constexpr uint64_t kWidth = 100, kHeight = 7, kPitch = 256;
  const CUdeviceptr memory = allocate(kPitch * kHeight);
  std::byte* staging = session_.staging();
  for (size_t i = 0; i < kWidth * kHeight; ++i) staging[i] = static_cast<std::byte>(i % 251);
  wire::CopyShapeBody copy{};
  copy.source = {0, kWidth, kHeight, 0, 0, 0, 0, wire::MemoryType::kHost, 0};
  copy.source_staged = 1;
  copy.destination = {memory, kPitch, kHeight, 0, 0, 0, 0, wire::MemoryType::kDevice, 0};
  copy.width_bytes = kWidth;
  copy.height = kHeight;
  copy.depth = 1;
  copy.word = 4;
  copy.sequence = 1;
  ASSERT_TRUE(client().post(Custom::kCopyShape, copy).ok());
  ASSERT_EQ(client().wait_word(4, 1), CUDA_SUCCESS);
  for (uint32_t row = 0; row < kHeight; ++row) {
    EXPECT_EQ(std::memcmp(read_back(memory + row * kPitch, kWidth).data(), staging + row * kWidth,
                          kWidth),
              0)
        << row;
  }
  driver().cuMemFree_v2(memory);
}

// A driver replaces a pitch or height of 0 by a default. With the default, the copy would cover
// more memory than the worker has checked.
TEST_F(SessionTest, AShapeWithoutPitchOrHeightIsRefused) {
  constexpr uint64_t kWidth = 64, kHeight = 4, kDepth = 4;
  const CUdeviceptr memory = allocate(kWidth * kHeight * kDepth);
  wire::CopyShapeBody copy{};
  copy.source = {0, kWidth, kHeight, 0, 0, 0, 0, wire::MemoryType::kHost, 0};
  copy.source_staged = 1;
  copy.destination = {memory, kWidth, kHeight, 0, 0, 0, 0, wire::MemoryType::kDevice, 0};
  copy.width_bytes = kWidth;
  copy.height = kHeight;
  copy.depth = kDepth;
  copy.word = 4;
  const auto result = [&](uint64_t* field, uint64_t value) {
    const uint64_t before = std::exchange(*field, value);
    ++copy.sequence;
    EXPECT_TRUE(client().post(Custom::kCopyShape, copy).ok());
    *field = before;
    return client().wait_word(4, copy.sequence);
  };
  EXPECT_EQ(result(&copy.source.pitch_bytes, kWidth), CUDA_SUCCESS);
  for (wire::CopyShapeSide* side : {&copy.source, &copy.destination}) {
    EXPECT_EQ(result(&side->pitch_bytes, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(result(&side->height, 0), CUDA_ERROR_INVALID_VALUE);
  }
  driver().cuMemFree_v2(memory);
}

TEST_F(SessionTest, KernelsLoadLaunchAndReport) {
  ASSERT_EQ(load_module(bytes_of(std::string(kPtx))), CUDA_SUCCESS);
  wire::FunctionInfoReply info{};
  std::vector<wire::ParameterInfo> parameters;
  ASSERT_EQ(find_function("add_one", 5, &info, &parameters), CUDA_SUCCESS);
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].size_bytes, 8u);
  EXPECT_EQ(parameters[1].offset_bytes, 8u);
  EXPECT_GT(info.attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK], 0);
  EXPECT_EQ(info.attributes[31], INT32_MIN);
  EXPECT_EQ(find_function("no_such", 6, &info, &parameters), CUDA_ERROR_NOT_FOUND);

  const CUdeviceptr memory = allocate(128 * 4);
  driver().cuMemsetD8_v2(memory, 0, 128 * 4);
  struct {
    CUdeviceptr data;
    uint32_t count;
    uint32_t padding;
  } arguments{memory, 100, 0};
  wire::LaunchBody launch{};
  launch.function = 5;
  launch.grid[0] = launch.grid[1] = launch.grid[2] = 1;
  launch.block[0] = 128;
  launch.block[1] = launch.block[2] = 1;
  launch.parameter_bytes = 12;
  const auto packed = std::as_bytes(std::span(&arguments, 1));
  ASSERT_TRUE(client().post(Custom::kLaunch, launch, packed).ok());
  launch.cooperative = 1;
  ASSERT_TRUE(client().post(Custom::kLaunch, launch, packed).ok());
  const std::vector<std::byte> got = read_back(memory, 512);
  std::vector<uint32_t> values(128);
  std::memcpy(values.data(), got.data(), 512);
  for (uint32_t i = 0; i < 128; ++i) EXPECT_EQ(values[i], i < 100 ? 2u : 0u) << i;
  EXPECT_EQ(client().error_word(), 0u);

  // Too few parameter bytes are refused: the driver would read past them.
  launch.parameter_bytes = 8;
  auto refused = client().call(Custom::kLaunch, launch, packed.first(8));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->result, CUDA_ERROR_INVALID_VALUE);
  driver().cuMemFree_v2(memory);
}

TEST_F(SessionTest, AFailedPostIsLatched) {
  wire::LaunchBody launch{};
  launch.function = 99;
  ASSERT_TRUE(client().post(Custom::kLaunch, launch).ok());
  EXPECT_EQ(synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(wire::CompletionWord::result(client().error_word()),
            static_cast<uint32_t>(CUDA_ERROR_INVALID_HANDLE));
  EXPECT_EQ(wire::CompletionWord::sequence(client().error_word()), 1u);
}

TEST_F(SessionTest, ASignalComesWhateverIsWrongWithItsStreamOrContext) {
  EXPECT_EQ(synchronize(12345), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(synchronize(0, 777), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(synchronize(), CUDA_SUCCESS);
}

// A stream is destroyed while it has work, and its completion word is given to another stream. When
// the work ends, its signal must not lower the word.
TEST_F(SessionTest, ALateSignalTakesNothingBack) {
  ASSERT_TRUE(
      post(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, uint32_t{1}).ok());
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 1, 0}).ok());
  ASSERT_TRUE(client().post(Custom::kSignal, wire::SignalBody{1, 9, 1}).ok());
  ASSERT_TRUE(client().post(Custom::kSignal, wire::SignalBody{1, 10, 1}).ok());
  ASSERT_TRUE(client().post(Custom::kSignal, wire::SignalBody{0, 9, 2}).ok());
  EXPECT_EQ(client().wait_word(9, 2), CUDA_SUCCESS);
  wire::HostCallbackEvent event{};
  ASSERT_NO_FATAL_FAILURE(next_callback(&event));
  client().acknowledge(event.slot, event.sequence);
  EXPECT_EQ(client().wait_word(10, 1), CUDA_SUCCESS);
  EXPECT_TRUE(client().word_reached(9, 2));
}

TEST_F(SessionTest, AHostFunctionHoldsItsStreamUntilItIsAcknowledged) {
  ASSERT_TRUE(
      post(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, uint32_t{1}).ok());
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{4711, 1, 0}).ok());
  ASSERT_TRUE(client().post(Custom::kSignal, wire::SignalBody{1, 9, 1}).ok());
  wire::HostCallbackEvent event{};
  ASSERT_NO_FATAL_FAILURE(next_callback(&event));
  EXPECT_EQ(event.header.event, wire::Event::kHostCallback);
  EXPECT_EQ(event.callback, 4711u);
  EXPECT_EQ(event.status, static_cast<uint32_t>(CUDA_SUCCESS));
  // Other streams and the executor continue meanwhile.
  EXPECT_EQ(synchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(client().word_reached(9, 1));
  client().acknowledge(event.slot, event.sequence);
  EXPECT_EQ(client().wait_word(9, 1), CUDA_SUCCESS);
}

TEST_F(SessionTest, AWatchStandsForTheRecordItWasAskedAbout) {
  ASSERT_TRUE(
      post(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, uint32_t{1}).ok());
  ASSERT_TRUE(
      post(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, uint32_t{2}).ok());
  ASSERT_TRUE(
      post(api::Opcode::cuEventCreate, unsigned{CU_EVENT_DISABLE_TIMING}, uint32_t{1}).ok());
  // A stream that a host function holds, an event recorded after it, and a watch of that record.
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 1, 0}).ok());
  ASSERT_TRUE(post(api::Opcode::cuEventRecord, uint32_t{1}, uint32_t{1}).ok());
  ASSERT_TRUE(watch(1, {20, 1}, wire::WatchFor::kWait).ok());
  // The event is recorded again in a stream that is not held, and watched again.
  ASSERT_TRUE(post(api::Opcode::cuEventRecord, uint32_t{1}, uint32_t{2}).ok());
  ASSERT_TRUE(watch(1, {21, 1}, wire::WatchFor::kWait).ok());
  EXPECT_EQ(client().wait_word(21, 1), CUDA_SUCCESS);
  EXPECT_FALSE(client().word_reached(20, 1));
  wire::HostCallbackEvent event{};
  ASSERT_NO_FATAL_FAILURE(next_callback(&event));
  client().acknowledge(event.slot, event.sequence);
  EXPECT_EQ(client().wait_word(20, 1), CUDA_SUCCESS);
  // An event that was never recorded, and an id that is not an event.
  ASSERT_TRUE(post(api::Opcode::cuEventCreate, 0u, uint32_t{2}).ok());
  ASSERT_TRUE(watch(2, {22, 1}, wire::WatchFor::kWait).ok());
  EXPECT_EQ(client().wait_word(22, 1), CUDA_SUCCESS);
  ASSERT_TRUE(watch(99, {23, 1}, wire::WatchFor::kReport).ok());
  EXPECT_EQ(client().wait_word(23, 1), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(SessionTest, AQueryOfAnEventIsAnsweredAtOnce) {
  const auto query = [this](uint32_t event, uint32_t word) {
    EXPECT_TRUE(watch(event, {word, 1}, wire::WatchFor::kQuery).ok());
    return client().wait_word(word, 1);
  };
  ASSERT_TRUE(
      post(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, uint32_t{1}).ok());
  ASSERT_TRUE(
      post(api::Opcode::cuEventCreate, unsigned{CU_EVENT_DISABLE_TIMING}, uint32_t{1}).ok());
  EXPECT_EQ(query(1, 20), CUDA_SUCCESS);  // never recorded
  EXPECT_EQ(query(99, 21), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 1, 0}).ok());
  ASSERT_TRUE(post(api::Opcode::cuEventRecord, uint32_t{1}, uint32_t{1}).ok());
  EXPECT_EQ(query(1, 22), CUDA_ERROR_NOT_READY);
  wire::HostCallbackEvent event{};
  ASSERT_NO_FATAL_FAILURE(next_callback(&event));
  client().acknowledge(event.slot, event.sequence);
  ASSERT_TRUE(watch(1, {23, 1}, wire::WatchFor::kWait).ok());
  EXPECT_EQ(client().wait_word(23, 1), CUDA_SUCCESS);
  EXPECT_EQ(query(1, 24), CUDA_SUCCESS);
}

TEST_F(SessionTest, AWatchOfWhoOnlyAsksEndsWithItsRecord) {
  for (uint32_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(post(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, id).ok());
  }
  ASSERT_TRUE(
      post(api::Opcode::cuEventCreate, unsigned{CU_EVENT_DISABLE_TIMING}, uint32_t{1}).ok());
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 1, 0}).ok());
  ASSERT_TRUE(post(api::Opcode::cuEventRecord, uint32_t{1}, uint32_t{1}).ok());
  ASSERT_TRUE(watch(1, {20, 1}, wire::WatchFor::kReport).ok());
  // Waiting for the event does not record it. Of two watches, the later one is kept.
  ASSERT_TRUE(post(api::Opcode::cuStreamWaitEvent, uint32_t{2}, uint32_t{1}, 0u).ok());
  ASSERT_TRUE(watch(1, {20, 2}, wire::WatchFor::kReport).ok());
  wire::HostCallbackEvent event{};
  ASSERT_NO_FATAL_FAILURE(next_callback(&event));
  EXPECT_FALSE(client().word_reached(20, 1));
  client().acknowledge(event.slot, event.sequence);
  EXPECT_EQ(client().wait_word(20, 2), CUDA_SUCCESS);

  // The event is recorded again in a stream in capture, so it must not be queried.
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 1, 0}).ok());
  ASSERT_TRUE(post(api::Opcode::cuEventRecord, uint32_t{1}, uint32_t{1}).ok());
  ASSERT_TRUE(watch(1, {20, 3}, wire::WatchFor::kReport).ok());
  ASSERT_TRUE(post(api::Opcode::cuStreamBeginCapture_v2, uint32_t{2},
                   unsigned{CU_STREAM_CAPTURE_MODE_GLOBAL})
                  .ok());
  ASSERT_TRUE(post(api::Opcode::cuEventRecord, uint32_t{1}, uint32_t{2}).ok());
  ASSERT_NO_FATAL_FAILURE(next_callback(&event));
  client().acknowledge(event.slot, event.sequence);
  EXPECT_EQ(synchronize(1), CUDA_SUCCESS);
  EXPECT_FALSE(client().word_reached(20, 3));
  ASSERT_TRUE(post(api::Opcode::cuStreamDestroy_v2, uint32_t{2}).ok());  // ends the capture
  // A destroyed event must not be queried either.
  ASSERT_TRUE(post(api::Opcode::cuEventDestroy_v2, uint32_t{1}).ok());
  EXPECT_EQ(synchronize(1), CUDA_SUCCESS);
  EXPECT_FALSE(client().word_reached(20, 3));
}

TEST_F(SessionTest, SynchronisingAContextWaitsForAllItsStreams) {
  for (uint32_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(post(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, id).ok());
  }
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 2, 0}).ok());
  ASSERT_TRUE(client().post(Custom::kSynchronizeContext, wire::SignalBody{0, 30, 1}).ok());
  EXPECT_EQ(synchronize(1), CUDA_SUCCESS);
  EXPECT_FALSE(client().word_reached(30, 1));
  wire::HostCallbackEvent event{};
  ASSERT_NO_FATAL_FAILURE(next_callback(&event));
  client().acknowledge(event.slot, event.sequence);
  EXPECT_EQ(client().wait_word(30, 1), CUDA_SUCCESS);
}

TEST_F(SessionTest, FreeingMemoryHoldsItsCallerOnly) {
  ASSERT_TRUE(
      post(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, uint32_t{1}).ok());
  const CUdeviceptr memory = allocate(4096);
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 1, 0}).ok());
  wire::Encoder body;
  body.value(memory);
  std::optional<ProtocolClient::Answer> freed;
  std::atomic<bool> answered{false};
  std::thread caller([&] {
    freed = client().call(static_cast<uint16_t>(api::Opcode::cuMemFree_v2), body.body());
    answered = true;
  });
  wire::HostCallbackEvent event{};
  ASSERT_NO_FATAL_FAILURE(next_callback(&event));
  // The stream is held, so the memory is not freed, and the executor runs the commands of other
  // threads.
  EXPECT_EQ(synchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(answered);
  client().acknowledge(event.slot, event.sequence);
  caller.join();
  ASSERT_TRUE(freed);
  EXPECT_EQ(freed->result, CUDA_SUCCESS);
}

TEST_F(SessionTest, UnloadingCodeHoldsNobody) {
  ASSERT_EQ(load_module(bytes_of(std::string(kPtx))), CUDA_SUCCESS);
  ASSERT_TRUE(
      post(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, uint32_t{1}).ok());
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 1, 0}).ok());
  wire::HostCallbackEvent event{};
  ASSERT_NO_FATAL_FAILURE(next_callback(&event));
  // The device is busy, so the driver would wait for it.
  ASSERT_TRUE(post(api::Opcode::cuModuleUnload, uint32_t{1}).ok());
  EXPECT_TRUE(client().call(Custom::kPing, Nothing{}));
  client().acknowledge(event.slot, event.sequence);
  // The id is free: another module may have it, whether or not the first module has been unloaded.
  EXPECT_EQ(load_module(bytes_of(std::string(kPtx))), CUDA_SUCCESS);
  EXPECT_EQ(synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(client().error_word(), 0u);
}

TEST_F(SessionTest, ExposedMemoryIsCopiedInPlace) {
  constexpr size_t kBytes = 1 << 20;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, kBytes));
  std::memset(memory, 0x5a, kBytes);
  const wire::HostExposeBody expose{reinterpret_cast<uint64_t>(memory), kBytes, 0, 0, 1};
  auto answer = client().call(Custom::kHostExpose, expose);
  ASSERT_TRUE(answer && answer->result == CUDA_SUCCESS);
  auto twice = client().call(Custom::kHostExpose, expose);
  ASSERT_TRUE(twice && twice->result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  const CUdeviceptr device = allocate(kBytes);
  wire::CopyBody copy{};
  copy.destination = device;
  copy.source = expose.address;
  copy.bytes = kBytes;
  ASSERT_TRUE(client().post(Custom::kCopy, copy).ok());
  EXPECT_EQ(synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(read_back(device + 1000, 4), std::vector<std::byte>(4, std::byte{0x5a}));
  // Memory that is neither the driver's nor exposed is refused.
  int local = 0;
  copy.destination = reinterpret_cast<uint64_t>(&local);
  copy.source = device;
  copy.bytes = 4;
  auto refused = client().call(Custom::kCopy, copy);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->result, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(local, 0);
  const wire::HostUnexposeBody unexpose{expose.address, 0};
  answer = client().call(Custom::kHostUnexpose, unexpose);
  ASSERT_TRUE(answer && answer->result == CUDA_SUCCESS);
  driver().cuMemFree_v2(device);
  std::free(memory);
}

TEST_F(SessionTest, AnImageWithAnotherHashIsRefused) {
  std::vector<std::byte> image = bytes_of(std::string(kPtx));
  const Sha256 hash = sha256(image);
  image[100] ^= std::byte{1};
  wire::ImageQueryBody query{};
  std::memcpy(query.sha256, hash.data(), hash.size());
  query.bytes = image.size();
  ASSERT_TRUE(client().call(Custom::kImageQuery, query));
  wire::ImageChunkBody chunk{};
  std::memcpy(chunk.sha256, hash.data(), hash.size());
  chunk.staging_offset = ~0ull;
  chunk.bytes = static_cast<uint32_t>(image.size());
  auto answer = client().call(Custom::kImageChunk, chunk, image);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->result, CUDA_ERROR_INVALID_IMAGE);
  wire::ModuleLoadBody load{};
  load.object = 1;
  load.image_count = 1;
  answer = client().call(Custom::kModuleLoad, load, std::as_bytes(std::span(hash)));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->result, CUDA_ERROR_NOT_READY);
}

TEST_F(SessionTest, TracedCommandsAreTimed) {
  wire::CommandHeader header{};
  header.flags = wire::kFlagTraced;
  header.thread = 42;
  ASSERT_TRUE(client().channel().send(header, wire::SignalBody{}).ok());
  const std::vector<std::byte> frame = client().next_event();
  wire::EventHeader event{};
  ASSERT_EQ(frame.size(), sizeof event + sizeof(wire::TraceEvent));
  std::memcpy(&event, frame.data(), sizeof event);
  EXPECT_EQ(event.event, wire::Event::kTrace);
  wire::TraceEvent trace{};
  std::memcpy(&trace, frame.data() + sizeof event, sizeof trace);
  EXPECT_EQ(trace.opcode, static_cast<uint16_t>(Custom::kSignal));
  EXPECT_EQ(trace.thread, 42u);
  EXPECT_LE(trace.begin_ns, trace.end_ns);
}

TEST_F(SessionTest, TheEndOfTheClientEndsTheSession) {
  ASSERT_TRUE(client().call(Custom::kPing, Nothing{}));
  session_.cut();
  EXPECT_EQ(session_.wait_end().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace rcuda::server
