#include "server/identity/accounts.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "server/identity/served_users.h"

namespace rcuda::server {
namespace {

using Clock = Accounts::Clock;

// A name service that answers when the test permits it.
struct SlowService {
  Result<Account> look_up(const AccountKey& key) {
    std::unique_lock lock(mutex);
    ++asked;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
    if (const uid_t* uid = std::get_if<uid_t>(&key)) return Account{*uid, 7, "ada", {7, 8}};
    return Status(Code::kNotFound, "nobody");
  }
  void wait_until_asked(int times) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return asked >= times; });
  }
  void answer() {
    std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  int asked = 0;
  bool open = false;
};

Accounts::LookUp by(const std::shared_ptr<SlowService>& service) {
  return [service](const AccountKey& key) { return service->look_up(key); };
}

Result<Account> wait_for(Accounts& accounts, const AccountKey& key) {
  for (;;) {
    if (auto answer = accounts.find(key, Clock::now())) return *answer;
    pollfd item{accounts.descriptor(), POLLIN, 0};
    if (::poll(&item, 1, 60'000) != 1) return Status(Code::kTimeout, "no answer");
    accounts.acknowledge();
  }
}

TEST(AccountsTest, AnAnswerIsWaitedForByNobodyAndKept) {
  const auto service = std::make_shared<SlowService>();
  Accounts accounts(by(service));
  EXPECT_FALSE(accounts.find(uid_t{5}, Clock::now()));
  EXPECT_FALSE(accounts.find(uid_t{5}, Clock::now()));
  service->answer();
  const Result<Account> account = wait_for(accounts, uid_t{5});
  ASSERT_TRUE(account.ok());
  EXPECT_EQ(account->uid, 5u);
  EXPECT_EQ(account->user, "ada");
  EXPECT_EQ(account->groups, (std::vector<gid_t>{7, 8}));
  EXPECT_EQ(wait_for(accounts, std::string("bob")).status().code(), Code::kNotFound);
  EXPECT_TRUE(accounts.find(uid_t{5}, Clock::now()));
  EXPECT_EQ(service->asked, 2);
  accounts.forget();
  EXPECT_FALSE(accounts.find(uid_t{5}, Clock::now())) << "the name service is queried again";
  EXPECT_TRUE(wait_for(accounts, uid_t{5}).ok());
  EXPECT_FALSE(accounts.find(uid_t{5}, Clock::now() + std::chrono::hours(1))) << "it has expired";
}

TEST(AccountsTest, AnAnswerThatIsCollectedLateIsAsOldAsItIs) {
  const auto service = std::make_shared<SlowService>();
  Accounts accounts(by(service));
  EXPECT_FALSE(accounts.find(uid_t{5}, Clock::now()));
  service->answer();
  pollfd item{accounts.descriptor(), POLLIN, 0};
  ASSERT_EQ(::poll(&item, 1, 60'000), 1);
  EXPECT_FALSE(accounts.find(uid_t{5}, Clock::now() + std::chrono::hours(1)));
}

TEST(AccountsTest, AServiceThatHangsKeepsFewThreads) {
  const auto service = std::make_shared<SlowService>();
  {
    Accounts accounts(by(service));
    for (uid_t uid = 0; uid < 100; ++uid) EXPECT_FALSE(accounts.find(uid, Clock::now()));
    service->wait_until_asked(Accounts::kMostAtOnce);
    std::lock_guard lock(service->mutex);
    EXPECT_EQ(service->asked, static_cast<int>(Accounts::kMostAtOnce));
  }  // the destructor does not wait for the look-ups
  service->answer();
}

TEST(AccountsTest, TheMachineKnowsRootAndNotEverybody) {
  const Result<Account> root = look_up_account(uid_t{0});
  ASSERT_TRUE(root.ok()) << root.status().message();
  EXPECT_EQ(root->user, "root");
  EXPECT_EQ(root->gid, 0u);
  ASSERT_FALSE(root->groups.empty());
  EXPECT_EQ(root->groups[0], 0u);
  EXPECT_EQ(look_up_account(std::string("root"))->uid, 0u);
  EXPECT_EQ(look_up_account(std::string("no-such-user")).status().code(), Code::kNotFound);
  EXPECT_EQ(look_up_account(uid_t{4'000'000'000}).status().code(), Code::kNotFound);
}

TEST(ServedUsersTest, RootAndTheServersUserAreServedAlways) {
  const Result<ServedUsers> users = ServedUsers::read("");
  ASSERT_TRUE(users.ok());
  EXPECT_TRUE(users->contains(0, 1, {}));
  EXPECT_TRUE(users->contains(::geteuid(), 1, {}));
  EXPECT_FALSE(users->contains(4'000'000'000, 0, {0}));
}

TEST(ServedUsersTest, NamesNumbersGroupsAndEverybody) {
  const Result<ServedUsers> some = ServedUsers::read(" nobody, 4000000000,,@root");
  ASSERT_TRUE(some.ok()) << some.status().message();
  EXPECT_TRUE(some->contains(look_up_account(std::string("nobody"))->uid, 1, {}));
  EXPECT_TRUE(some->contains(4'000'000'000, 1, {}));
  EXPECT_FALSE(some->contains(4'000'000'001, 1, {1}));
  EXPECT_TRUE(some->contains(4'000'000'001, 1, {1, 0}));
  EXPECT_TRUE(some->contains(4'000'000'001, 0, {})) << "the primary group";
  EXPECT_TRUE(ServedUsers::read("*")->contains(4'000'000'001, 1, {}));
  for (const char* list : {"nobody,no-such-user", "@no-such-group"}) {
    const Status status = ServedUsers::read(list).status();
    EXPECT_EQ(status.code(), Code::kNotFound);
    EXPECT_NE(status.context().find("no-such-"), std::string::npos) << status.context();
  }
}

}  // namespace
}  // namespace rcuda::server
