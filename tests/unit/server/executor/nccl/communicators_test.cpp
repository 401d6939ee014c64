// The communicators of a session: their tags, splits that fail, and the environment of NCCL.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/executor/nccl/nccl.h"
#include "tests/support/link_pair.h"

namespace rcuda::server {
namespace {

using nccl::Verb;

class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<test::LinkPair> made = test::make_link_pair(test::medium_named("shm"));
    ASSERT_TRUE(made.ok()) << made.status().message();
    links_ = std::move(*made);
    jobs_.emplace(*links_.server, work_);
    settings_.library = "none";
    settings_.note_rank = [this](uint64_t tag, bool joins) {
      if (joins) tags_.push_back(tag);
    };
    nccl_.emplace(driver_, *jobs_, settings_);
    ASSERT_NE(make(Verb::kInit, 1, 0), nullptr);
  }

  // A step that creates communicator `id` of communicator `parent`.
  NcclStep step(Verb verb, uint32_t id, uint32_t parent, std::vector<int> excluded = {}) {
    NcclStep made;
    made.call.verb = verb;
    made.call.created = id;
    made.ids.resize(1);
    made.communicator = nccl_->find(parent);
    made.excluded = std::move(excluded);
    return made;
  }
  std::shared_ptr<NcclCommunicator> make(Verb verb, uint32_t id, uint32_t parent,
                                         std::vector<int> excluded = {}) {
    return nccl_->create(step(verb, id, parent, std::move(excluded)), true);
  }

  test::LinkPair links_;
  WorkCount work_;
  std::optional<Jobs> jobs_;
  NcclSettings settings_;
  api::DriverTable driver_{};
  std::vector<uint64_t> tags_;
  std::optional<Nccl> nccl_;
};

TEST_F(NcclTest, RanksMayExcludeOthersInAnyOrder) {
  (void)make(Verb::kShrink, 2, 1, {3, 1});
  (void)make(Verb::kShrink, 3, 1, {1, 3});
  (void)make(Verb::kShrink, 4, 1, {1, 2});
  ASSERT_EQ(tags_.size(), 4u);
  EXPECT_EQ(tags_[1], tags_[2]);
  EXPECT_NE(tags_[1], tags_[3]);
}

// The other ranks have not counted a split that fails, so this rank must not count it.
TEST_F(NcclTest, ASplitThatIsNotMadeDoesNotCount) {
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kSplit, 2, 1));
  batch.steps.back().created = nccl_->create(batch.steps.back(), true);
  nccl_->forget_created(batch);
  EXPECT_EQ(nccl_->find(2), nullptr);
  (void)make(Verb::kSplit, 3, 1);
  (void)make(Verb::kSplit, 4, 1);
  ASSERT_EQ(tags_.size(), 4u);
  EXPECT_EQ(tags_[1], tags_[2]);
  EXPECT_NE(tags_[2], tags_[3]);
}

// A new rank gets the tags with the id, because it does not know the parent.
TEST_F(NcclTest, OldAndNewRanksOfAGrowthHaveOneTag) {
  NcclCommunicator& parent = *nccl_->find(1);
  NcclStep joins = step(Verb::kGrow, 2, 0);
  joins.call.source = Nccl::next_grown_tag(parent);
  joins.call.target = parent.tag;
  ASSERT_NE(nccl_->create(joins, true), nullptr);
  (void)make(Verb::kGrow, 3, 1);
  (void)make(Verb::kGrow, 4, 1);
  ASSERT_EQ(tags_.size(), 5u);
  EXPECT_EQ(tags_[1], joins.call.source);
  EXPECT_EQ(tags_[2], parent.tag);
  EXPECT_EQ(tags_[3], tags_[1]);
  EXPECT_NE(tags_[4], tags_[1]);
}

TEST_F(NcclTest, ADestroyThatIsNotMadeForgetsNothing) {
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kDestroy, 0, 1));
  batch.steps.back().call.communicator = 1;
  nccl_->forget_created(batch);
  EXPECT_NE(nccl_->find(1), nullptr);
}

// A session must not park before its question is answered.
TEST_F(NcclTest, AQuestionCountsAsWork) {
  EXPECT_FALSE(nccl_->is_busy());
  bool is_answered = false;
  ASSERT_TRUE(nccl_->run(
      nullptr, [] {}, [&] { is_answered = true; }));
  while (!is_answered) {
    EXPECT_TRUE(nccl_->is_busy());
    (void)jobs_->run();
  }
  EXPECT_FALSE(nccl_->is_busy());
}

class EncryptedNcclTest : public NcclTest {
 protected:
  static constexpr char kDemand[] = "call ncclSetEncryption";
  static constexpr char kNoLibrary[] = "the server's setting `nccl` is none";

  // Returns the error of open(). The library is none, so there is always an error.
  std::string open(std::optional<std::string> psk, bool client_demands = false) {
    std::string error;
    bool is_open = false;
    EXPECT_TRUE(nccl_->open({"NCCL_IB_DISABLE=0", "NCCL_MNNVL_ENABLE=1", "NCCL_DEBUG=WARN"},
                            std::move(psk), client_demands,
                            [&](const Result<const NcclLibrary*>& library, int) {
                              error = library.status().context();
                              is_open = true;
                            }));
    while (!is_open) (void)jobs_->run();
    return error;
  }
  void demand() {
    settings_.needs_encryption = kDemand;
    nccl_.emplace(driver_, *jobs_, settings_);
  }
  static std::string value_of(const char* name) {
    const char* const value = std::getenv(name);
    return value ? value : "";
  }
  char** const before_ = environ;
  void TearDown() override { environ = before_; }
};

TEST_F(EncryptedNcclTest, NeedsASecret) {
  demand();
  EXPECT_EQ(open({}), kDemand);
  EXPECT_EQ(open(""), kDemand);
  EXPECT_EQ(value_of("NCCL_NET"), "");
  EXPECT_EQ(open("secret"), kNoLibrary);
}

TEST_F(EncryptedNcclTest, NeedsASecretIfTheClientDemandsIt) {
  EXPECT_NE(open({}, true).find("the client demands"), std::string::npos);
  EXPECT_NE(open("", true).find("the client demands"), std::string::npos);
  EXPECT_EQ(open("", false), kNoLibrary);
}

// NCCL encrypts only its sockets. Neither the program nor the server's environment may choose
// another network.
TEST_F(EncryptedNcclTest, UsesOnlySockets) {
  std::string entries[] = {"NCCL_NET=IB", "NCCL_NET_PLUGIN=fast", "NCCL_SOCKET_IFNAME=lo"};
  char* server[] = {entries[0].data(), entries[1].data(), entries[2].data(), nullptr};
  environ = server;
  demand();
  EXPECT_EQ(open("secret"), kNoLibrary);
  EXPECT_EQ(value_of("NCCL_NET"), "Socket");
  EXPECT_EQ(value_of("NCCL_NET_PLUGIN"), "none");
  EXPECT_EQ(value_of("NCCL_IB_DISABLE"), "1");
  EXPECT_EQ(value_of("NCCL_MNNVL_ENABLE"), "0");
  EXPECT_EQ(value_of("NCCL_SOCKET_IFNAME"), "lo");
  EXPECT_EQ(value_of("NCCL_DEBUG"), "WARN");
}

// An entry that is a prefix of a variable's name and ends at the end of its page. The next page is
// not mapped, so a read beyond the entry would crash.
TEST_F(NcclTest, AnEntryOfTheEnvironmentMayBeShort) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const pages =
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(::mprotect(static_cast<char*>(pages) + page, page, PROT_NONE), 0);
  constexpr char kEntry[] = "NCCL_DEB";
  char* const entry = static_cast<char*>(pages) + page - sizeof kEntry;
  std::memcpy(entry, kEntry, sizeof kEntry);
  char** const before = environ;
  char* entries[] = {entry, nullptr};
  environ = entries;
  EXPECT_TRUE(
      nccl_->open({"NCCL_DEBUG=WARN"}, {}, false, [](const Result<const NcclLibrary*>&, int) {}));
  const char* const value = std::getenv("NCCL_DEBUG");
  EXPECT_STREQ(value, "WARN");
  environ = before;
  ::munmap(pages, 2 * page);
}

}  // namespace
}  // namespace rcuda::server
