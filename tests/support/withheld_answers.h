// Withholds a puppet's answers to some kinds of commands until `count` commands of these kinds have
// arrived. If the client waits for an answer before it sends the next command, the test fails after
// 30 s and continues.
//
// Afterwards the puppet answers commands of these kinds immediately, even when this object has been
// destroyed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/peer_order.h"
#include "tests/support/puppet_server.h"

namespace rcuda::test {

class WithheldAnswers {
 public:
  using Answer = PuppetServer::Answer;
  using Command = PuppetServer::Command;

  WithheldAnswers(PuppetServer& puppet, std::vector<wire::Custom> kinds, size_t count,
                  std::function<Answer(const Command&)> answer)
      : puppet_(puppet), kinds_(std::move(kinds)), count_(count), answer_(std::move(answer)) {
    for (const wire::Custom kind : kinds_) {
      puppet.on(kind, [this](const Command& command) -> std::optional<Answer> {
        std::lock_guard lock(mutex_);
        if (over_) return answer_(command);
        held_.push_back(command);
        changed_.notify_all();
        return std::nullopt;
      });
    }
    thread_ = std::thread([this] { release(); });
  }
  ~WithheldAnswers() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
      changed_.notify_all();
    }
    thread_.join();
    for (const wire::Custom kind : kinds_) puppet_.on(kind, answer_);
  }
  WithheldAnswers(const WithheldAnswers&) = delete;
  WithheldAnswers& operator=(const WithheldAnswers&) = delete;

 private:
  void release() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30),
                      [&] { return over_ || held_.size() >= count_; });
    EXPECT_GE(held_.size(), count_);
    over_ = true;
    before_peer(&puppet_);
    for (const Command& command : held_) puppet_.reply(command.header, answer_(command));
  }

  PuppetServer& puppet_;
  const std::vector<wire::Custom> kinds_;
  const size_t count_;
  const std::function<Answer(const Command&)> answer_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Command> held_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace rcuda::test
