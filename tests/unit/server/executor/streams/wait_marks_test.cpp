// The words that the GPU writes for a waiting client (marks), which the client maps over shared
// memory.
#include <future>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using wire::Custom;

constexpr wire::ObjectId kStream = 1;

void create_stream(test::SessionHarness& session, wire::ObjectId id,
                   unsigned flags = CU_STREAM_NON_BLOCKING) {
  wire::Encoder out;
  out.value(flags);
  out.value(id);
  const auto answer =
      session.client().call(static_cast<uint16_t>(api::Opcode::cuStreamCreate), out.body());
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->result, CUDA_SUCCESS);
}

class WaitMarksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const wire::ReadyEvent& ready = session_.ready();
    ASSERT_NE(ready.marks_region, 0u);
    count_ = static_cast<uint32_t>(ready.marks_bytes / sizeof(uint64_t));
    auto mapping = session_.client().link().map(
        static_cast<transport::RegionId>(ready.marks_region), ready.marks_bytes);
    ASSERT_TRUE(mapping.ok()) << mapping.status().message();
    marks_ = static_cast<const volatile uint64_t*>(*mapping);
    CUdevice device;
    CUcontext context;
    ASSERT_EQ(session_.driver().cuDeviceGet(&device, 0), CUDA_SUCCESS);
    ASSERT_EQ(session_.driver().cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    create_stream(session_, kStream);
  }
  void TearDown() override {
    EXPECT_TRUE(session_.end().ok());
    if (marks_) session_.driver().cuDevicePrimaryCtxRelease_v2(0);
  }
  CUresult wait(uint32_t word, uint64_t sequence, wire::ObjectId stream = kStream) {
    EXPECT_TRUE(
        session_.client().post(Custom::kSignal, wire::SignalBody{stream, word, sequence}).ok());
    return *session_.client().wait_word(word, sequence);
  }

  test::SessionHarness session_{{.medium = &test::medium_named("shm"), .devices = {0}}};
  uint32_t count_ = 0;
  const volatile uint64_t* marks_ = nullptr;
};

TEST_F(WaitMarksTest, AWaitLeavesItsSequenceInTheMarkOfItsWord) {
  ASSERT_NE(marks_, nullptr);
  for (uint32_t i = 0; i < count_; ++i) ASSERT_EQ(marks_[i], 0u);
  EXPECT_EQ(wait(5, 7), CUDA_SUCCESS);
  EXPECT_EQ(marks_[5], 7u);
  EXPECT_EQ(wait(5, (uint64_t{3} << 32) + 8), CUDA_SUCCESS);
  EXPECT_EQ(marks_[5], (uint64_t{3} << 32) + 8);
  // In the legacy stream, and for words without a mark.
  EXPECT_EQ(wait(7, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(marks_[7], 0u);
  EXPECT_EQ(wait(count_, 9), CUDA_SUCCESS);
  EXPECT_EQ(marks_[count_ - 1], 0u);
}

TEST_F(WaitMarksTest, AWaitThatIsRefusedLeavesNone) {
  ASSERT_NE(marks_, nullptr);
  ASSERT_TRUE(
      session_.client().post(Custom::kSignal, wire::SignalBody{12345, 6, 1}).ok());  // no stream
  EXPECT_EQ(*session_.client().wait_word(6, 1), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(marks_[6], 0u);
}

// The driver refuses to write marks, as for a stream that has failed. Then the worker must poll
// each stream, even while another stream is busy.
TEST(WaitMarks, EachStreamIsAskedForThatWritesNone) {
  api::DriverTable& driver = test::TestDriver::get().table;
  const auto write = driver.cuStreamWriteValue64_v2;
  driver.cuStreamWriteValue64_v2 = [](CUstream, CUdeviceptr, cuuint64_t, unsigned) {
    return CUDA_SUCCESS;
  };
  {
    test::SessionHarness session{{.medium = &test::medium_named("shm"), .devices = {0}}};
    CUcontext context;
    ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
    create_stream(session, kStream, CU_STREAM_NON_BLOCKING);
    create_stream(session, kStream + 1, CU_STREAM_DEFAULT);  // waits for the legacy stream
    std::promise<void> gate;
    const auto pass = [](void* at) { static_cast<std::promise<void>*>(at)->get_future().wait(); };
    ASSERT_EQ(driver.cuLaunchHostFunc(nullptr, pass, &gate), CUDA_SUCCESS);
    ASSERT_TRUE(session.client().post(Custom::kSignal, wire::SignalBody{kStream + 1, 3, 1}).ok());
    // Repeats the wait, because the order in which the worker polls the streams varies.
    for (uint64_t i = 1; i <= 20; ++i) {
      ASSERT_TRUE(session.client().post(Custom::kSignal, wire::SignalBody{kStream, 4, i}).ok());
      EXPECT_EQ(session.client().wait_word(4, i), CUDA_SUCCESS) << i;
    }
    gate.set_value();
    EXPECT_EQ(session.client().wait_word(3, 1), CUDA_SUCCESS);
    EXPECT_TRUE(session.end().ok());
    EXPECT_EQ(driver.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  }
  driver.cuStreamWriteValue64_v2 = write;
}

TEST(WaitMarks, AreNotOfferedInSessionsWithSeveralDevices) {
  test::SessionHarness session{{.medium = &test::medium_named("shm")}};
  EXPECT_EQ(session.ready().marks_region, 0u);
  create_stream(session, kStream);
  ASSERT_TRUE(session.client().post(Custom::kSignal, wire::SignalBody{kStream, 4, 1}).ok());
  EXPECT_EQ(session.client().wait_word(4, 1), CUDA_SUCCESS);
  EXPECT_TRUE(session.end().ok());
}

TEST(WaitMarks, AreOfferedOnlyWhereTheyCanBeMapped) {
  test::SessionHarness session{{.medium = &test::medium_named("tcp"), .devices = {0}}};
  EXPECT_EQ(session.ready().marks_region, 0u);
  EXPECT_TRUE(session.end().ok());
}

}  // namespace
}  // namespace rcuda::server
