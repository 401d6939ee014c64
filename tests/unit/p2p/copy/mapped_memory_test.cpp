// Copies through memory that the peer has mapped, and copies whose memory cannot be mapped.
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/two_workers.h"

namespace rcuda::p2p {
namespace {

TEST(MappedMemoryTest, FreeingWaitsForThePeersToUnmap) {
  TwoWorkers pair("shm", "ipc", true);
  const uint64_t bytes = 4 * kMiB;
  std::byte* source = pair.a().make_memory(bytes);
  CopyRequest request;
  request.id = 1;
  request.source = Shape::plain(address_of(source) + 100, bytes - 100);
  request.destination = Shape::plain(address_of(pair.b().make_memory(bytes)), bytes - 100);
  const uint64_t opened = pair.b().opened();
  auto result = start_copy(pair.session, request);
  pair.session.settle();
  ASSERT_TRUE(result->over() && result->source.ok());
  request.id = 2;
  result = start_copy(pair.session, request);  // one mapping for both copies
  pair.session.settle();
  ASSERT_TRUE(result->over() && result->source.ok());
  EXPECT_EQ(pair.b().opened(), opened + 1);

  bool forgotten = false;
  pair.session.core(0).release_memory({address_of(source), bytes, [&] { forgotten = true; }});
  EXPECT_FALSE(forgotten);
  pair.session.settle();
  EXPECT_TRUE(forgotten);
  // Memory that no peer has mapped is released at once.
  bool unknown = false;
  pair.session.core(0).release_memory({4096, 64, [&] { unknown = true; }});
  EXPECT_TRUE(unknown);
  pair.a().free_memory(source);
}

TEST(MappedMemoryTest, MemoryOfALostPeerIsUnmapped) {
  TwoWorkers pair("shm", "ipc", true);
  pair.expect_works(1);
  EXPECT_GT(pair.b().mapped(), 0u);
  pair.cable.cut();
  pair.session.settle();
  EXPECT_EQ(pair.a().mapped(), 0u);
  EXPECT_EQ(pair.b().mapped(), 0u);
}

TEST(MappedMemoryTest, MemoryThatCannotBeMappedIsStaged) {
  TwoWorkers pair("shm", "ipc", true);
  pair.b().fail_mapping(1);
  const uint64_t opened = pair.b().opened();
  pair.expect_works(1);
  EXPECT_EQ(pair.b().opened(), opened);
  pair.expect_streams_free();
  pair.expect_works(2);
  EXPECT_EQ(pair.b().opened(), opened + 1);
}

// The copies of a stream take effect in the stream's order, whichever of them is staged.
TEST(MappedMemoryTest, AStagedCopyKeepsItsPlaceAmongMappedOnes) {
  constexpr uint64_t kBytes[] = {16 * kMiB, kMiB, 4096};
  for (const int refused : {1, 2, 3}) {
    TwoWorkers pair("shm", "ipc", true);
    pair.b().fail_mapping(refused);
    std::byte* destination = pair.b().make_memory(kBytes[0]);
    std::vector<std::byte> expected(kBytes[0]);
    std::vector<std::shared_ptr<CopyResult>> results;
    for (uint64_t id = 1; id <= 3; ++id) {
      const uint64_t bytes = kBytes[id - 1];
      std::byte* source = pair.a().make_memory(bytes);
      fill(source, bytes, static_cast<uint32_t>(id));
      std::memcpy(expected.data(), source, bytes);
      CopyRequest request;
      request.id = id;
      request.source = Shape::plain(address_of(source), bytes);
      request.destination = Shape::plain(address_of(destination), bytes);
      request.source_stream = pair.streams[0];
      request.follows = id > 1;
      results.push_back(start_copy(pair.session, request));
    }
    pair.session.settle();
    for (const auto& result : results) EXPECT_TRUE(result->over() && result->source.ok());
    EXPECT_EQ(std::memcmp(expected.data(), destination, expected.size()), 0) << refused;
    pair.expect_streams_free();
  }
}

TEST(MappedMemoryTest, MemoryThatCannotBeExportedIsStaged) {
  TwoWorkers pair("shm", "ipc", true);
  pair.a().allow_ipc(false);
  pair.expect_works(1);
}

}  // namespace
}  // namespace rcuda::p2p
