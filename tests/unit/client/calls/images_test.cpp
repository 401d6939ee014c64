#include "client/calls/images.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/channel/staging.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

TEST(ImagesTest, ThreadsThatLoadTheSameImageSendItOnce) {
  using Command = test::PuppetServer::Command;
  using Answer = test::PuppetServer::Answer;
  std::map<ImageHash, uint64_t> missing;  // images that the puppet lacks
  LoneSession lone;
  const auto hash_in = [](const Command& command) {
    ImageHash hash;
    std::memcpy(hash.data(), command.body.data(), hash.size());
    return hash;
  };
  lone.puppet.on(wire::Custom::kImageQuery, [&](const Command& command) {
    const uint64_t bytes = command.as<wire::ImageQueryBody>().bytes;
    const bool present = missing.emplace(hash_in(command), bytes).first->second == 0;
    const std::array<uint32_t, 2> reply{present, 0};
    const auto body = std::as_bytes(std::span(reply));
    return Answer{CUDA_SUCCESS, {body.begin(), body.end()}};
  });
  lone.puppet.on(wire::Custom::kImageChunk, [&](const Command& command) {
    const auto chunk = command.as<wire::ImageChunkBody>();
    missing[hash_in(command)] -= chunk.bytes;
    return Answer{};
  });

  constexpr size_t kChunks = 3;
  constexpr int kImages = 20, kThreads = 4;
  std::vector<std::byte> image(kChunks * Staging::kSlotBytes);
  std::barrier together(kThreads, [&]() noexcept {
    image[0] = static_cast<std::byte>(std::to_integer<int>(image[0]) + 1);
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kImages; ++round) {
        together.arrive_and_wait();
        EXPECT_EQ(send_image(*lone.session, wire::primary_context_id(0), hash_image(image), image),
                  CUDA_SUCCESS);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lone.ping(), CUDA_SUCCESS);
  EXPECT_EQ(lone.puppet.taken(wire::Custom::kImageQuery).size(), size_t{kImages} * kThreads);
  EXPECT_EQ(lone.puppet.taken(wire::Custom::kImageChunk).size(), kImages * kChunks);
}

}  // namespace
}  // namespace rcuda::client
