#include "client/objects/arena.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/objects/kinds.h"
#include "client/session/ids.h"

namespace rcuda::client {
namespace {

TEST(ArenaTest, OnlyLiveHandlesOfTheRightTypeAreFound) {
  auto* event = create<Event>({});
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(find<Event>(event), event);
  EXPECT_EQ(find<Stream>(event), nullptr);
  EXPECT_EQ(find_object(event, wire::Kind::kEvent), event);
  EXPECT_EQ(find_object(event, wire::Kind::kStream), nullptr);
  EXPECT_EQ(find<Event>(reinterpret_cast<char*>(event) + 8), nullptr);
  EXPECT_EQ(find<Event>(event + 1000), nullptr);
  EXPECT_EQ(find<Event>(nullptr), nullptr);
  int local = 0;
  EXPECT_EQ(find<Event>(&local), nullptr);
  destroy(event);
  EXPECT_EQ(find<Event>(event), nullptr);
}

TEST(ArenaTest, AGraphForDeviceLaunchHasTheHandleOfItsWorker) {
  int worker_object, other_object;
  auto* const handle = reinterpret_cast<CUgraphExec>(&worker_object);
  auto* const other_handle = reinterpret_cast<CUgraphExec>(&other_object);
  auto* graph = create<GraphExec>({});
  auto* other = create<GraphExec>({});
  EXPECT_EQ(graph->handle(), reinterpret_cast<CUgraphExec>(graph));
  EXPECT_EQ(find<GraphExec>(handle), nullptr);

  EXPECT_FALSE(graph->use_worker_handle(nullptr));
  EXPECT_FALSE(graph->use_worker_handle(reinterpret_cast<CUgraphExec>(other)));
  EXPECT_FALSE(graph->use_worker_handle(reinterpret_cast<CUgraphExec>(other + 1000)));
  EXPECT_TRUE(graph->use_worker_handle(handle));
  EXPECT_EQ(graph->handle(), handle);
  EXPECT_EQ(find_object(handle, wire::Kind::kGraphExec), graph);
  EXPECT_EQ(find<GraphExec>(graph), graph);
  EXPECT_EQ(find_object(handle, wire::Kind::kGraph), nullptr);

  EXPECT_FALSE(other->use_worker_handle(handle));
  EXPECT_TRUE(other->use_worker_handle(other_handle));
  destroy_object(graph);
  EXPECT_EQ(find<GraphExec>(handle), nullptr);
  EXPECT_EQ(find<GraphExec>(other_handle), other);
  destroy(other);
}

TEST(ArenaTest, EveryKindHasAType) {
  for (int number = 1; number < static_cast<int>(wire::Kind::kCount); ++number) {
    const auto kind = static_cast<wire::Kind>(number);
    EXPECT_EQ(with_type(kind, []<typename T>() { return T::kKind; }), kind);
  }
}

TEST(ArenaTest, AReusedSlotStartsAnew) {
  auto* first = create<Stream>({});
  first->flags = 3;
  first->priority = 9;
  destroy(first);
  auto* second = create<Stream>({});
  ASSERT_EQ(second, first);
  EXPECT_EQ(second->flags, 0u);
  EXPECT_EQ(second->priority, 0);
  destroy(second);
}

TEST(ArenaTest, AReferenceIsToOneObjectAndNotToItsSuccessor) {
  auto* first = create<Context>({});
  const Ref<Context> reference(first);
  EXPECT_EQ(reference.get(), first);
  destroy(first);
  EXPECT_EQ(reference.get(), nullptr);
  auto* second = create<Context>({});
  ASSERT_EQ(second, first);
  EXPECT_EQ(reference.get(), nullptr);
  EXPECT_EQ(reference.handle(), second);
  EXPECT_NE(reference, Ref(second));
  destroy(second);
}

TEST(ArenaTest, ThreadsNeverGetTheSameSlot) {
  constexpr int kThreads = 4, kEach = 1000;
  const auto count = [] {
    size_t visited = 0;
    for_each<Graph>([&](Graph&) { ++visited; });
    return visited;
  };
  const size_t before = count();  // objects of other tests
  std::vector<std::vector<Graph*>> made(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : made) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < kEach; ++i) mine.push_back(create<Graph>({}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count(), before + size_t{kThreads} * kEach);
  for (const auto& mine : made) {
    for (Graph* graph : mine) destroy(graph);
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
