#include "client/code/images.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/code/functions.h"
#include "client/code/module_images.h"
#include "client/session/staging.h"
#include "client/settings/settings.h"
#include "tests/support/withheld_answers.h"
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

// Over a network, filling a slot takes a round trip. In this test, the command after it takes the
// round trip: the session has RCUDA_SYNC, so each command does.
TEST(ImagesTest, SlotsOfALargeImageAreFilledAtTheSameTime) {
  using Answer = test::PuppetServer::Answer;
  ::setenv("RCUDA_COPY_THREADS", "2", 0);
  ASSERT_TRUE(load_settings().ok());
  test::PuppetServer puppet(test::PuppetServer::welcome_with(1));
  SessionOptions options;
  options.medium = transport::find_medium("shm");
  options.synchronous = true;
  auto session = Session::open({nullptr, "127.0.0.1", puppet.port(), {0}, {0}}, options);
  ASSERT_TRUE(session.ok()) << session.status().message();
  puppet.on(wire::Custom::kImageQuery, [](const auto&) {
    const std::array<uint32_t, 2> lacks{};
    const auto body = std::as_bytes(std::span(lacks));
    return Answer{CUDA_SUCCESS, {body.begin(), body.end()}};
  });
  const test::WithheldAnswers chunks(puppet, {wire::Custom::kImageChunk}, 2,
                                     [](const auto&) { return Answer{}; });
  const std::vector<std::byte> image(3 * Staging::kSlotBytes);
  EXPECT_EQ(send_image(**session, wire::primary_context_id(0), hash_image(image), image),
            CUDA_SUCCESS);
  EXPECT_EQ(puppet.taken(wire::Custom::kImageChunk).size(), 3u);
}

// Loads an image in a session whose worker has the image, or receives it as one chunk.
class LoadTest : public ::testing::Test {
 protected:
  using Command = test::PuppetServer::Command;
  using Answer = test::PuppetServer::Answer;

  LoadTest() {
    puppet().on(wire::Custom::kImageQuery, [this](const auto&) {
      return Answer{CUDA_SUCCESS, bytes_of(std::array<uint32_t, 2>{has_image_.load(), 0})};
    });
    puppet().on(wire::Custom::kImageChunk, [this](const auto&) {
      has_image_ = takes_image_.load();
      return Answer{};
    });
    puppet().on(wire::Custom::kModuleLoad, [this](const auto&) {
      return Answer{has_image_ ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY,
                    bytes_of(std::array<uint32_t, 2>{})};
    });
    puppet().on(wire::Custom::kFunctionInfo, [this](const auto&) {
      const std::array<int32_t, 2 + wire::kFunctionAttributeCount> info{};
      return has_image_ ? Answer{CUDA_SUCCESS, bytes_of(info)} : Answer{CUDA_ERROR_NOT_READY, {}};
    });
  }
  template <typename Body>
  static std::vector<std::byte> bytes_of(const Body& body) {
    const auto bytes = std::as_bytes(std::span(body));
    return {bytes.begin(), bytes.end()};
  }
  test::PuppetServer& puppet() { return lone_.puppet; }
  CUresult load(const char* text) {
    ImageParts image;
    EXPECT_EQ(measure_image(text, std::nullopt, &image), CUDA_SUCCESS);
    JitOptions none;
    return load_image(*lone_.session, wire::primary_context_id(0), wire::Custom::kModuleLoad, 5,
                      image, none, &functions_);
  }
  // The numbers of ImageQuery, ImageChunk, ModuleLoad and FunctionInfo commands since the last
  // call.
  std::vector<size_t> came() {
    EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
    std::vector<size_t> counts;
    for (const auto opcode : {wire::Custom::kImageQuery, wire::Custom::kImageChunk,
                              wire::Custom::kModuleLoad, wire::Custom::kFunctionInfo}) {
      counts.push_back(puppet().taken(opcode).size());
    }
    return counts;
  }

  static constexpr char kOne[] = ".version 8.0\n.target sm_90\n.visible .entry only() {}\n";
  static constexpr char kTwo[] =
      ".version 8.0\n.target sm_90\n.visible .entry one() {}\n.visible .entry two() {}\n";
  std::atomic<bool> has_image_{true}, takes_image_{true};
  LoadedFunctions functions_;
  LoneSession lone_;
};

TEST_F(LoadTest, TheOnlyFunctionOfAnImageIsAskedForWithIt) {
  EXPECT_EQ(load(kOne), CUDA_SUCCESS);
  ASSERT_EQ(functions_.size(), 1u);
  EXPECT_EQ(functions_.front().name, "only");
  EXPECT_EQ(came(), (std::vector<size_t>{1, 0, 1, 1}));
}

// This session is over shared memory; frames_test.py tests the same over TCP.
TEST_F(LoadTest, OneOfSeveralFunctionsIsNot) {
  EXPECT_EQ(load(kTwo), CUDA_SUCCESS);
  EXPECT_TRUE(functions_.empty());
  EXPECT_EQ(came(), (std::vector<size_t>{1, 0, 1, 0}));
}

// The client sends the load with the query. That load fails, so there are two ModuleLoad commands.
TEST_F(LoadTest, AnImageThatTheWorkerLacksIsSentAndLoadedThen) {
  has_image_ = false;
  EXPECT_EQ(load(kOne), CUDA_SUCCESS);
  EXPECT_TRUE(functions_.empty());
  EXPECT_EQ(came(), (std::vector<size_t>{1, 1, 2, 1}));
}

TEST_F(LoadTest, AnImageThatDoesNotArriveIsAnError) {
  has_image_ = takes_image_ = false;
  EXPECT_EQ(load(kOne), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_TRUE(functions_.empty());
  EXPECT_EQ(came(), (std::vector<size_t>{1, 1, 2, 1}));
}

}  // namespace
}  // namespace rcuda::client
