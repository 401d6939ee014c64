#include "client/session/session_state.h"

#include <optional>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "client/session/wait.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using State = SessionState;
using Event = SessionEvent;

std::optional<State> next(State state, Event event) {
  return after(kSessionTransitions, state, event);
}

template <typename Each>
void for_all(const Each& each) {
  for (int state = 0; state <= static_cast<int>(kLastSessionState); ++state) {
    for (int event = 0; event <= static_cast<int>(kLastSessionEvent); ++event) {
      each(static_cast<State>(state), static_cast<Event>(event));
    }
  }
}

TEST(SessionStateTest, EveryStateIsReached) {
  std::set<State> reached = {State::kConnecting};
  for (int round = 0; round <= static_cast<int>(kLastSessionState); ++round) {
    for_all([&](State state, Event event) {
      const std::optional<State> to = next(state, event);
      if (to && reached.contains(state)) reached.insert(*to);
    });
  }
  EXPECT_EQ(reached.size(), static_cast<size_t>(kLastSessionState) + 1);
}

TEST(SessionStateTest, ASessionThatIsOverStaysSo) {
  for_all([](State state, Event event) {
    if (!is_over(state)) return;
    EXPECT_EQ(next(state, event).value_or(state), state) << to_string(state) << to_string(event);
  });
}

TEST(SessionStateTest, AnySessionMayBeLost) {
  for_all([](State state, Event) {
    const State lost = state == State::kEnded ? State::kEnded : State::kLost;
    EXPECT_EQ(next(state, Event::kLoss), lost) << to_string(state);
  });
}

TEST(SessionStateTest, ASessionBeginsAndEndsOnce) {
  EXPECT_FALSE(next(State::kConnecting, Event::kEnd));
  EXPECT_FALSE(next(State::kOpen, Event::kReady));
  EXPECT_FALSE(next(State::kEnded, Event::kReady));
  EXPECT_FALSE(next(State::kEnded, Event::kEnd));
}

// ---- a session in each state ----

class SessionInStateTest : public ::testing::Test {
 protected:
  Session& session() { return *lone_.session; }
  // Checks that all waits fail at once, because no word and no reply can arrive any more.
  void expect_no_wait() {
    const Word word = session().words().acquire();
    EXPECT_EQ(session().wait_word({word.index, word.sequence + 1}), kSessionLost);
    EXPECT_EQ(session().wait_for([] { return false; }), kSessionLost);
    EXPECT_EQ(synchronize(session().in_context(1)), kSessionLost);
    EXPECT_EQ(session().take_error(), kSessionLost);
    EXPECT_EQ(lone_.ping(), kSessionLost);
  }
  template <typename Act>
  std::string logged(const Act& act) {
    set_log_level(LogLevel::kDebug);
    ::testing::internal::CaptureStderr();
    act();
    const std::string lines = ::testing::internal::GetCapturedStderr();
    set_log_level(LogLevel::kWarn);
    return lines;
  }

  LoneSession lone_;
};

TEST_F(SessionInStateTest, ABrokenLinkIsALossForTheFirstThatAsks) {
  EXPECT_EQ(session().state(), State::kOpen);
  lone_.puppet.link().close();
  const std::string lines = logged([this] {
    while (!session().lost()) std::this_thread::yield();
  });
  EXPECT_NE(lines.find(session().name() + ": open -> lost\n"), std::string::npos) << lines;
  EXPECT_NE(lines.find(session().name() + " is lost: "), std::string::npos) << lines;
  EXPECT_EQ(session().state(), State::kLost);
  expect_no_wait();
}

TEST_F(SessionInStateTest, AfterTheEndNothingIsLost) {
  lone_.puppet.let_client_leave();
  const std::string lines = logged([this] {
    session().end();
    EXPECT_EQ(session().lose(Status(Code::kUnavailable, "too late")), kSessionLost);
    expect_no_wait();
  });
  EXPECT_NE(lines.find(session().name() + ": open -> ended\n"), std::string::npos) << lines;
  EXPECT_EQ(lines.find(" is lost: "), std::string::npos) << lines;
  EXPECT_EQ(session().state(), State::kEnded);
}

TEST_F(SessionInStateTest, TheEndOfALostSessionSendsNothing) {
  (void)session().lose(Status(Code::kUnavailable, "the test says so"));
  const uint64_t sent = session().commands();
  session().end();
  EXPECT_EQ(session().state(), State::kLost);
  EXPECT_EQ(session().commands(), sent);
}

TEST_F(SessionInStateTest, AWordThatCameBeforeTheLossEndsItsWait) {
  const Word word = session().words().acquire();
  const uint64_t reached = wire::CompletionWord::make(word.sequence + 1, CUDA_ERROR_NOT_READY);
  ASSERT_TRUE(lone_.puppet.link()
                  .put(wire::ClientWindow::kCompletionWords + 8ull * word.index,
                       std::as_bytes(std::span(&reached, 1)), {}, transport::Wake::kYes)
                  .ok());
  EXPECT_EQ(session().wait_word({word.index, word.sequence + 1}), CUDA_ERROR_NOT_READY);
  (void)session().lose(Status(Code::kUnavailable, "the test says so"));
  EXPECT_EQ(session().wait_word({word.index, word.sequence + 1}), CUDA_ERROR_NOT_READY);
}

}  // namespace
}  // namespace rcuda::client
