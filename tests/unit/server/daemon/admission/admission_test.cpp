#include "server/daemon/admission/admission.h"

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace rcuda::server {
namespace {

using Applicant = std::unique_ptr<Admission::Applicant>;
using Permit = std::unique_ptr<Admission::Permit>;

constexpr size_t kPlenty = 1000;

Rules rules(const std::string& text) {
  const test::TempFolder folder;
  const std::string path = folder.write("server.toml", text);
  const auto number = [](const std::string& name) -> Result<uint32_t> {
    return static_cast<uint32_t>(name.front());
  };
  Result<Rules> read = Rules::read(path, {number, number});
  EXPECT_TRUE(read.ok()) << read.status().message();
  return read.ok() ? std::move(read).value() : Rules();
}

// The number of a user or group is the first character of its name.
Identity user(const std::string& name, const std::vector<gid_t>& groups = {}) {
  Identity identity;
  identity.uid = static_cast<uid_t>(name.front());
  identity.user = name;
  identity.groups = groups;
  identity.method = "token";
  return identity;
}

struct Hall {
  explicit Hall(const std::string& text, size_t max_sessions = kPlenty) : admission(max_sessions) {
    admission.set_rules(rules(text));
  }
  Applicant wait(const Identity& who, const std::vector<uint32_t>& devices = {0}) {
    Result<Applicant> applicant = admission.apply(who, devices, true);
    EXPECT_TRUE(applicant.ok()) << applicant.status().message();
    return applicant.ok() ? std::move(applicant).value() : nullptr;
  }
  // A permit, or null if the session would have to wait or is refused.
  Permit session(const Identity& who, const std::vector<uint32_t>& devices = {0}) {
    Result<Applicant> applicant = admission.apply(who, devices, false);
    if (!applicant.ok() || !(*applicant)->is_decided()) return nullptr;
    return std::move((*applicant)->take()).value();
  }
  std::string refusal(const Identity& who, const std::vector<uint32_t>& devices = {0}) {
    const Result<Applicant> applicant = admission.apply(who, devices, false);
    if (!applicant.ok()) return applicant.status().message();
    return (*applicant)->is_decided() ? "" : (*applicant)->timeout({}).message();
  }
  Admission admission;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(AdmissionTest, AUserHasNoMoreSessionsThanItMay) {
  Hall hall("[limits.user]\nsessions = 2\n[limits.users.bob]\nsessions = 1\n");
  const Permit first = hall.session(user("ada"));
  Permit second = hall.session(user("ada"));
  ASSERT_TRUE(first && second);
  const std::string why = hall.refusal(user("ada"));
  EXPECT_TRUE(
      has(why, "user ada has 2 sessions, as many as it may have (sessions of [limits.user]"))
      << why;
  EXPECT_TRUE(has(why, "RCUDA_WAIT=60s")) << why;
  EXPECT_TRUE(has(why, "raise the limit on the server")) << why;

  const Permit of_bob = hall.session(user("bob"));
  ASSERT_TRUE(of_bob);
  EXPECT_TRUE(has(hall.refusal(user("bob")), "has 1 session, as many"));
  second.reset();
  EXPECT_EQ(hall.refusal(user("ada")), "");
}

TEST(AdmissionTest, EverybodyWithoutProofIsOneUserAndHasNoOthersRights) {
  Hall hall("[limits.user]\nsessions = 1\n[limits.users.ada]\nsessions = 5\n");
  Identity stranger = user("ada");
  stranger.method = "insecure";
  const Permit first = hall.session(stranger);
  ASSERT_TRUE(first);
  EXPECT_FALSE(hall.session(stranger));
  EXPECT_TRUE(hall.session(user("ada")));
  Identity abroad;
  abroad.user = "ada";
  abroad.method = "token";
  const Permit other = hall.session(abroad);
  EXPECT_TRUE(other);
  EXPECT_FALSE(hall.session(abroad));
}

TEST(AdmissionTest, TheMembersOfAGroupShareItsLimits) {
  Hall hall("[limits.groups.students]\nsessions = 2\ndevices = 3\n");
  const Permit ada = hall.session(user("ada", {'s'}), {0, 1});
  ASSERT_TRUE(ada);
  const std::string why = hall.refusal(user("bob", {'s'}), {2, 3});
  EXPECT_TRUE(has(why,
                  "the sessions of group students have 2 devices, this session asks for 2, "
                  "and together they may have 3 (devices of [limits.groups.students]"))
      << why;
  const Permit bob = hall.session(user("bob", {'s'}), {2});
  ASSERT_TRUE(bob);
  EXPECT_TRUE(has(hall.refusal(user("cleo", {'s'})), "group students has 2 sessions"));
  EXPECT_TRUE(hall.session(user("cleo", {'t'})));
}

TEST(AdmissionTest, AProcessThatGaveAGroupUpStaysItsMember) {
  Hall hall("[limits.groups.students]\nsessions = 1\n");
  Identity ada = user("ada");
  ada.account_groups = {'s'};
  const Permit session = hall.session(ada);
  ASSERT_TRUE(session);
  EXPECT_FALSE(hall.session(ada));
  Identity bob = user("bob");
  bob.gid = 's';
  EXPECT_FALSE(hall.session(bob));
}

TEST(AdmissionTest, ADeviceCountsOnceForASession) {
  Hall hall("[limits.user]\ndevices = 2\n");
  const Permit first = hall.session(user("ada"), {3, 3, 3});
  ASSERT_TRUE(first);
  EXPECT_TRUE(hall.session(user("ada"), {3}));
  EXPECT_FALSE(hall.session(user("ada"), {0, 1}));
}

TEST(AdmissionTest, WhatCanNeverFitIsRefusedAlthoughTheClientWouldWait) {
  Hall hall("[limits.session]\ndevices = 2\n[limits.groups.students]\ndevices = 1\n");
  const auto refused = [&](const Identity& who, const std::vector<uint32_t>& devices) {
    const Result<Applicant> applicant = hall.admission.apply(who, devices, true);
    EXPECT_EQ(applicant.status().code(), Code::kDenied);
    return applicant.ok() ? "" : applicant.status().context();
  };
  const std::string session = refused(user("ada"), {0, 1, 2});
  EXPECT_TRUE(has(session,
                  "asks for 3 devices, and a session may have 2 (devices of "
                  "[limits.session]"))
      << session;
  EXPECT_TRUE(has(session, "RCUDA_DEVICES")) << session;
  const std::string group = refused(user("ada", {'s'}), {0, 1});
  EXPECT_TRUE(has(group, "all sessions of group students together may have 1")) << group;
  EXPECT_EQ(hall.admission.waiting(), 0u);
}

TEST(AdmissionTest, TheServersSessionsGoToThoseThatWaitedLongest) {
  Hall hall("", 1);
  Permit running = hall.session(user("ada"));
  ASSERT_TRUE(running);
  EXPECT_TRUE(has(hall.refusal(user("bob")), "all 1 sessions of the server are taken"));
  EXPECT_TRUE(has(hall.refusal(user("bob")), "raise --max-sessions"));
  const Applicant first = hall.wait(user("bob")), second = hall.wait(user("ada"));
  EXPECT_EQ(first->place(), 1u);
  EXPECT_EQ(second->place(), 2u);
  EXPECT_TRUE(has(second->reason(), "all 1 sessions of the server are taken"));
  running.reset();
  EXPECT_TRUE(first->is_decided());
  EXPECT_FALSE(second->is_decided());
  EXPECT_EQ(second->place(), 1u);
  EXPECT_FALSE(hall.session(user("cleo"))) << "overtakes";
  Permit next = std::move(first->take()).value();
  next.reset();
  EXPECT_TRUE(second->is_decided());
}

TEST(AdmissionTest, OneThatWaitsForItsOwnUserHoldsBackNoOthers) {
  Hall hall("[limits.user]\nsessions = 1\n", 2);
  const Permit running = hall.session(user("ada"));
  const Applicant waits = hall.wait(user("ada"));
  EXPECT_FALSE(waits->is_decided());
  EXPECT_TRUE(has(waits->reason(), "user ada has 1 session"));
  EXPECT_TRUE(hall.session(user("bob")));
}

TEST(AdmissionTest, OneThatOnlyItsOwnSessionsKeepFromItsTurnHoldsBackNoOthers) {
  Hall hall("[limits.groups.students]\ndevices = 4\n");
  Permit running = hall.session(user("ada", {'s'}), {0});
  const Applicant all = hall.wait(user("ada", {'s'}), {0, 1, 2, 3});
  EXPECT_FALSE(all->is_decided());
  Permit of_bob = hall.session(user("bob", {'s'}), {1});
  EXPECT_TRUE(of_bob);
  // Now sessions of other users are in the way, too.
  EXPECT_FALSE(hall.session(user("cleo", {'s'}), {2}));
  of_bob.reset();
  running.reset();
  EXPECT_TRUE(all->is_decided());
}

TEST(AdmissionTest, ManyDevicesAreNotStarvedByFew) {
  Hall hall("[limits.user]\ndevices = 2\n");
  Permit running = hall.session(user("ada"), {0});
  const Applicant many = hall.wait(user("ada"), {0, 1}), few = hall.wait(user("ada"), {0});
  EXPECT_FALSE(few->is_decided());
  EXPECT_EQ(few->place(), 2u);
  EXPECT_TRUE(has(few->reason(), "the limit of user ada (devices of [limits.user]"))
      << few->reason();
  EXPECT_TRUE(has(few->reason(), "has room, but programs that are earlier in the queue come first"))
      << few->reason();
  running.reset();
  EXPECT_TRUE(many->is_decided());
  EXPECT_FALSE(few->is_decided());
}

TEST(AdmissionTest, AClientThatLeavesMakesRoomForTheNext) {
  Hall hall("[limits.user]\ndevices = 2\n");
  const Permit running = hall.session(user("ada"), {0});
  Applicant many = hall.wait(user("ada"), {0, 1});
  const Applicant few = hall.wait(user("ada"), {0});
  many.reset();
  EXPECT_TRUE(few->is_decided());
  EXPECT_EQ(hall.admission.waiting(), 0u);
  // An admitted client that leaves before it has a worker also frees its session for others.
  Hall small("", 1);
  Applicant admitted = small.wait(user("ada"));
  const Applicant next = small.wait(user("ada"));
  ASSERT_TRUE(admitted->is_decided());
  admitted.reset();
  EXPECT_TRUE(next->is_decided());
}

TEST(AdmissionTest, NewRulesHoldForThoseThatWait) {
  Hall hall("[limits.user]\nsessions = 1\n", 3);
  const Permit ada = hall.session(user("ada"));
  const Applicant second = hall.wait(user("ada")), large = hall.wait(user("ada"), {0, 1});
  const Applicant third = hall.wait(user("ada"));
  hall.admission.set_rules(rules("[limits.session]\ndevices = 1\n[limits.user]\nsessions = 2\n"));
  ASSERT_TRUE(second->is_decided());
  const Permit next = std::move(second->take()).value();
  ASSERT_TRUE(large->is_decided());
  EXPECT_TRUE(has(large->take().status().message(), "a session may have 1 (devices of"));
  EXPECT_FALSE(third->is_decided());
  EXPECT_EQ(hall.admission.waiting(), 1u);
  EXPECT_TRUE(has(third->reason(), "user ada has 2 sessions"));
}

TEST(AdmissionTest, AServerThatMayHaveMoreSessionsAdmitsThoseThatWait) {
  Hall hall("", 1);
  const Permit ada = hall.session(user("ada"));
  const Applicant waits = hall.wait(user("bob"));
  hall.admission.set_max_sessions(2);
  hall.admission.review();
  EXPECT_TRUE(waits->is_decided());
}

TEST(AdmissionTest, ASessionKeepsItsLimitsAndIsNotInALedgerThatIsMadeLater) {
  Hall hall("");
  Permit before = hall.session(user("ada"));
  ASSERT_TRUE(before);
  hall.admission.set_rules(rules("[limits.user]\ndevice_memory = \"2G\"\n"));
  Permit after = hall.session(user("ada"));
  ASSERT_TRUE(after);
  EXPECT_EQ(before->ledgers().size(), 0u);
  EXPECT_FALSE(before->device_room(0).has_value());
  EXPECT_EQ(after->ledgers().size(), 1u);
  EXPECT_EQ(after->device_room(0)->limit, uint64_t{2} << 30);
  hall.admission.set_rules(rules("[limits.user]\ndevice_memory = \"1G\"\nsessions = 2\n"));
  EXPECT_EQ(after->device_room(0)->limit, uint64_t{2} << 30);
  EXPECT_TRUE(has(hall.refusal(user("ada")), "has 2 sessions"));
  // The end of the session leaves the slots of other sessions as they are.
  before.reset();
  const Permit last = hall.session(user("ada"));
  ASSERT_TRUE(last);
  EXPECT_NE(last->allowances().front().slot, after->allowances().front().slot);
}

TEST(AdmissionTest, TheQueueIsBounded) {
  Hall hall("[limits.user]\nsessions = 1\n", kPlenty);
  const Permit running = hall.session(user("ada"));
  std::vector<Applicant> queue;
  for (size_t i = 0; i < Admission::kMostWaiting / 4; ++i) queue.push_back(hall.wait(user("ada")));
  const Result<Applicant> more = hall.admission.apply(user("ada"), {0}, true);
  ASSERT_FALSE(more.ok());
  EXPECT_TRUE(has(more.status().context(),
                  "256 programs already wait in the queue, 256 of them of this user"))
      << more.status().context();
  EXPECT_EQ(hall.admission.waiting(), queue.size());
  EXPECT_TRUE(hall.session(user("bob")));
}

TEST(AdmissionTest, SessionsOfAnAccountShareALedgerAndItsSlotsAreClearedAtTheirEnd) {
  Hall hall(
      "[limits.session]\ndevice_memory = \"1G\"\nidle_time = \"1m\"\n"
      "[limits.user]\ndevice_memory = \"2G\"\n[limits.groups.students]\nbandwidth = \"1G\"\n"
      "[limits.groups.old]\nsessions = 9\n");
  Permit first = hall.session(user("ada", {'s', 'o'}));
  const Permit second = hall.session(user("ada", {'s', 'o'}));
  ASSERT_TRUE(first && second);
  ASSERT_EQ(first->allowances().size(), 3u) << "group old limits nothing that is counted";
  ASSERT_EQ(first->ledgers().size(), 3u);
  EXPECT_EQ(first->allowances()[0].of, "each session");
  EXPECT_EQ(first->allowances()[1].of, "user ada");
  EXPECT_EQ(first->allowances()[2].of, "group students");
  EXPECT_EQ(first->limits().idle_time, std::chrono::minutes(1));
  EXPECT_NE(first->ledgers()[0], second->ledgers()[0]);
  EXPECT_EQ(first->ledgers()[1], second->ledgers()[1]);
  EXPECT_NE(first->allowances()[1].slot, second->allowances()[1].slot);

  const uint32_t slot = first->allowances()[1].slot, slot_of_second = second->allowances()[1].slot;
  const auto open = [&](uint32_t own_slot) {
    return std::move(Ledger::open(UniqueFd(::dup(second->ledgers()[1])), own_slot)).value();
  };
  Ledger of_user = open(slot), of_second = open(slot_of_second);
  of_user.add(0, slot, 700);
  of_second.add(0, slot_of_second, 30);
  EXPECT_EQ(of_user.sum(0), 730u);
  first.reset();
  EXPECT_EQ(of_user.sum(0), 30u);
  // Whatever a worker of the account writes into a free slot, the next session begins at zero.
  of_user.add(0, slot, 5);
  const Permit third = hall.session(user("ada"));
  EXPECT_EQ(third->allowances()[1].slot, slot);
  EXPECT_EQ(of_user.of(0, slot), 0u);
  EXPECT_EQ(third->allowances().size(), 2u);
}

TEST(AdmissionTest, MemoryIsLimitedOnlyOfDevicesThatALedgerHas) {
  Hall hall("[limits.users.ada]\ndevice_memory = \"1G\"\n");
  EXPECT_TRUE(hall.session(user("ada"), {Ledger::kDevices - 1}));
  const std::string why = hall.refusal(user("ada"), {Ledger::kDevices});
  EXPECT_TRUE(has(why, "device 64 cannot be limited")) << why;
  EXPECT_TRUE(hall.session(user("bob"), {Ledger::kDevices}));
}

TEST(AdmissionTest, TheRoomOnADeviceIsThatOfTheTightestLimit) {
  constexpr uint64_t kGib = 1u << 30;
  Hall hall(
      "[limits.session]\ndevice_memory = \"3G\"\n[limits.user]\ndevice_memory = \"5G\"\n"
      "[limits.groups.students]\ndevice_memory = \"4G\"\n");
  const Identity ada = user("ada", {'s'});
  EXPECT_EQ(hall.admission.device_room(ada, 0)->limit, 3 * kGib);
  EXPECT_EQ(hall.admission.device_room(ada, 0)->free, 3 * kGib);
  const Permit one = hall.session(ada), other = hall.session(ada);
  ASSERT_TRUE(one && other);
  // Books bytes in all three ledgers, as a worker does.
  const auto book = [](const Permit& permit, uint64_t bytes) {
    const std::vector<int> ledgers = permit->ledgers();
    ASSERT_EQ(ledgers.size(), 3u);
    for (size_t i = 0; i < ledgers.size(); ++i) {
      const uint32_t slot = permit->allowances()[i].slot;
      Ledger ledger = std::move(Ledger::open(UniqueFd(::dup(ledgers[i])), slot)).value();
      ledger.add(1, slot, bytes);
    }
  };
  book(one, kGib);
  EXPECT_EQ(one->device_use(1), kGib);
  EXPECT_EQ(one->device_room(1)->free, 2 * kGib);  // by its own limit
  EXPECT_EQ(other->device_room(1)->free, 3 * kGib);
  book(other, 2 * kGib);
  EXPECT_EQ(one->device_use(1), kGib);
  EXPECT_EQ(one->device_room(1)->limit, 3 * kGib);
  EXPECT_EQ(one->device_room(1)->free, kGib);  // by the group's limit
  EXPECT_EQ(hall.admission.device_room(ada, 1)->free, kGib);
  EXPECT_EQ(hall.admission.device_room(user("bob"), 1)->free, 3 * kGib);
  EXPECT_EQ(one->device_room(0)->free, 3 * kGib);
  EXPECT_FALSE(one->device_room(Ledger::kDevices));
}

TEST(AdmissionTest, WithoutLimitsNothingIsCounted) {
  Hall hall("");
  const Permit session = hall.session(user("ada"));
  ASSERT_TRUE(session);
  EXPECT_TRUE(session->allowances().empty());
  EXPECT_TRUE(session->ledgers().empty());
  EXPECT_FALSE(session->device_room(0));
  EXPECT_FALSE(session->device_use(0));
  EXPECT_FALSE(hall.admission.device_room(user("ada"), 0));
}

struct LeasedHall : Hall {
  explicit LeasedHall(size_t max_sessions = kPlenty) : Hall("", max_sessions) {}
  // An exclusive lease of a device, for any client with the key.
  Lease lease(uint32_t device) {
    Lease wish;
    wish.devices = {device};
    wish.creator = "root";
    const auto taken = admission.leases().take(wish, 0, {0, 1}, {}, {});
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    admission.review();
    return taken.ok() ? taken->lease : Lease();
  }
  void revoke(const Lease& lease) {
    EXPECT_TRUE(admission.leases().revoke(lease.id, ""));
    admission.review();
  }
};

Identity with(Identity who, const Lease& lease) {
  who.lease = lease.id;
  return who;
}

TEST(AdmissionTest, ALeaseKeepsItsDevicesFromOthersUntilItIsRevoked) {
  LeasedHall hall;
  const Lease lease = hall.lease(1);
  EXPECT_TRUE(has(hall.refusal(user("ada"), {0, 1}), "device 1 is leased exclusively"));
  EXPECT_TRUE(hall.session(with(user("ada"), lease), {1}));
  const Applicant first = hall.wait(user("ada"), {1});
  const Applicant second = hall.wait(user("bob"), {0, 1});
  const Applicant other = hall.wait(user("bob"), {0});
  ASSERT_TRUE(first && second && other);
  EXPECT_TRUE(other->is_decided());
  EXPECT_FALSE(first->is_decided() || second->is_decided());
  EXPECT_EQ(first->place(), 1u);
  EXPECT_EQ(second->place(), 2u);
  EXPECT_EQ(hall.admission.waiting(), 2u);
  const Status timeout = second->timeout(std::chrono::milliseconds(1500));
  EXPECT_EQ(timeout.code(), Code::kTimeout);
  EXPECT_TRUE(has(timeout.context(),
                  "the program waited 2s (RCUDA_WAIT) and is at place 2 of the queue: device 1 is "
                  "leased exclusively"))
      << timeout.context();
  hall.revoke(lease);
  EXPECT_TRUE(first->is_decided() && second->is_decided());
}

TEST(AdmissionTest, OneThatWaitsForALeaseHoldsBackNoOthersAndKeepsItsPlace) {
  LeasedHall hall(1);
  const Lease lease = hall.lease(1);
  Permit session = hall.session(user("ada"), {0});
  ASSERT_TRUE(session);
  const Applicant first = hall.wait(user("bob"), {1});
  const Applicant second = hall.wait(user("cleo"), {0});
  ASSERT_TRUE(first && second);
  EXPECT_EQ(second->place(), 1u);
  hall.revoke(lease);
  EXPECT_EQ(first->place(), 1u);
  EXPECT_EQ(second->place(), 2u);
  session.reset();
  EXPECT_TRUE(first->is_decided());
  EXPECT_FALSE(second->is_decided());
}

TEST(AdmissionTest, OneWhoseLeaseEndsWhileItWaitsIsTold) {
  LeasedHall hall(1);
  const Lease lease = hall.lease(1);
  const Permit session = hall.session(user("ada"), {0});
  ASSERT_TRUE(session);
  const Applicant waits = hall.wait(with(user("bob"), lease), {1});
  ASSERT_TRUE(waits);
  EXPECT_FALSE(waits->is_decided());
  hall.revoke(lease);
  ASSERT_TRUE(waits->is_decided());
  const auto permit = waits->take();
  EXPECT_EQ(permit.status().code(), Code::kDenied);
  EXPECT_TRUE(has(permit.status().context(), "has ended"));
  EXPECT_EQ(hall.admission.waiting(), 0u);
}

// ---- sessions whose clients are disconnected ---------------------------------------------------

struct LostHall : Hall {
  using Hall::Hall;
  // A session whose client has been disconnected for these seconds.
  Permit lose(const Identity& who, uint32_t worker, int64_t lost_for,
              const std::vector<uint32_t>& devices = {0}) {
    Permit permit = session(who, devices);
    lost.push_back({{worker, std::chrono::seconds(lost_for)}, who, permit.get()});
    admission.set_lost([this] { return lost; });
    return permit;
  }
  std::vector<uint32_t> ends() const {
    std::vector<uint32_t> workers;
    for (const auto& [worker, user] : admission.in_the_way()) workers.push_back(worker);
    return workers;
  }
  std::vector<Admission::LostSession> lost;
};

TEST(AdmissionTest, ADisconnectedSessionEndsWhenAClientWaitsForItsRoom) {
  LostHall hall("[limits.user]\nsessions = 2\n", 3);
  const Permit ada1 = hall.lose(user("ada"), 1, 40), ada2 = hall.lose(user("ada"), 2, 50);
  EXPECT_TRUE(hall.ends().empty()) << "nobody waits";
  const Permit bob = hall.session(user("bob"));
  {
    const Applicant waits = hall.wait(user("ada"));
    EXPECT_EQ(hall.ends(), std::vector<uint32_t>{2}) << "the longest loss first";
    hall.lost[1].client.ends = true;
    EXPECT_TRUE(hall.ends().empty()) << "one that ends already suffices";
    hall.lost[1].client.ends = false;
  }
  EXPECT_TRUE(hall.ends().empty());
  const Applicant cleo = hall.wait(user("cleo")), second = hall.wait(user("dan"));
  EXPECT_EQ(hall.ends(), std::vector<uint32_t>{2}) << "for the first in the queue only";
  EXPECT_EQ(hall.admission.in_the_way().front().user, "cleo");
}

// Programs that run one after the other need room for one session only, although a session ends a
// little later than its program.
TEST(AdmissionTest, AClientThatDoesNotWaitIsAdmittedAfterTheEndOfASessionThatIsOver) {
  LostHall hall("[limits.user]\nsessions = 1\n", 3);
  Permit over = hall.lose(user("ada"), 1, 100);
  const Applicant next = hall.admission.apply(user("ada"), {0}, false).value();
  EXPECT_FALSE(next->is_decided());
  EXPECT_TRUE(hall.ends().empty()) << "nobody's session ends for a client that does not wait";
  EXPECT_FALSE(next->fits_after_ends());
  hall.lost[0].client.ends = true;
  EXPECT_TRUE(next->fits_after_ends());
  hall.lost.clear();
  EXPECT_FALSE(next->fits_after_ends());
  over.reset();
  EXPECT_TRUE(next->is_decided());
}

TEST(AdmissionTest, AClientThatDoesNotWaitHoldsNobodyBack) {
  LostHall hall("[limits.user]\ndevices = 4\n", 3);
  const Permit lost = hall.lose(user("ada"), 1, 100);
  const Permit more = hall.session(user("ada"), {1, 2});
  const Applicant large = hall.admission.apply(user("ada"), {3, 4}, false).value();
  EXPECT_FALSE(large->is_decided());
  EXPECT_EQ(hall.admission.waiting(), 0u);
  EXPECT_TRUE(hall.session(user("ada"), {5})) << "it fits";
  const Applicant waits = hall.wait(user("ada"), {3, 4});
  const Applicant later = hall.admission.apply(user("ada"), {3, 4}, false).value();
  hall.lost[0].client.ends = true;
  EXPECT_FALSE(later->fits_after_ends()) << "another client came earlier";
}

// If a killed program starts again, its own disconnected session ends, and no other user's.
TEST(AdmissionTest, TheUsersOwnDisconnectedSessionEndsFirst) {
  LostHall hall("", 2);
  const Permit ada = hall.lose(user("ada"), 1, 40), bob = hall.lose(user("bob"), 2, 100);
  {
    const Applicant waits = hall.wait(user("ada"));
    EXPECT_EQ(hall.ends(), std::vector<uint32_t>{1});
  }
  const Applicant waits = hall.wait(user("cleo"));
  EXPECT_EQ(hall.ends(), std::vector<uint32_t>{2});
}

TEST(AdmissionTest, NoSessionEndsIfThatIsNotEnough) {
  LostHall hall("[limits.groups.students]\ndevices = 4\n[limits.user]\nsessions = 1\n", 3);
  const Permit cleo = hall.session(user("cleo", {'s'}), {0, 1}),
               bob = hall.lose(user("bob", {'s'}), 1, 100, {0}),
               eve = hall.lose(user("eve", {'s'}), 2, 50, {1});
  {
    const Applicant waits = hall.wait(user("dan", {'s'}), {0, 1, 2});
    EXPECT_TRUE(hall.ends().empty()) << "2 + 3 devices of 4, even without both";
  }
  {
    const Applicant waits = hall.wait(user("dan", {'s'}), {0, 1});
    EXPECT_EQ(hall.ends(), (std::vector<uint32_t>{2, 1})) << "both are needed";
  }
  {
    const Applicant waits = hall.wait(user("dan", {'s'}), {0});
    EXPECT_EQ(hall.ends(), std::vector<uint32_t>{1});
  }
  hall.admission.set_max_sessions(2);
  const Applicant waits = hall.wait(user("bob", {'s'}), {0});
  EXPECT_EQ(hall.ends(), (std::vector<uint32_t>{2, 1}))
      << "its user's place, and two of the server's";
  hall.admission.set_max_sessions(1);
  EXPECT_TRUE(hall.ends().empty()) << "its user's place would be free, but none of the server's";
}

TEST(AdmissionTest, ASessionThatEndsForAnotherReasonIsWaitedFor) {
  LostHall hall("", 2);
  const Permit ada = hall.lose(user("ada"), 1, 0), bob = hall.lose(user("bob"), 2, 100);
  hall.lost[0].client.ends = true;
  EXPECT_TRUE(has(hall.refusal(user("cleo")),
                  "; a disconnected session that counts against this limit is ending"));
  const Applicant waits = hall.wait(user("cleo"));
  EXPECT_TRUE(hall.ends().empty());
}

TEST(AdmissionTest, ADisconnectedSessionThatHoldsNoRoomOfTheClientStays) {
  LostHall hall("[limits.user]\nsessions = 1\n[limits.groups.students]\ndevices = 2\n");
  const Permit bob = hall.lose(user("bob"), 1, 100), ada = hall.session(user("ada", {'s'}), {0, 1});
  const Applicant own = hall.wait(user("ada")), of_group = hall.wait(user("cleo", {'s'}), {2});
  EXPECT_TRUE(hall.ends().empty());
  const Applicant of_bob = hall.wait(user("bob"));
  EXPECT_EQ(hall.ends(), std::vector<uint32_t>{1});
}

// A session whose client reconnects soon is not ended, even if the queue is long.
TEST(AdmissionTest, ASessionIsSparedAfterItsLossAndAfterAnAttemptToConnect) {
  LostHall hall("", 1);
  const Permit running = hall.lose(user("ada"), 1, 29);
  const Applicant waits = hall.wait(user("bob"));
  EXPECT_TRUE(hall.ends().empty());
  hall.lost[0].client = {1, std::chrono::seconds(30), false, std::chrono::seconds(9)};
  EXPECT_TRUE(hall.ends().empty()) << "its client is coming back";
  hall.lost[0].client.quiet_for = std::chrono::seconds(10);
  EXPECT_EQ(hall.ends(), std::vector<uint32_t>{1});
}

TEST(AdmissionTest, ARefusalNamesTheDisconnectedSessionAndItsEnd) {
  LostHall hall("", 1);
  EXPECT_TRUE(hall.refusal(user("ada")).empty());
  const Permit running = hall.lose(user("ada"), 77, 40);
  const std::string own = hall.refusal(user("ada"));
  EXPECT_TRUE(
      has(own,
          "; the session with worker 77 has been disconnected for 40s and counts against "
          "this limit: set RCUDA_WAIT=60s to end that session, or run rcuda-smi end SERVER 77"))
      << own;
  const std::string other = hall.refusal(user("bob"));
  EXPECT_TRUE(has(other,
                  "; a session of another user has been disconnected for 40s and counts against "
                  "this limit: set RCUDA_WAIT=60s to end that session"))
      << other;
  EXPECT_FALSE(has(other, "77")) << other;
  EXPECT_FALSE(has(other, "rcuda-smi end")) << other;
  const Applicant waits = hall.wait(user("ada"));
  const std::string late = waits->timeout(std::chrono::seconds(2)).message();
  EXPECT_TRUE(
      has(late,
          "has been disconnected for 40s and counts against this limit: rcuda-smi end SERVER "
          "77 ends that session"))
      << late;
  EXPECT_FALSE(has(late, "RCUDA_WAIT=60s")) << "it has waited: " << late;
  hall.lost[0].client.lost_for = std::chrono::seconds(5);
  EXPECT_TRUE(has(hall.refusal(user("bob")), "to end that session 30s after it was disconnected"));
  hall.lost.clear();
  EXPECT_FALSE(has(hall.refusal(user("ada")), "disconnected"));
}

}  // namespace
}  // namespace rcuda::server
