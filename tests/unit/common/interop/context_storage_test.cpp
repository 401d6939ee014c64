#include "common/interop/context_storage.h"

#include <atomic>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::interop {
namespace {

CUcontext context(uintptr_t number) { return reinterpret_cast<CUcontext>(number << 8); }
void* word(uintptr_t number) { return reinterpret_cast<void*>(number); }

std::vector<std::tuple<CUcontext, void*, void*>>& destroyed() {
  static std::vector<std::tuple<CUcontext, void*, void*>> list;
  return list;
}
void record(CUcontext context, void* key, void* value) {
  destroyed().emplace_back(context, key, value);
}

TEST(ContextStorage, KeepsValuesByContextAndKey) {
  ContextStorage storage;
  storage.put(context(1), word(1), word(11), nullptr);
  storage.put(context(1), word(2), word(12), nullptr);
  storage.put(context(2), word(1), word(21), nullptr);
  EXPECT_EQ(storage.get(context(1), word(1)), word(11));
  EXPECT_EQ(storage.get(context(1), word(2)), word(12));
  EXPECT_EQ(storage.get(context(2), word(1)), word(21));
  EXPECT_EQ(storage.get(context(2), word(2)), std::nullopt);
}

TEST(ContextStorage, SeesChangesBehindTheThreadsCache) {
  ContextStorage storage;
  storage.put(context(1), word(1), word(11), nullptr);
  EXPECT_EQ(storage.get(context(1), word(1)), word(11));
  storage.put(context(1), word(1), word(12), nullptr);
  EXPECT_EQ(storage.get(context(1), word(1)), word(12));
  std::thread([&] { EXPECT_TRUE(storage.remove(context(1), word(1))); }).join();
  EXPECT_EQ(storage.get(context(1), word(1)), std::nullopt);
  EXPECT_FALSE(storage.remove(context(1), word(1)));
}

TEST(ContextStorage, RunsDestructorsWhenTheContextGoes) {
  destroyed().clear();
  ContextStorage storage;
  storage.put(context(1), word(1), word(11), record);
  storage.put(context(1), word(2), word(12), record);
  storage.put(context(1), word(3), word(13), nullptr);
  storage.put(context(2), word(1), word(21), record);
  ASSERT_TRUE(storage.remove(context(1), word(2)));
  EXPECT_TRUE(storage.has_values(context(1)));
  storage.destroy(context(1));
  EXPECT_FALSE(storage.has_values(context(1)));
  EXPECT_TRUE(storage.has_values(context(2)));
  ASSERT_EQ(destroyed().size(), 1u);
  EXPECT_EQ(destroyed()[0], std::make_tuple(context(1), word(1), word(11)));
  EXPECT_EQ(storage.get(context(1), word(3)), std::nullopt);
  EXPECT_EQ(storage.get(context(2), word(1)), word(21));
  storage.destroy(context(1));
  EXPECT_EQ(destroyed().size(), 1u);
}

TEST(ContextStorage, ServesThreadsAtOnce) {
  ContextStorage storage;
  std::atomic<bool> stop{false};
  storage.put(context(9), word(9), word(99), nullptr);
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) EXPECT_EQ(storage.get(context(9), word(9)), word(99));
    });
  }
  for (uintptr_t i = 0; i < 2000; ++i) {
    storage.put(context(1), word(i % 7), word(i), nullptr);
    storage.remove(context(1), word((i + 3) % 7));
  }
  storage.destroy(context(1));
  stop = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace rcuda::interop
