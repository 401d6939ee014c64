#include "client/route/capture.h"

#include <thread>

#include <gtest/gtest.h>

#include "client/objects/stream.h"

namespace rcuda::client {
namespace {

CUresult elsewhere(CUresult (*question)()) {
  CUresult answer = CUDA_ERROR_UNKNOWN;
  std::thread([&] { answer = question(); }).join();
  return answer;
}

constexpr CUresult kForbidden = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

class CaptureTest : public ::testing::Test {
 protected:
  // There is no worker: messages to it are dropped.
  void begin(CUstreamCaptureMode mode) { capture_begun(&origins_[begun_++], mode); }
  void end() { capture_ended(&origins_[--begun_]); }
  void TearDown() override {
    EXPECT_EQ(begun_, 0);
    EXPECT_FALSE(any_capture());
    EXPECT_EQ(check_unsafe_call(), CUDA_SUCCESS);
  }

 private:
  int begun_ = 0;
  Stream origins_[2]{Stream({}), Stream({})};
};

TEST_F(CaptureTest, AGlobalOneForbidsUnsafeCallsToEveryThread) {
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(check_unsafe_call(), kForbidden);
  EXPECT_EQ(elsewhere(check_unsafe_call), kForbidden);
  end();
  EXPECT_EQ(elsewhere(check_unsafe_call), CUDA_SUCCESS);
}

TEST_F(CaptureTest, AThreadLocalOneForbidsThemToItsThread) {
  begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_EQ(check_unsafe_call(), kForbidden);
  EXPECT_EQ(elsewhere(check_unsafe_call), CUDA_SUCCESS);
  end();
}

TEST_F(CaptureTest, ARelaxedOneForbidsNothing) {
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_TRUE(any_capture());
  EXPECT_EQ(check_unsafe_call(), CUDA_SUCCESS);
  end();
}

TEST_F(CaptureTest, AThreadMayRelaxItself) {
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_EQ(exchange_capture_mode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);  // the initial mode of every thread
  EXPECT_EQ(check_unsafe_call(), CUDA_SUCCESS);
  EXPECT_EQ(elsewhere(check_unsafe_call), kForbidden);
  EXPECT_EQ(exchange_capture_mode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(check_unsafe_call(), kForbidden);
  end();
}

TEST_F(CaptureTest, AThreadLocalThreadHeedsItsOwnOnly) {
  const auto local = [] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    (void)exchange_capture_mode(&mode);
    return check_unsafe_call();
  };
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(elsewhere(local), CUDA_SUCCESS);
  end();
}

TEST_F(CaptureTest, SeveralEndOneByOne) {
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  end();
  EXPECT_EQ(check_unsafe_call(), kForbidden);
  end();
}

TEST_F(CaptureTest, OnlyTheThreadThatBeganMayEndOneThatIsNotRelaxed) {
  Stream strict({}), relaxed({}), none({});
  capture_begun(&strict, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  capture_begun(&relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_TRUE(may_end_capture(&strict));
  std::thread([&] {
    EXPECT_FALSE(may_end_capture(&strict));
    EXPECT_TRUE(may_end_capture(&relaxed));
    EXPECT_TRUE(may_end_capture(&none));
  }).join();
  capture_ended(&none);
  capture_ended(&relaxed);
  EXPECT_EQ(check_unsafe_call(), kForbidden);
  capture_ended(&strict);
}

TEST_F(CaptureTest, AContextTakesItsStreamsCapturesAlong) {
  Context context({.id = 7, .context = 7}), other({.id = 8, .context = 8});
  Stream stream({.id = 1, .context = 7});
  capture_begun(&stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(check_context_wait(context), kForbidden);
  EXPECT_EQ(check_context_wait(other), CUDA_SUCCESS);
  captures_lost(other);
  EXPECT_TRUE(any_capture());
  captures_lost(context);
  EXPECT_FALSE(any_capture());
}

TEST_F(CaptureTest, AnswersAreAwaitedWhereACaptureMayBeConcerned) {
  {
    const CaptureAnswers answers;
    EXPECT_FALSE(awaits_answers());
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_TRUE(awaits_answers());
  }
  EXPECT_FALSE(awaits_answers());
  note_refusal(CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(awaits_answers());
  note_refusal(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_TRUE(awaits_answers());
  end();
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(awaits_answers());
  end();
}

// Driver 580 accepts any value and returns it later.
TEST_F(CaptureTest, AnUnknownModeOfAThreadIsKept) {
  EXPECT_EQ(exchange_capture_mode(nullptr), CUDA_ERROR_INVALID_VALUE);
  auto mode = static_cast<CUstreamCaptureMode>(99);
  EXPECT_EQ(exchange_capture_mode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(exchange_capture_mode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(static_cast<int>(mode), 99);
}

}  // namespace
}  // namespace rcuda::client
