#include "p2p/plan/measurements.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace rcuda::p2p {
namespace {

Measurements example() {
  Measurements measurements;
  measurements.set({"copy_out", "GPU-1", "", ""}, LegModel::linear(2, 50, 5));
  measurements.set({"copy_in", "GPU-2", "", ""},
                   *LegModel::from_knots({{4096, 1.25}, {65536, 2.5}, {1 << 20, 20}}, 4.5));
  measurements.set({"wire", "", "mlx5_0", "node\"2\\"}, LegModel::linear(1, 24, 1));
  measurements.set({"wire", "", "tcp", "node3"},
                   *LegModel::from_knots({{4096, 1, 2}, {65536, 3, 8}, {1 << 20, 40, 60}}));
  measurements.set({"message", "", "mlx5_0", "node\"2\\"},
                   *LegModel::from_knots({{0, 1.5}, {64, 1.5}}, 0));
  return measurements;
}

class MeasurementsFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/rcuda-measurements-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(MeasurementsFileTest, SurvivesTheFile) {
  const std::string path = folder_ + "/new/p2p.toml";
  ASSERT_TRUE(example().save(path).ok());
  const auto loaded = Measurements::load(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Measurements saved = example();
  ASSERT_EQ(loaded->legs().size(), saved.legs().size());
  for (const auto& [key, leg] : saved.legs()) {
    const LegModel* read = loaded->find(key);
    ASSERT_NE(read, nullptr) << key.kind;
    ASSERT_EQ(read->knots().size(), leg.knots().size());
    EXPECT_NEAR(read->time_us(300'000), leg.time_us(300'000), 1e-3);
    EXPECT_NEAR(read->delay_us(100'000), leg.delay_us(100'000), 1e-4);
  }
  // The replacement has left no other file.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/new"), {}), 1);
}

// The workers of a server finish their measurements at about the same time.
TEST_F(MeasurementsFileTest, WorkersThatSaveAtOnceKeepWhatTheOthersSaved) {
  constexpr int kWorkers = 4;
  constexpr int kLegs = 8;
  const std::string path = folder_ + "/p2p.toml";
  const auto key = [](int worker, int leg) {
    return LegKey{"copy_out", "GPU-" + std::to_string(worker) + "-" + std::to_string(leg), "", ""};
  };
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&, worker] {
      for (int leg = 0; leg < kLegs; ++leg) {
        Measurements one;
        one.set(key(worker, leg), LegModel::linear(2, 50, 5));
        Status saved = one.save(path);
        // On a busy machine the others may hold the lock for longer than save() waits.
        while (saved.code() == Code::kTimeout) saved = one.save(path);
        EXPECT_TRUE(saved.ok()) << saved.message();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  const auto loaded = Measurements::load(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  for (int worker = 0; worker < kWorkers; ++worker) {
    for (int leg = 0; leg < kLegs; ++leg) EXPECT_NE(loaded->find(key(worker, leg)), nullptr);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

// A worker may be stopped while it holds the lock. The others give up and try again later.
TEST_F(MeasurementsFileTest, ALockThatIsNotGivenBackIsNotWaitedForForEver) {
  const std::string path = folder_ + "/p2p.toml";
  const UniqueFd holder(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(holder.get(), LOCK_EX), 0);
  EXPECT_EQ(example().save(path).code(), Code::kTimeout);
  // Created for the lock and not yet written: this deserves no warning.
  EXPECT_EQ(Measurements::load(path).status().code(), Code::kNotFound);
  ASSERT_EQ(::flock(holder.get(), LOCK_UN), 0);
  EXPECT_TRUE(example().save(path).ok());
  EXPECT_TRUE(Measurements::load(path).ok());
}

TEST_F(MeasurementsFileTest, ADamagedFileIsReplaced) {
  const std::string path = folder_ + "/p2p.toml";
  std::ofstream(path) << "not toml [";
  ASSERT_TRUE(example().save(path).ok());
  const auto loaded = Measurements::load(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->legs().size(), example().legs().size());
}

// The name of a peer must not make the file unreadable.
TEST_F(MeasurementsFileTest, NamesThatTomlCannotHoldAreWrittenAsQuestionMarks) {
  Measurements measurements;
  measurements.set({"wire", "", "tcp", "b\xc3\xbcro\x7f\xff\n"}, LegModel::linear(1, 24, 1));
  measurements.set({"wire", "", "tcp", "node3"}, LegModel::linear(1, 12, 1));
  const std::string path = folder_ + "/p2p.toml";
  ASSERT_TRUE(measurements.save(path).ok());
  const auto loaded = Measurements::load(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_NE(loaded->find({"wire", "", "tcp", "b??ro???"}), nullptr);
  EXPECT_NE(loaded->find({"wire", "", "tcp", "node3"}), nullptr);
}

TEST_F(MeasurementsFileTest, MissingFileIsNotFound) {
  EXPECT_EQ(Measurements::load(folder_ + "/none").status().code(), Code::kNotFound);
}

TEST(MeasurementsTest, DamagedOrForeignFilesAreRefusedWhole) {
  const std::string head = "version = 1\n";
  EXPECT_TRUE(Measurements::parse(head).ok());
  for (const std::string& bad : {
           std::string("version = 2\n"),
           std::string(""),
           std::string("version = \"1\"\n"),
           std::string("not toml ["),
           head + "[[leg]]\ngpu = \"x\"\nbytes = [1, 2]\nus = [1.0, 2.0]\n",       // no kind
           head + "[[leg]]\nkind = \"wire\"\nbytes = [1, 2]\nus = [1.0]\n",        // lengths
           head + "[[leg]]\nkind = \"wire\"\nbytes = [2, 1]\nus = [1.0, 2.0]\n",   // order
           head + "[[leg]]\nkind = \"wire\"\nbytes = [-1, 1]\nus = [1.0, 2.0]\n",  // negative
           head + "[[leg]]\nkind = \"wire\"\nbytes = [1, 2]\nus = [1.0, nan]\n",   // not a time
           head + "[[leg]]\nkind = \"wire\"\nbytes = [1, 2]\nus = [\"a\", \"b\"]\n",
           head + "leg = [1]\n",
       }) {
    EXPECT_FALSE(Measurements::parse(bad).ok()) << bad;
  }
}

TEST(MeasurementsTest, MergeReplacesAndKeeps) {
  Measurements mine = example();
  Measurements theirs;
  theirs.set({"copy_out", "GPU-1", "", ""}, LegModel::linear(9, 9));
  theirs.set({"copy_out", "GPU-9", "", ""}, LegModel::linear(1, 1));
  mine.merge(theirs);
  EXPECT_EQ(mine.legs().size(), example().legs().size() + 1);
  EXPECT_EQ(*mine.find({"copy_out", "GPU-1", "", ""}), LegModel::linear(9, 9));
}

TEST(MeasurementsTest, PairModelTakesEachLegFromItsOwner) {
  const PairModel model = pair_model(example(), {"GPU-1", "GPU-2", "node1", "node\"2\\", "mlx5_0"});
  EXPECT_EQ(model.copy_out, LegModel::linear(2, 50, 5));
  EXPECT_NEAR(model.copy_in.time_us(4096), 5.75, 1e-9);
  EXPECT_EQ(model.wire_verbs, LegModel::linear(1, 24, 1));
  EXPECT_TRUE(model.wire_tcp.empty());
  EXPECT_TRUE(model.gpudirect.empty());
  EXPECT_DOUBLE_EQ(model.message_us, 1.5);
}

TEST(MeasurementsPathTest, IsInTheServicesFolderOrTheUsers) {
  const auto path = [](const char* own, const char* service, const char* cache, const char* home) {
    for (const auto& [name, value] : {std::pair("RCUDA_P2P_CACHE", own),
                                      {"CACHE_DIRECTORY", service},
                                      {"XDG_CACHE_HOME", cache},
                                      {"HOME", home}}) {
      value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
    }
    return default_measurements_path();
  };
  EXPECT_EQ(path("/x/legs", "/var/cache/rcuda", "/c", "/home/u"), "/x/legs");
  EXPECT_EQ(path(nullptr, "/var/cache/rcuda", "/c", "/home/u"), "/var/cache/rcuda/p2p.toml");
  EXPECT_EQ(path(nullptr, nullptr, "/c", "/home/u"), "/c/rcuda/p2p.toml");
  EXPECT_EQ(path(nullptr, nullptr, "relative", "/home/u"), "/home/u/.cache/rcuda/p2p.toml");
  EXPECT_EQ(path(nullptr, nullptr, nullptr, nullptr), "");
}

}  // namespace
}  // namespace rcuda::p2p
