// Events that a worker sends: host functions to run, output of kernels, released objects. Also
// events that no worker would send.
#include "client/session/worker_events.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/process/process.h"
#include "common/base/peer_order.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using wire::Event;

class WorkerEventsTest : public ::testing::Test {
 protected:
  WorkerEvents& events() { return lone_.session->events(); }
  test::PuppetServer& puppet() { return lone_.puppet; }

  template <typename Body>
  void send(Event kind, Body body, const std::string& behind = {}) {
    body.header = {kind, static_cast<uint32_t>(sizeof body - sizeof(wire::EventHeader))};
    std::string frame(reinterpret_cast<const char*>(&body), sizeof body);
    puppet().send_event(std::as_bytes(std::span(frame += behind)));
  }
  void call_back(uint64_t callback, uint32_t slot, uint64_t sequence,
                 CUresult status = CUDA_SUCCESS) {
    wire::HostCallbackEvent event{};
    event.callback = callback;
    event.slot = slot;
    event.sequence = sequence;
    event.status = static_cast<uint32_t>(status);
    send(Event::kHostCallback, event);
  }
  void trace(size_t count) {
    const wire::EventHeader header{Event::kTrace,
                                   static_cast<uint32_t>(count * sizeof(wire::TraceEvent))};
    std::vector<std::byte> frame(sizeof header + header.body_bytes);
    std::memcpy(frame.data(), &header, sizeof header);
    puppet().send_event(frame);
  }
  // Waits until the client has acknowledged the host function. Returns whether it has.
  bool acknowledged(uint32_t slot, uint64_t sequence) {
    auto* word = reinterpret_cast<uint64_t*>(puppet().link().window().data() +
                                             wire::WorkerWindow::kCallbackAcks + 8ull * slot);
    const Status came = puppet().link().wait(
        [&] { return std::atomic_ref(*word).load(std::memory_order_acquire) == sequence; },
        std::chrono::steady_clock::now() + std::chrono::seconds(60));
    after_peer(&lone_.session->link());  // pairs with before_peer() of the acknowledging thread
    return came.ok();
  }
  bool alive() { return lone_.ping() == CUDA_SUCCESS && !lone_.session->lost(); }

  LoneSession lone_;
};

TEST_F(WorkerEventsTest, AHostFunctionRunsOnceAndIsAcknowledged) {
  std::atomic<int> runs{0};
  std::atomic<int> status{-1};
  const uint64_t id = *events().add_callback([&](CUresult result) {
    ++runs;
    status = result;
  });
  call_back(id, 3, 1, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_TRUE(acknowledged(3, 1));
  EXPECT_EQ(status.load(), CUDA_ERROR_LAUNCH_FAILED);
  // A second request is logged as a warning and acknowledged, so that no stream hangs, but the
  // function is not run.
  call_back(id, 3, 2);
  EXPECT_TRUE(acknowledged(3, 2));
  EXPECT_EQ(runs.load(), 1);
  EXPECT_TRUE(alive());
}

TEST_F(WorkerEventsTest, HostFunctionsRunInOrderOnOneThreadThatMayNotCallCuda) {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  EXPECT_FALSE(in_host_function());
  for (int i = 0; i < 5; ++i) {
    const uint64_t id = *events().add_callback([&, i](CUresult) {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
      EXPECT_TRUE(in_host_function());
    });
    call_back(id, static_cast<uint32_t>(i), 1);
  }
  ASSERT_TRUE(acknowledged(4, 1));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  for (const std::thread::id thread : threads) {
    EXPECT_EQ(thread, threads[0]);
    EXPECT_NE(thread, std::this_thread::get_id());
  }
}

TEST_F(WorkerEventsTest, AGraphsFunctionRunsAsOftenAsItIsLaunched) {
  std::atomic<int> runs{0}, released{0};
  WorkerEvents::GraphCallback callback;
  callback.function = [&] { ++runs; };
  callback.released = [&] { ++released; };
  callback.given = {[](void*) {}, &runs};
  const uint64_t id = *events().add_graph_callback(callback);
  CUDA_HOST_NODE_PARAMS given{};
  EXPECT_TRUE(events().host_function_given(id, &given));
  EXPECT_EQ(given.userData, &runs);
  for (uint32_t launch = 1; launch <= 3; ++launch) call_back(id, launch, 1);
  ASSERT_TRUE(acknowledged(3, 1));
  EXPECT_EQ(runs.load(), 3);
  EXPECT_EQ(released.load(), 0);
  send(Event::kReleased, wire::ReleasedEvent{{}, id});
  while (released.load() == 0) std::this_thread::yield();
  EXPECT_FALSE(events().host_function_given(id, &given));
  send(Event::kReleased, wire::ReleasedEvent{{}, id});  // nothing is left to release
  EXPECT_TRUE(alive());
  EXPECT_EQ(released.load(), 1);
}

// With more requests for a slot, a worker could fill this process's memory.
TEST_F(WorkerEventsTest, ASlotHasOneRequestAtATime) {
  std::atomic<bool> go_on{false};
  std::atomic<int> runs{0};
  WorkerEvents::GraphCallback callback;
  callback.function = [&] {
    while (!go_on.load()) std::this_thread::yield();
    ++runs;
  };
  const uint64_t id = *events().add_graph_callback(callback);
  call_back(id, 1, 1);
  call_back(id, 1, 2);
  while (!lone_.session->lost()) std::this_thread::yield();
  go_on = true;
  while (runs.load() == 0) std::this_thread::yield();
}

// The application's functions may take any time; bytes for a graph must not wait for them.
TEST_F(WorkerEventsTest, AnInternalFunctionOvertakesOneOfTheApplication) {
  std::atomic<bool> go_on{false};
  const uint64_t slow = *events().add_callback([&](CUresult) {
    while (!go_on.load()) std::this_thread::yield();
  });
  WorkerEvents::GraphCallback copies;
  copies.function = [] {};
  copies.is_internal = true;
  const uint64_t quick = *events().add_graph_callback(copies);
  call_back(slow, 0, 1);
  call_back(quick, 1, 1);
  EXPECT_TRUE(acknowledged(1, 1));
  go_on = true;
  EXPECT_TRUE(acknowledged(0, 1));
}

TEST_F(WorkerEventsTest, WhatWasTakenBackIsNotRun) {
  std::atomic<int> runs{0};
  const uint64_t id = *events().add_callback([&](CUresult) { ++runs; });
  events().remove_callback(id);
  call_back(id, 0, 1);
  EXPECT_TRUE(acknowledged(0, 1));
  EXPECT_EQ(runs.load(), 0);
}

TEST_F(WorkerEventsTest, StreamCallbacksAreToldOfALossAndHostFunctionsAreNotCalled) {
  std::vector<int> order;
  std::promise<CUresult> last;
  const auto add = [&](int number, bool always) {
    return *events().add_callback([&order, number](CUresult) { order.push_back(number); }, always);
  };
  add(1, true);
  const uint64_t host_function = add(2, false);
  add(3, true);
  ASSERT_TRUE(events().add_callback([&](CUresult status) { last.set_value(status); }, true));
  puppet().link().close();
  std::future<CUresult> told = last.get_future();
  ASSERT_EQ(told.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(told.get(), kSessionLost);
  EXPECT_EQ(order, (std::vector<int>{1, 3}));
  EXPECT_TRUE(events().remove_callback(host_function));
}

// As Session::end() does before it closes the Link.
TEST_F(WorkerEventsTest, ForgottenCallbacksAreNotCalledAfterALoss) {
  std::atomic<int> runs{0};
  std::promise<void> other;
  ASSERT_TRUE(events().add_callback([&](CUresult) { ++runs; }, true));
  events().forget_callbacks();
  ASSERT_TRUE(events().add_callback([&](CUresult) { other.set_value(); }, true));
  puppet().link().close();
  ASSERT_EQ(other.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(runs.load(), 0);
}

TEST_F(WorkerEventsTest, TextOfKernelsComesBeforeTheCallReturns) {
  ::testing::internal::CaptureStdout();
  puppet().on(wire::Custom::kPing, [&](const auto&) {
    send(Event::kOutput, wire::OutputEvent{{}, 0, 5}, "hello");
    return test::PuppetServer::Answer{};
  });
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  std::fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "hello");
}

// An event leaves the ring before it is handled. A call whose reply follows the event must return
// only after the event has been handled.
TEST_F(WorkerEventsTest, ACallReturnsWhenTheEventsBeforeItsReplyAreHandled) {
  std::atomic<bool> handled{false};
  events().set_trace_sink([&](std::span<const wire::TraceEvent>) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    handled = true;
  });
  puppet().on(wire::Custom::kPing, [&](const auto&) {
    trace(1);
    return test::PuppetServer::Answer{};
  });
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  EXPECT_TRUE(handled.load());
  events().set_trace_sink({});
}

TEST_F(WorkerEventsTest, NoEventIsForgottenAtTheEndOfTheRing) {
  std::atomic<size_t> sent{0}, handled{0};
  events().set_trace_sink([&](std::span<const wire::TraceEvent> events) {
    std::this_thread::yield();
    handled += events.size();
  });
  puppet().on(wire::Custom::kPing, [&](const auto&) {
    for (size_t count : {sent % 7 + 1, size_t{700}}) {
      trace(count);
      sent += count;
    }
    return test::PuppetServer::Answer{};
  });
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(lone_.ping(), CUDA_SUCCESS);
    ASSERT_EQ(handled.load(), sent.load()) << i;
  }
  events().set_trace_sink({});
}

// A graph may copy gigabytes; the calls of other threads must not wait for it.
TEST_F(WorkerEventsTest, ACallWaitsForOutputBehindAGraphsCopyAndNotForTheCopy) {
  std::promise<void> called;
  WorkerEvents::GraphCallback copies;
  copies.function = [over = called.get_future().share()] { over.wait(); };
  copies.is_internal = true;
  const uint64_t id = *events().add_graph_callback(copies);
  ::testing::internal::CaptureStdout();
  puppet().on(wire::Custom::kPing, [&](const auto&) {
    call_back(id, 1, 1);
    send(Event::kOutput, wire::OutputEvent{{}, 0, 5}, "hello");
    return test::PuppetServer::Answer{};
  });
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  std::fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "hello");
  called.set_value();
  EXPECT_TRUE(acknowledged(1, 1));
}

TEST_F(WorkerEventsTest, AWarningNamesTheServerAndTheSessionGoesOn) {
  ::testing::internal::CaptureStderr();
  const std::string text = "this session ends in 60 s";
  send(Event::kNotice, wire::NoticeEvent{{}, 0, static_cast<uint32_t>(text.size())}, text);
  EXPECT_TRUE(alive());  // its answer arrives after the event
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find(lone_.session->name() + ": " + text), std::string::npos) << printed;
}

TEST_F(WorkerEventsTest, ASessionThatTheServerEndsIsLostForTheServersReason) {
  ::testing::internal::CaptureStderr();
  const std::string text = "the server ends a session after 10 min";
  send(Event::kNotice, wire::NoticeEvent{{}, 1, static_cast<uint32_t>(text.size())}, text);
  while (!lone_.session->lost()) std::this_thread::yield();
  EXPECT_EQ(lone_.ping(), CUDA_ERROR_DEVICE_UNAVAILABLE);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  const size_t at = printed.find(" is lost: ");
  ASSERT_NE(at, std::string::npos) << printed;
  EXPECT_NE(printed.find(text, at), std::string::npos) << printed;
  EXPECT_EQ(printed.find(" is lost: ", at + 1), std::string::npos) << printed;
}

// ---- events that no worker would send ----

TEST_F(WorkerEventsTest, MalformedEventsAreDroppedAndTheSessionGoesOn) {
  ::testing::internal::CaptureStdout();
  wire::HostCallbackEvent callback{};
  callback.slot = wire::WorkerWindow::kCallbackSlots;  // one past the last
  send(Event::kHostCallback, callback);
  callback.slot = 0xffff'ffff;
  send(Event::kHostCallback, callback);
  send(Event::kOutput, wire::OutputEvent{{}, 0, 6}, "hello");  // claims more than it has
  send(Event::kOutput, wire::OutputEvent{{}, 1, 0xffff'fff0}, "hello");
  send(Event::kNotice, wire::NoticeEvent{{}, 1, 6}, "hello");
  send(Event::kNotice, wire::NoticeEvent{{}, 2, 5}, "hello");
  send(Event::kNotice, wire::NoticeEvent{{}, 1, 1025}, std::string(1025, 'x'));
  send(static_cast<Event>(99), wire::ReleasedEvent{});
  send(static_cast<Event>(0), wire::ReleasedEvent{});
  for (const Event kind : {Event::kHostCallback, Event::kOutput, Event::kTrace, Event::kReleased,
                           Event::kNotice, Event::kReady}) {
    const wire::EventHeader header{kind, 0xffff'ffff};
    puppet().send_event(std::as_bytes(std::span(&header, 1)));  // the header alone
    puppet().send_event(std::as_bytes(std::span(&header, 1)).first(3));
  }
  EXPECT_TRUE(alive());
  std::fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST_F(WorkerEventsTest, ASecondReadyEventChangesNothing) {
  const wire::ReadyEvent ready{{wire::Event::kReady, 40}, 12345, 1, 0, 0, 0};
  puppet().send_event(std::as_bytes(std::span(&ready, 1)));
  EXPECT_TRUE(alive());
}

}  // namespace
}  // namespace rcuda::client
