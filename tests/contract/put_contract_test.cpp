// Puts, their order and visibility, and sleeping until they arrive.
#include <mutex>
#include <random>
#include <thread>

#include "tests/contract/link_contract.h"

namespace rcuda::test {
namespace {

using transport::Bytes;
using transport::Link;
using transport::LinkOptions;
using transport::Wake;
using transport::WokenBy;

class PutContract : public LinkContract {
 protected:
  void put_by_many_threads(const LinkOptions& options, Wake wake);
};

TEST_P(PutContract, WindowsAreZeroedAlignedAndAsLargeAsAskedFor) {
  connect({.window_bytes = 64 << 10}, {.window_bytes = 192 << 10});
  EXPECT_EQ(client().window().size(), 64u << 10);
  EXPECT_EQ(server().window().size(), 192u << 10);
  EXPECT_EQ(client().peer_window_bytes(), 192u << 10);
  EXPECT_EQ(server().peer_window_bytes(), 64u << 10);
  for (Link* link : {&client(), &server()}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(link->window().data()) % 4096, 0u);
    for (std::byte b : link->window()) ASSERT_EQ(b, std::byte{0});
    EXPECT_STREQ(link->medium(), medium().name());
  }
}

TEST_P(PutContract, RefusesPutsThatDoNotFit) {
  connect({}, {.window_bytes = 4096});
  const std::vector<std::byte> bytes(8192);
  const auto put = [&](uint64_t offset, size_t head, size_t body) {
    return client().put(offset, Bytes(bytes).first(head), Bytes(bytes).first(body), Wake::kNo);
  };
  EXPECT_TRUE(put(0, 4096, 0).ok());
  EXPECT_TRUE(put(4088, 3, 5).ok());
  EXPECT_EQ(put(0, 0, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(put(0, 5, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(put(4, 8, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(put(4096, 8, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(put(4088, 8, 8).code(), Code::kInvalidArgument);
  EXPECT_EQ(put(0, 4096, 8).code(), Code::kInvalidArgument);
  EXPECT_EQ(put(~uint64_t{7}, 8, 8).code(), Code::kInvalidArgument);
}

void PutContract::put_by_many_threads(const LinkOptions& options, Wake wake) {
  const int count = rounds(60'000, faulty());
  connect(options, {.window_bytes = 1 << 20});
  std::mutex order;
  int next = 1;
  const auto writer = [&] {
    while (true) {
      std::lock_guard lock(order);
      if (next > count) return;
      const int number = next++;
      ASSERT_TRUE(put_word(client(), number * 8, number, number % 16 ? Wake::kNo : wake).ok());
    }
  };
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) writers.emplace_back(writer);

  // If a word is visible, all words put before it must be visible.
  int seen = 0;
  std::mt19937 random(1);
  while (seen < count) {
    const int probe = seen + 1 + static_cast<int>(random() % 64);
    if (probe <= count && load(server(), probe * 8) == static_cast<uint64_t>(probe)) {
      for (int i = seen + 1; i < probe; ++i) ASSERT_EQ(load(server(), i * 8), uint64_t(i));
      seen = probe;
    } else if (load(server(), (seen + 1) * 8) != 0) {
      ++seen;
    } else if (random() % 64 == 0) {
      std::this_thread::yield();
    }
  }
  for (std::thread& thread : writers) thread.join();
}

// Offset and size of the n-th put; both sides compute them.
struct Place {
  explicit Place(int number) {
    std::mt19937 random(number);
    words = 2 + random() % (number % 100 == 0 ? 60'000 : 200);
    offset = random() % 1000 * 8;
  }
  size_t payload() const { return (words - 1) * 8; }  // bytes before the last word
  size_t words;
  uint64_t offset;
};

TEST_P(PutContract, PutsOfManyThreadsArriveInTheOrderOfIssue) {
  put_by_many_threads({}, Wake::kYes);
}

TEST_P(PutContract, PutsThatAreHandedOverArriveInTheOrderOfIssue) {
  if (!traits().copies_by_cpu) GTEST_SKIP() << "hands nothing over";
  put_by_many_threads({.receive_spin = std::chrono::milliseconds(1)}, Wake::kHandOver);
}

// Both sides only poll: a put that put() has passed to a thread of the Link is sent without a later
// call, whether that thread is awake or asleep.
TEST_P(PutContract, APutThatIsHandedOverNeedsNoFurtherCall) {
  if (!traits().copies_by_cpu) GTEST_SKIP() << "hands nothing over";
  constexpr auto kSpin = std::chrono::milliseconds(1);
  const LinkOptions options{.receive_spin = kSpin};
  connect(options, options);
  const uint64_t count = static_cast<uint64_t>(rounds(2000, faulty()));
  const auto sees = [](Link& link, uint64_t value) {
    const auto deadline = soon();
    while (load(link, 0) != value) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  };
  std::thread echo([&] {
    for (uint64_t i = 1; i <= count; ++i) {
      ASSERT_TRUE(sees(server(), i)) << i;
      ASSERT_TRUE(put_word(server(), 0, i, i % 3 == 0 ? Wake::kNow : Wake::kHandOver).ok());
    }
  });
  for (uint64_t i = 1; i <= count; ++i) {
    if (i % 64 == 0) std::this_thread::sleep_for(3 * kSpin);
    ASSERT_TRUE(put_word(client(), 0, i, Wake::kHandOver).ok());
    if (!sees(client(), i)) {
      ADD_FAILURE() << "no answer to " << i;
      break;
    }
  }
  echo.join();
}

TEST_P(PutContract, TheLastWordIsVisibleLast) {
  connect();
  constexpr uint64_t kAckOffset = 8;
  const int count = rounds(4000, faulty());
  std::thread receiver([&] {
    for (int number = 1; number <= count; ++number) {
      const Place place(number);
      while (load(server(), place.offset + place.payload()) != static_cast<uint64_t>(number)) {
        std::this_thread::yield();
      }
      const auto bytes = server().window().subspan(place.offset, place.words * 8);
      ASSERT_TRUE(has_pattern(bytes.first(place.payload()), number));
      std::memset(bytes.data(), 0, bytes.size());
      ASSERT_TRUE(put_word(server(), kAckOffset, number).ok());
    }
  });
  std::mt19937 random(7);
  for (int number = 1; number <= count; ++number) {
    const Place place(number);
    std::vector<std::byte> bytes(place.words * 8);
    fill_pattern(std::span(bytes).first(place.payload()), number);
    const uint64_t last = number;
    std::memcpy(bytes.data() + place.payload(), &last, 8);
    const size_t cut = random() % bytes.size();  // pieces may be cut anywhere
    const Bytes all(bytes);
    ASSERT_TRUE(client().put(place.offset, all.first(cut), all.subspan(cut), Wake::kNo).ok());
    const auto acknowledged = [&] { return load(client(), kAckOffset) == uint64_t(number); };
    ASSERT_TRUE(client().wait(acknowledged, soon()).ok());
  }
  receiver.join();
}

TEST_P(PutContract, SleepersAreWokenByEveryPutThatSaysSo) {
  connect();
  const int count = rounds(traits().shares_pages ? 200'000 : 20'000, faulty());
  std::thread other([&] {
    for (int i = 1; i <= count; ++i) {
      ASSERT_TRUE(server().wait([&] { return load(server(), 0) == uint64_t(i); }, soon()).ok());
      ASSERT_TRUE(put_word(server(), 0, i).ok());
    }
  });
  for (int i = 1; i <= count; ++i) {
    ASSERT_TRUE(put_word(client(), 0, i).ok());
    ASSERT_TRUE(client().wait([&] { return load(client(), 0) == uint64_t(i); }, soon()).ok());
  }
  other.join();
}

TEST_P(PutContract, SeveralSleepersEachSeeTheirOwnWord) {
  connect();
  constexpr int kSleepers = 4;
  const int count = rounds(5000, faulty());
  std::vector<std::thread> sleepers;
  for (int s = 0; s < kSleepers; ++s) {
    sleepers.emplace_back([&, s] {
      for (int i = 1; i <= count; ++i) {
        const auto ready = [&] { return load(server(), s * 8) >= uint64_t(i); };
        ASSERT_TRUE(server().wait(ready, soon()).ok());
      }
    });
  }
  std::vector<std::thread> writers;
  for (int s = 0; s < kSleepers; ++s) {
    writers.emplace_back([&, s] {
      for (int i = 1; i <= count; ++i) ASSERT_TRUE(put_word(client(), s * 8, i).ok());
    });
  }
  for (std::thread& thread : writers) thread.join();
  for (std::thread& thread : sleepers) thread.join();
}

TEST_P(PutContract, APutWithoutWakeIsSeenWithTheNextThatWakes) {
  connect();
  std::thread sleeper([&] {
    ASSERT_TRUE(server().wait([&] { return load(server(), 0) == 1; }, soon()).ok());
    EXPECT_EQ(load(server(), 64), 2u);
    EXPECT_EQ(load(server(), 72), 3u);
  });
  ASSERT_TRUE(put_word(client(), 64, 2, Wake::kNo).ok());
  ASSERT_TRUE(put_word(client(), 72, 3, Wake::kWithNext).ok());
  ASSERT_TRUE(put_word(client(), 0, 1, Wake::kYes).ok());
  sleeper.join();
}

TEST_P(PutContract, WhoListensForSomethingElseSleepsThroughAnswers) {
  constexpr transport::WindowPart kAnswers{4096, 4096};
  connect({.answers = kAnswers});
  std::atomic<int> looks{0};
  std::thread listener([&] {
    const auto ready = [&] {
      ++looks;
      return load(client(), 64) == 1;
    };
    EXPECT_TRUE(client().wait(ready, soon(), WokenBy::kNotAnswers).ok());
  });
  // The waiter checks before it counts itself as a sleeper, and once more before it sleeps.
  while (looks < 2) std::this_thread::yield();
  constexpr int kPuts = 200;
  for (int i = 1; i <= kPuts; ++i) {
    ASSERT_TRUE(put_word(server(), kAnswers.offset, i, Wake::kNow).ok());
    ASSERT_TRUE(
        client().wait([&] { return load(client(), kAnswers.offset) == uint64_t(i); }, soon()).ok());
  }
  // Spurious wake-ups by the kernel are rare.
  if (!traits().has_adapter) {
    EXPECT_LT(looks, kPuts / 4);
  }
  ASSERT_TRUE(put_word(server(), 64, 1, Wake::kYes).ok());
  listener.join();
}

TEST_P(PutContract, WhoListensForSomethingElseLearnsOfInterruptsAndOfTheEnd) {
  connect({.answers = {4096, 4096}});
  std::atomic<bool> flag{false};
  std::thread listener([&] {
    const auto wait = [&](bool value) {
      return client().wait([&, value] { return flag == value; }, soon(), WokenBy::kNotAnswers);
    };
    EXPECT_TRUE(wait(true).ok());
    EXPECT_EQ(wait(false).code(), Code::kUnavailable);
  });
  flag = true;
  client().interrupt();
  client().close();
  listener.join();
}

TEST_P(PutContract, WaitEndsAtItsDeadlineAndWhenInterrupted) {
  connect();
  const auto now = std::chrono::steady_clock::now();
  EXPECT_TRUE(client().wait([] { return true; }, now).ok());
  EXPECT_EQ(client().wait([] { return false; }, now).code(), Code::kTimeout);
  EXPECT_EQ(client().wait([] { return false; }, now + std::chrono::milliseconds(20)).code(),
            Code::kTimeout);
  std::atomic<bool> flag{false};
  std::thread sleeper(
      [&] { EXPECT_TRUE(client().wait([&] { return flag.load(); }, soon()).ok()); });
  flag = true;
  client().interrupt();
  sleeper.join();
}

TEST_P(PutContract, BothDirectionsFloodedAtOnceDoNotBlockEachOther) {
  connect({.window_bytes = 1 << 20}, {.window_bytes = 1 << 20});
  const int count = rounds(20'000, faulty());
  const auto flood = [&](Link& link) {
    std::vector<std::byte> bytes(4096);
    for (int i = 1; i <= count; ++i) {
      const uint64_t last = i;
      std::memcpy(bytes.data() + bytes.size() - 8, &last, 8);
      ASSERT_TRUE(link.put(0, bytes, {}, Wake::kYes).ok());
    }
  };
  std::thread one([&] { flood(client()); });
  std::thread two([&] { flood(server()); });
  const auto arrived = [&](Link& link) {
    return link.wait([&] { return load(link, 4088) == uint64_t(count); }, soon());
  };
  EXPECT_TRUE(arrived(client()).ok());
  EXPECT_TRUE(arrived(server()).ok());
  one.join();
  two.join();
}

TEST_P(PutContract, CountsPutsAndBytes) {
  connect();
  const std::vector<std::byte> bytes(104);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(client().put(i * 104, bytes, {}, Wake::kNo).ok());
  }
  ASSERT_TRUE(put_word(client(), 4096, 1).ok());
  ASSERT_TRUE(server().wait([&] { return load(server(), 4096) == 1; }, soon()).ok());
  const transport::LinkCounters counters = client().counters();
  EXPECT_EQ(counters.puts, 11u);
  EXPECT_EQ(counters.window_bytes, 10 * 104u + 8);
  EXPECT_EQ(counters.transfer_bytes, 0u);
}

// The documented cost of RDMA: a posted command is one work request, and the receiver handles no
// completion. Only a receiver that sleeps costs more.
TEST_P(PutContract, WithAnAdapterAPutIsOneWorkRequestAndNoReceive) {
  if (!traits().has_adapter || faulty()) GTEST_SKIP() << "about adapters";
  connect();
  const std::vector<std::byte> launch(104);
  const transport::LinkCounters before = client().counters();
  const transport::LinkCounters receiver = server().counters();
  constexpr int kPuts = 1000;
  for (int i = 0; i < kPuts; ++i) {
    ASSERT_TRUE(client().put(64 + i % 100 * 104, launch, {}, Wake::kYes).ok());
  }
  ASSERT_TRUE(put_word(client(), 0, 1).ok());
  while (load(server(), 0) != 1) std::this_thread::yield();
  const transport::LinkCounters after = client().counters();
  EXPECT_EQ(after.work_requests - before.work_requests, kPuts + 1u);
  EXPECT_LE(after.doorbells - before.doorbells, kPuts + 1u);
  EXPECT_LE(after.completions - before.completions, kPuts / 32u);
  EXPECT_EQ(after.wakes, before.wakes);
  EXPECT_EQ(server().counters().completions, receiver.completions);
  EXPECT_EQ(server().counters().work_requests, receiver.work_requests);
}

INSTANTIATE_TEST_SUITE_P(Link, PutContract, testing::ValuesIn(link_cases()), link_case_name);

}  // namespace
}  // namespace rcuda::test
