// Compares predict_us(), which is a recurrence, with an independent discrete-event simulation of
// chunks and legs.
#include "p2p/plan/predict.h"

#include <deque>
#include <functional>
#include <queue>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::p2p {
namespace {

class Simulation {
 public:
  Simulation(const Pipeline& pipeline, uint64_t bytes, Chunking chunking)
      : pipeline_(pipeline), queues_(pipeline.leg_count), busy_(pipeline.leg_count, false) {
    const uint64_t chunk = std::min(chunking.chunk_bytes, bytes);
    for (uint64_t at = 0; at < bytes; at += chunk) waiting_.push_back(std::min(chunk, bytes - at));
    places_ = chunking.depth;
  }

  double run() {
    at(pipeline_.setup_us, [this] { admit(); });
    double now = 0;
    while (!events_.empty()) {
      Event event = events_.top();
      events_.pop();
      now_ = now = event.us;
      event.action();
    }
    return last_end_ + pipeline_.finish_us;
  }

 private:
  struct Event {
    double us;
    uint64_t order;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return us != other.us ? us > other.us : order > other.order;
    }
  };

  void at(double us, std::function<void()> action) {
    events_.push({us, sequence_++, std::move(action)});
  }
  void admit() {
    while (places_ > 0 && !waiting_.empty()) {
      --places_;
      const uint64_t bytes = waiting_.front();
      waiting_.pop_front();
      enter(0, bytes);
    }
  }
  void enter(size_t leg, uint64_t bytes) {
    queues_[leg].push_back(bytes);
    start(leg);
  }
  void start(size_t leg) {
    if (busy_[leg] || queues_[leg].empty()) return;
    const uint64_t bytes = queues_[leg].front();
    queues_[leg].pop_front();
    busy_[leg] = true;
    at(now_ + pipeline_.legs[leg]->occupancy_us(bytes), [this, leg, bytes] {
      busy_[leg] = false;
      at(now_ + pipeline_.legs[leg]->delay_us(bytes),
         [this, leg, bytes] { delivered(leg, bytes); });
      start(leg);
    });
  }
  void delivered(size_t leg, uint64_t bytes) {
    if (leg + 1 < pipeline_.leg_count) {
      at(now_ + pipeline_.handoff_us, [this, leg, bytes] { enter(leg + 1, bytes); });
      return;
    }
    last_end_ = std::max(last_end_, now_);
    at(now_ + pipeline_.credit_us, [this] {
      ++places_;
      admit();
    });
  }

  const Pipeline& pipeline_;
  std::deque<uint64_t> waiting_;
  std::vector<std::deque<uint64_t>> queues_;
  std::vector<bool> busy_;
  uint32_t places_ = 0;
  std::priority_queue<Event> events_;
  uint64_t sequence_ = 0;
  double now_ = 0;
  double last_end_ = 0;
};

TEST(PredictTest, AgreesWithSimulationOnRandomPipelines) {
  std::mt19937 random(5);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int i = 0; i < 2000; ++i) {
    LegModel legs[3];
    Pipeline pipeline;
    const size_t count = 1 + random() % 3;
    for (size_t leg = 0; leg < count; ++leg) {
      legs[leg] = LegModel::linear(uniform(0, 10), uniform(1, 60), uniform(0, 10));
      pipeline.add_leg(legs[leg]);
    }
    pipeline.setup_us = uniform(0, 20);
    pipeline.handoff_us = uniform(0, 3);
    pipeline.credit_us = uniform(0, 3);
    pipeline.finish_us = uniform(0, 3);
    const uint64_t bytes = 1 + random() % (8u << 20);
    const Chunking chunking{uint64_t{4096} << (random() % 9),
                            1 + static_cast<uint32_t>(random() % 16)};
    const double simulated = Simulation(pipeline, bytes, chunking).run();
    const double predicted = predict_us(pipeline, bytes, chunking);
    // Short copies are evaluated exactly, long ones are extrapolated.
    const uint64_t chunks = bytes / chunking.chunk_bytes;
    const double tolerance = chunks <= 6 * chunking.depth + 32 ? 1e-9 : 0.01;
    ASSERT_NEAR(predicted / simulated, 1, tolerance)
        << bytes << " bytes in " << chunking.chunk_bytes << " x " << chunking.depth;
  }
}

TEST(PredictTest, DepthOneIsTheSumOfTheLegs) {
  const LegModel leg = LegModel::linear(0, 10);
  Pipeline pipeline;
  pipeline.add_leg(leg);
  pipeline.add_leg(leg);
  pipeline.add_leg(leg);
  const double us = predict_us(pipeline, 64 << 20, {1 << 20, 1});
  EXPECT_NEAR(us, 3 * leg.time_us(64 << 20), 1e-6);
}

TEST(PredictTest, DeepPipelineTakesTheSlowestLeg) {
  const LegModel fast = LegModel::linear(0, 50);
  const LegModel slow = LegModel::linear(0, 10);
  Pipeline pipeline;
  pipeline.add_leg(fast);
  pipeline.add_leg(slow);
  pipeline.add_leg(fast);
  const double us = predict_us(pipeline, 256 << 20, {1 << 20, 4});
  EXPECT_NEAR(us / slow.time_us(256 << 20), 1, 0.01);
}

TEST(PredictTest, EmptyCopyCostsOneChunkOfNothing) {
  const LegModel leg = LegModel::linear(3, 10);
  Pipeline pipeline;
  pipeline.add_leg(leg);
  pipeline.finish_us = 1;
  EXPECT_NEAR(predict_us(pipeline, 0, {0, 1}), 4, 1e-9);
}

}  // namespace
}  // namespace rcuda::p2p
