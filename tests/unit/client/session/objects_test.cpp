#include "client/session/objects.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/session/ids.h"

namespace rcuda::client {
namespace {

TEST(ObjectsTest, OnlyLiveHandlesOfTheRightKindAreFound) {
  Object* event = create_object(wire::Kind::kEvent);
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(find_object(event, wire::Kind::kEvent), event);
  EXPECT_EQ(find_object(event, wire::Kind::kStream), nullptr);
  EXPECT_EQ(find_object(reinterpret_cast<char*>(event) + 8, wire::Kind::kEvent), nullptr);
  EXPECT_EQ(find_object(nullptr, wire::Kind::kEvent), nullptr);
  int local = 0;
  EXPECT_EQ(find_object(&local, wire::Kind::kEvent), nullptr);
  retire_object(event);
  EXPECT_EQ(find_object(event, wire::Kind::kEvent), nullptr);
}

TEST(ObjectsTest, AReusedSlotStartsAnew) {
  Object* first = create_object(wire::Kind::kStream);
  first->flags = 3;
  first->uses.store(9);
  retire_object(first);
  Object* second = create_object(wire::Kind::kEvent);
  EXPECT_EQ(second->flags, 0u);
  EXPECT_EQ(second->uses.load(), 0u);
  retire_object(second);
}

TEST(ObjectsTest, ThreadsNeverGetTheSameSlot) {
  constexpr int kThreads = 4, kEach = 1000;
  std::vector<std::vector<Object*>> made(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : made) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < kEach; ++i) mine.push_back(create_object(wire::Kind::kGraph));
    });
  }
  for (std::thread& thread : threads) thread.join();
  size_t visited = 0;
  for_each_object(
      wire::Kind::kGraph, [](Object*, void* count) { ++*static_cast<size_t*>(count); }, &visited);
  EXPECT_EQ(visited, size_t{kThreads} * kEach);
  for (const auto& mine : made) {
    for (Object* object : mine) retire_object(object);
  }
}

TEST(IdsTest, AreDensePerKindAndComeBack) {
  Ids ids;
  EXPECT_EQ(ids.mint(wire::Kind::kStream), 1u);
  EXPECT_EQ(ids.mint(wire::Kind::kStream), 2u);
  EXPECT_EQ(ids.mint(wire::Kind::kEvent), 1u);
  EXPECT_EQ(ids.mint(wire::Kind::kContext), wire::kFirstCreatedContext);
  ids.release(wire::Kind::kStream, 1);
  ids.release(wire::Kind::kStream, wire::kWorkerMinted | 5);  // not the client's to reuse
  EXPECT_EQ(ids.mint(wire::Kind::kStream), 1u);
  EXPECT_EQ(ids.mint(wire::Kind::kStream), 3u);
}

}  // namespace
}  // namespace rcuda::client
