#include "server/daemon/admission/leases.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "server/daemon/admission/lease_file.h"
#include "tests/support/temp_folder.h"

namespace rcuda::server {
namespace {

using std::chrono::seconds;
using Devices = std::vector<uint32_t>;

constexpr uid_t kAda = 1000, kBob = 1001;
const Leases::Time kNow{seconds(1'800'000'000)};
const Devices kOffered = {0, 1, 2, 3};

Identity identity_of(uid_t user, const std::string& name) {
  Identity identity;
  identity.uid = user;
  identity.user = name;
  identity.method = "ticket";
  return identity;
}

const tls::Key kBinding{1}, kNoProof{};
tls::Key proof_of(const Lease& lease, const tls::Key& binding = kBinding) {
  return tls::lease_proof(lease.secret, binding);
}

const Identity kAdaHerself = identity_of(kAda, "ada");
const Identity kBobHimself = identity_of(kBob, "bob");

struct Wish : Lease {
  uint32_t count = 0;  // of devices, if `devices` is empty
};

Wish wish(uint32_t count, const std::string& job = "", bool exclusive = true) {
  Wish wish;
  wish.count = count;
  wish.job = job;
  wish.exclusive = exclusive;
  wish.creator = "root";
  return wish;
}

bool contains(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

class LeasesTest : public ::testing::Test {
 protected:
  Result<Leases::Taken> take(const Wish& wish, const std::vector<Leases::Use>& uses = {}) {
    return leases_.take(wish, wish.count, kOffered, uses, kNow);
  }
  Lease must_take(const Wish& wish, const std::vector<Leases::Use>& uses = {}) {
    const Result<Leases::Taken> taken = take(wish, uses);
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    return taken.ok() ? taken->lease : Lease();
  }
  Status admit(const Devices& devices, const std::string& lease = "") {
    return leases_.check_devices(devices, lease, kOffered);
  }

  Leases leases_;
};

TEST_F(LeasesTest, AnExclusiveLeaseKeepsOthersFromItsDevices) {
  const Lease lease = must_take(wish(2));
  EXPECT_EQ(lease.devices, (Devices{0, 1}));
  EXPECT_TRUE(admit({0, 1}, lease.id).ok());
  EXPECT_TRUE(admit({2, 3}).ok());
  const Status refused = admit({2, 1});
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(refused, "device 1 is leased exclusively (lease " + lease.id + ")"));
  EXPECT_TRUE(contains(refused, "not leased: 2 and 3")) << refused.message();
  EXPECT_TRUE(contains(refused, "RCUDA_LEASE"));
  // A wait does not help a session that names other devices than its lease has.
  const Status outside = admit({0, 2}, lease.id);
  EXPECT_EQ(outside.code(), Code::kDenied);
  EXPECT_TRUE(contains(outside, "devices 0 and 1")) << outside.message();
}

TEST_F(LeasesTest, NothingIsGivenTwice) {
  EXPECT_EQ(must_take(wish(3)).devices, (Devices{0, 1, 2}));
  EXPECT_EQ(must_take(wish(1)).devices, Devices{3});
  EXPECT_EQ(take(wish(1)).status().code(), Code::kUnavailable);
  EXPECT_EQ(take(wish(1, "", false)).status().code(), Code::kUnavailable);
}

TEST_F(LeasesTest, WithoutDevicesLeftTheErrorSaysWhoHasThem) {
  Wish first = wish(3, "slurm 4711");
  first.user = "ada";
  first.uid = kAda;
  first.until = kNow + seconds(3600);
  must_take(first);
  const Status status = take(wish(2), {{kBobHimself, {3}}}).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(status, "the request asks for 2 devices, and 0 are available"))
      << status.message();
  EXPECT_TRUE(contains(status, "of slurm 4711 (user ada) until 2027-01-15T09:00:00Z"))
      << status.message();
  EXPECT_TRUE(contains(status, "device 3 has a session of bob")) << status.message();
  EXPECT_EQ(take(wish(5)).status().code(), Code::kUnavailable);
  leases_ = {};
  const Status too_many = take(wish(5)).status();
  EXPECT_EQ(too_many.code(), Code::kNotFound);
  EXPECT_TRUE(contains(too_many, "the request asks for 5 devices, and the server has only 4"));
}

TEST_F(LeasesTest, SharedLeasesShareTheLeastLoadedDevices) {
  EXPECT_EQ(must_take(wish(2, "", false)).devices, (Devices{0, 1}));
  EXPECT_EQ(must_take(wish(2, "", false)).devices, (Devices{2, 3}));
  EXPECT_EQ(must_take(wish(1, "", false), {{kBobHimself, {0}}, {kBobHimself, {1}}}).devices,
            Devices{2});
  EXPECT_TRUE(admit({2}).ok()) << "a shared lease keeps nobody away";
  EXPECT_EQ(take(wish(1)).status().code(), Code::kUnavailable) << "all have shared leases";
}

TEST_F(LeasesTest, AnExclusiveLeaseWaitsForSessionsOfOthers) {
  const std::vector<Leases::Use> uses = {{kAdaHerself, {0}}, {kBobHimself, {1}}};
  Wish for_ada = wish(3);
  for_ada.user = "ada";
  for_ada.uid = kAda;
  EXPECT_EQ(must_take(for_ada, uses).devices, (Devices{0, 2, 3}));
  leases_ = {};
  EXPECT_EQ(must_take(wish(2), uses).devices, (Devices{2, 3})) << "it is nobody's in particular";
  leases_ = {};
  // A session under a lease that has just ended: it is of the same user, but still uses the device.
  Identity of_another_job = kAdaHerself;
  of_another_job.lease = "00000000";
  const Status status = take(for_ada, {{of_another_job, {0}}, {of_another_job, {1}}}).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(status, "ends when its lease ends")) << status.message();
}

TEST_F(LeasesTest, NamedDevicesAreTheseOrNone) {
  Wish named = wish(0);
  named.devices = {3, 1};
  EXPECT_EQ(must_take(named).devices, (Devices{1, 3}));
  named.devices = {1, 2};
  EXPECT_EQ(take(named).status().code(), Code::kUnavailable);
  EXPECT_TRUE(admit({2}).ok());
  named.devices = {7};
  EXPECT_TRUE(contains(take(named).status(), "it offers 0, 1, 2 and 3"));
  named.devices = {2, 2};
  EXPECT_TRUE(contains(take(named).status(), "twice"));
  // A server whose workers have not started yet does not know its devices.
  named.devices = {2};
  EXPECT_TRUE(leases_.take(named, 0, {}, {}, kNow).ok());
  EXPECT_TRUE(contains(leases_.take(wish(1), 1, {}, {}, kNow).status(), "--pool"));
}

TEST_F(LeasesTest, AJobHasOneLease) {
  const Lease first = must_take(wish(2, "slurm 1"));
  const Result<Leases::Taken> again = take(wish(2, "slurm 1"));
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->is_new);
  EXPECT_EQ(again->lease, first);
  EXPECT_EQ(leases_.all().size(), 1u);
  const Status other = take(wish(1, "slurm 1")).status();
  EXPECT_EQ(other.code(), Code::kInvalidArgument);
  EXPECT_TRUE(contains(other, "slurm 1 already has lease " + first.id)) << other.message();
  EXPECT_NE(must_take(wish(1, "slurm 2")).id, first.id);
  EXPECT_NE(must_take(wish(1)).id, first.id) << "no job is no job's";
}

// Right after the server's start, no worker has reported the devices yet.
TEST_F(LeasesTest, AJobGetsItsLeaseAgainBeforeTheDevicesAreKnown) {
  const Lease first = must_take(wish(2, "slurm 1"));
  const Result<Leases::Taken> again = leases_.take(wish(2, "slurm 1"), 2, {}, {}, kNow);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->lease, first);
}

// A client repeats its request, because the answer to the first request was lost.
TEST_F(LeasesTest, WhoAsksAgainWithTheSameIdGetsTheSameLease) {
  Wish chosen = wish(1);
  chosen.id = "1a2b3c4d";
  const Lease first = must_take(chosen);
  EXPECT_EQ(first.id, "1a2b3c4d");
  const Result<Leases::Taken> again = take(chosen);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_FALSE(again->is_new);
  EXPECT_EQ(again->lease, first);
  EXPECT_EQ(leases_.all().size(), 1u);
  Wish other = chosen;
  other.creator = "ada";
  EXPECT_EQ(take(other).status().code(), Code::kInvalidArgument);
  other = chosen;
  other.job = "slurm 1";
  EXPECT_EQ(take(other).status().code(), Code::kInvalidArgument);
}

TEST_F(LeasesTest, AListComesInParts) {
  constexpr size_t kHidden = 3, kShown = 2 * Leases::kMostInPage + 1;
  for (size_t i = 0; i < kShown; ++i) must_take(wish(1, "", false));
  for (size_t i = 0; i < kHidden; ++i) must_take(wish(1, "job " + std::to_string(i), false));
  const auto shown = [](const Lease& lease) { return lease.job.empty(); };
  std::vector<size_t> parts;
  std::string last;
  do {
    const std::vector<const Lease*> part = leases_.page(last, shown);
    parts.push_back(part.size());
    for (const Lease* lease : part) {
      EXPECT_GT(lease->id, last);
      EXPECT_TRUE(lease->job.empty());
      last = lease->id;
    }
  } while (parts.back() != 0);
  EXPECT_EQ(parts, (std::vector<size_t>{Leases::kMostInPage, Leases::kMostInPage, 1, 0}));
}

TEST_F(LeasesTest, AKeyOpensItsLeaseOnly) {
  Wish for_ada = wish(1);
  for_ada.user = "ada";
  for_ada.uid = kAda;
  const Lease lease = must_take(for_ada);
  const Lease anybodys = must_take(wish(1));
  EXPECT_TRUE(leases_.unlock(lease.id, proof_of(lease), kBinding, kAdaHerself).ok());
  EXPECT_TRUE(leases_.unlock(anybodys.id, proof_of(anybodys), kBinding, kBobHimself).ok());
  EXPECT_TRUE(contains(leases_.unlock(lease.id, proof_of(lease), kBinding, kBobHimself).status(),
                       "is for user ada, not for bob"));
  Identity borrowed = kAdaHerself;
  borrowed.method = "insecure";  // with --insecure, no identity is verified
  EXPECT_FALSE(leases_.unlock(lease.id, proof_of(lease), kBinding, borrowed).ok());
  const Status wrong = leases_.unlock(lease.id, proof_of(anybodys), kBinding, kAdaHerself).status();
  EXPECT_EQ(wrong.code(), Code::kDenied);
  const Status unknown =
      leases_.unlock("12345678", proof_of(lease), kBinding, kAdaHerself).status();
  EXPECT_EQ(unknown.code(), Code::kDenied);
  EXPECT_FALSE(leases_.unlock("no id\n", proof_of(lease), kBinding, kAdaHerself).ok());
  // Not by a proof of another connection, nor by the secret itself.
  const tls::Key other = proof_of(lease, tls::Key{2});
  EXPECT_FALSE(leases_.unlock(lease.id, other, kBinding, kAdaHerself).ok());
  tls::Key secret{};
  std::ranges::copy(lease.secret, secret.begin());
  EXPECT_FALSE(leases_.unlock(lease.id, secret, kBinding, kAdaHerself).ok());
}

TEST_F(LeasesTest, TheUserOfALeaseNeedsNoSecret) {
  Wish for_ada = wish(1);
  for_ada.user = "ada";
  for_ada.uid = kAda;
  const Lease lease = must_take(for_ada);
  const Lease anybodys = must_take(wish(1));
  EXPECT_TRUE(leases_.unlock(lease.id, kNoProof, kBinding, kAdaHerself).ok());
  EXPECT_FALSE(leases_.unlock(lease.id, kNoProof, kBinding, kBobHimself).ok());
  Identity borrowed = kAdaHerself;
  borrowed.method = "insecure";
  EXPECT_FALSE(leases_.unlock(lease.id, kNoProof, kBinding, borrowed).ok());
  EXPECT_FALSE(leases_.unlock(anybodys.id, kNoProof, kBinding, kAdaHerself).ok());
  EXPECT_FALSE(leases_.unlock("12345678", kNoProof, kBinding, kAdaHerself).ok());
}

TEST_F(LeasesTest, ALeaseEndsAtItsTime) {
  Wish short_one = wish(2);
  short_one.until = kNow + seconds(60);
  const Lease lease = must_take(short_one);
  must_take(wish(1));
  EXPECT_EQ(leases_.next_end(), kNow + seconds(60));
  EXPECT_TRUE(leases_.expire(kNow + seconds(59)).empty());
  const std::vector<Lease> ended = leases_.expire(kNow + seconds(60));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0], lease);
  EXPECT_TRUE(admit({0}).ok());
  EXPECT_EQ(admit({0}, lease.id).code(), Code::kDenied);
  EXPECT_FALSE(leases_.unlock(lease.id, proof_of(lease), kBinding, kAdaHerself).ok());
  EXPECT_EQ(leases_.next_end(), std::nullopt);
  short_one.until = kNow;
  EXPECT_EQ(take(short_one).status().code(), Code::kInvalidArgument);
}

TEST_F(LeasesTest, ALeaseIsExtended) {
  Wish short_one = wish(1, "slurm 1");
  short_one.until = kNow + seconds(60);
  const Lease lease = must_take(short_one);
  EXPECT_TRUE(leases_.extend({}, "slurm 1", kNow + seconds(120)).ok());
  EXPECT_TRUE(leases_.expire(kNow + seconds(60)).empty());
  EXPECT_TRUE(leases_.extend(lease.id, {}, std::nullopt).ok());
  EXPECT_TRUE(leases_.expire(kNow + seconds(1'000'000)).empty());
  EXPECT_TRUE(contains(leases_.extend({}, "slurm 2", kNow).status(), "no lease of slurm 2"));
  EXPECT_EQ(leases_.extend({}, {}, kNow).status().code(), Code::kNotFound);
}

TEST_F(LeasesTest, ARevokedLeaseIsGone) {
  const Lease lease = must_take(wish(1, "slurm 1"));
  EXPECT_FALSE(leases_.revoke({}, "slurm 2"));
  EXPECT_FALSE(leases_.revoke({}, {}));
  EXPECT_EQ(leases_.revoke({}, "slurm 1"), lease);
  EXPECT_FALSE(leases_.revoke(lease.id, {}));
  EXPECT_TRUE(admit({0}).ok());
}

TEST_F(LeasesTest, TextsHaveLimits) {
  EXPECT_FALSE(take(wish(0)).ok());
  EXPECT_FALSE(take(wish(1, "two\nlines")).ok());
  EXPECT_FALSE(take(wish(1, std::string(wire::kMostLeaseText + 1, 'x'))).ok());
  Wish spaced = wish(1);
  spaced.user = "a b";
  EXPECT_FALSE(take(spaced).ok());
  EXPECT_TRUE(take(wish(1, std::string(wire::kMostLeaseText, 'x'))).ok());
}

TEST_F(LeasesTest, LeasesOutliveTheDaemon) {
  const test::TempFolder folder;
  const std::string path = folder.file("leases");
  const Result<std::vector<Lease>> none = load_leases(path);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
  Wish for_ada = wish(2, "slurm 4711 on node 1", false);
  for_ada.user = "ada";
  for_ada.uid = kAda;
  for_ada.until = kNow + seconds(60);
  for_ada.oversubscribes = true;
  must_take(for_ada);
  must_take(wish(1));
  ASSERT_TRUE(save_leases(path, leases_.all()).ok());
  struct stat status;
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 0600u);
  const Result<std::vector<Lease>> read = load_leases(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, leases_.all());
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_EQ(load_leases(path).status().code(), Code::kDenied);
}

// In the file of leases, a dash means that a lease has no user. A user's name may be a dash, too.
TEST_F(LeasesTest, AUserWhoseNameIsADashKeepsItsLease) {
  for (const char* name : {"-", "--", "", "-a"}) {
    Wish named = wish(1, "", false);
    named.user = name;
    named.creator = name;
    must_take(named);
  }
  const Result<std::vector<Lease>> read = parse_leases(format_leases(leases_.all()));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, leases_.all());
}

TEST_F(LeasesTest, ADamagedFileIsNamedByItsLine) {
  must_take(wish(2, "slurm 1"));
  const std::string good = format_leases(leases_.all());
  ASSERT_TRUE(parse_leases(good).ok());
  const size_t line = good.find(leases_.all()[0].id);
  for (const char* const wrong :
       {"exclusive", "0,1", "2027-01-15T08:00:00Z", "never", " - - root"}) {
    std::string text = good;
    text.replace(text.find(wrong, line), std::string(wrong).size(), "x");
    const Status status = parse_leases(text).status();
    EXPECT_TRUE(contains(status, "line 3")) << wrong << ": " << status.message();
  }
}

// Each session of bob has one device. A client that waits for an exclusive lease ends the
// disconnected sessions whose devices it needs, and no others.
TEST_F(LeasesTest, ALeaseThatIsWaitedForEndsDisconnectedSessions) {
  struct Row {
    std::vector<int> lost_for;  // by device: how long its session is disconnected, in s; -1: not
    Devices devices;            // of the wish
    uint32_t count;
    std::vector<uint32_t> ends;  // devices whose sessions the lease ends
    Devices ending{};            // of the sessions that end already
  };
  const std::vector<Row> rows = {
      {{-1, -1, -1, -1}, {}, 1, {}},           {{-1, 40, -1, -1}, {}, 1, {1}},
      {{50, 40, 60, 80}, {}, 1, {3}},          {{50, 40, 60, 80}, {}, 2, {2, 3}},
      {{50, 40, 60, 80}, {1}, 1, {1}},         {{50, 40, 60, 80}, {0, 1}, 2, {0, 1}},
      {{-1, 40, 60, 80}, {0}, 1, {}},          {{-1, 40, 60, 80}, {0, 1}, 2, {}},
      {{29, 29, 29, 29}, {}, 1, {}},           {{30, 29, 29, 29}, {}, 1, {0}},
      {{50, 40, 60, 80}, {}, 4, {0, 1, 2, 3}}, {{50, 40, 60, 80}, {}, 1, {}, {1}},
      {{-1, -1, -1, 80}, {}, 1, {}, {0}},      {{-1, -1, -1, 80}, {}, 2, {3}, {0}},
      {{-1, -1, -1, 80}, {3}, 1, {3}, {0}}};
  for (const Row& row : rows) {
    std::vector<Leases::Use> uses;
    for (uint32_t device = 0; device < row.lost_for.size(); ++device) {
      uses.push_back({kBobHimself, {device}});
      const bool ends = std::ranges::find(row.ending, device) != row.ending.end();
      const int lost_for = row.lost_for[device];
      if (ends || lost_for >= 0) {
        uses.back().lost = LostClient{device, seconds(std::max(lost_for, 0)), ends};
      }
    }
    Wish wanted = wish(row.count);
    wanted.devices = row.devices;
    std::vector<uint32_t> ends;
    for (const LostClient& lost : leases_.in_the_way(wanted, row.count, kOffered, uses, kNow)) {
      ends.push_back(lost.worker);
    }
    std::ranges::sort(ends);
    EXPECT_EQ(ends, row.ends) << ::testing::PrintToString(row.lost_for) << " for " << row.count
                              << " of " << ::testing::PrintToString(row.devices);
  }
  EXPECT_TRUE(leases_.all().empty());
}

TEST_F(LeasesTest, ARefusalNamesTheDisconnectedSession) {
  std::vector<Leases::Use> uses = {{kBobHimself, {0}, LostClient{77, seconds(40)}}};
  Wish wanted = wish(1);
  wanted.devices = {0};
  const Status refused = take(wanted, uses).status();
  EXPECT_TRUE(
      contains(refused,
               "device 0 has a session of bob (worker 77, disconnected for 40s: rcuda-smi "
               "end SERVER 77 ends that session now, and rcuda-lease take --wait 60s ends it)"))
      << refused.message();
  uses[0].lost->ends = true;
  EXPECT_TRUE(contains(take(wanted, uses).status(), "(worker 77, ends now)"));
}

}  // namespace
}  // namespace rcuda::server
