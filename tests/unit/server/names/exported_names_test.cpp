// Names of exported memory between workers, all in this process: which workers get the driver's
// handle. A function plays the daemons and finds the exporting worker as they do.
#include "server/names/exported_names.h"

#include <chrono>
#include <cstring>
#include <map>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

namespace rcuda::server {
namespace {

using wire::ExportedName;
using wire::ExportKind;

wire::HandleBytes some_handle(size_t number) {
  wire::HandleBytes handle{};
  std::memcpy(handle.data(), &number, sizeof number);
  return handle;
}

UniqueFd open_null() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

class ExportedNamesTest : public ::testing::Test {
 protected:
  using Door = std::pair<uint16_t, wire::ExportPlace>;

  // A worker of a daemon.
  struct Worker : ExportedNames {
    Worker(ExportedNamesTest& world, const Exporter& self)
        : ExportedNames(self,
                        [&world](uint16_t port, const wire::ExportQuery& query) {
                          return world.ask(port, query);
                        }),
          world_(world),
          door_(self.port, wire::export_place(self.owner, self.number)) {
      world_.workers_[door_] = this;
    }
    ~Worker() { world_.workers_.erase(door_); }
    ExportedNamesTest& world_;
    const Door door_;
  };

  Result<wire::ExportAnswer> ask(uint16_t port, const wire::ExportQuery& query) {
    const auto found = workers_.find({port, query.place});
    if (found == workers_.end()) return Status(Code::kUnavailable, "no such worker");
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd asking(ends[0]);
    const Result<wire::ExportQuery> arrived = wire::decode<wire::ExportQuery>(wire::encode(query));
    EXPECT_TRUE(arrived.ok());
    found->second->answer(*arrived, UniqueFd(ends[1]));
    return wire::read_export_answer(asking.get(),
                                    std::chrono::steady_clock::now() + std::chrono::seconds(10));
  }

  std::map<Door, ExportedNames*> workers_;
  Worker exporter_{*this, {"alice on one", 8308, {1}}},
      importer_{*this, {"alice on one", 8309, {2}}};
};

TEST_F(ExportedNamesTest, AnotherWorkerOfTheOwnerGetsTheHandle) {
  const auto name = exporter_.add(ExportKind::kMemory, some_handle(1));
  ASSERT_TRUE(name) << name.status().message();
  for (ExportedNames* worker : {&importer_, &exporter_}) {
    const auto found = worker->find_handle(*name);
    ASSERT_TRUE(found) << found.status().message();
    EXPECT_EQ(*found, some_handle(1));
    EXPECT_EQ(worker->find_descriptor(*name).status().code(), Code::kNotFound);
  }
}

TEST_F(ExportedNamesTest, AnotherWorkerOfTheOwnerGetsTheDescriptor) {
  const auto name = exporter_.add(ExportKind::kPool, open_null());
  ASSERT_TRUE(name) << name.status().message();
  for (ExportedNames* worker : {&importer_, &exporter_}) {
    const auto found = worker->find_descriptor(*name);
    ASSERT_TRUE(found) << found.status().message();
    struct stat one {
    }, other{};
    ASSERT_EQ(::fstat(found->get(), &one), 0);
    ASSERT_EQ(::fstat(open_null().get(), &other), 0);
    EXPECT_EQ(one.st_rdev, other.st_rdev);
  }
  EXPECT_TRUE(exporter_.remove(*name));
  EXPECT_FALSE(exporter_.remove(*name));
  EXPECT_EQ(importer_.find_descriptor(*name).status().code(), Code::kNotFound);
}

// A session of another owner has seen the name. It gets the same answer as for an unknown name.
TEST_F(ExportedNamesTest, AnotherOwnerGetsNothing) {
  const auto handle = exporter_.add(ExportKind::kMemory, some_handle(1));
  const auto descriptor = exporter_.add(ExportKind::kAllocation, open_null());
  ASSERT_TRUE(handle && descriptor);
  ExportedName nothing = *handle;
  nothing.secret[0] ^= 1;
  const Status unknown = importer_.find_handle(nothing).status();
  EXPECT_EQ(unknown.code(), Code::kNotFound);
  for (const char* owner : {"alice on two", "bob on one", ""}) {
    Worker other(*this, {owner, 8308, {3}});
    EXPECT_EQ(other.find_handle(*handle).status().message(), unknown.message()) << owner;
    EXPECT_EQ(other.find_descriptor(*descriptor).status().message(), unknown.message()) << owner;
  }
}

TEST_F(ExportedNamesTest, NamesThatNobodyMintedAreNotFound) {
  const auto name = exporter_.add(ExportKind::kMemory, some_handle(1));
  ASSERT_TRUE(name);
  ExportedName forged = *name;
  forged.kind = ExportKind::kEvent;
  EXPECT_EQ(importer_.find_handle(forged).status().code(), Code::kNotFound) << "another kind";
  EXPECT_EQ(exporter_.find_handle(forged).status().code(), Code::kNotFound) << "another kind";
  for (size_t i = 0; i < forged.worker.size(); ++i) {
    forged = *name;
    forged.worker[i] ^= 0x10;
    EXPECT_EQ(importer_.find_handle(forged).status().code(), Code::kNotFound);
    forged = *name;
    forged.secret[i] ^= 0x10;
    EXPECT_EQ(importer_.find_handle(forged).status().code(), Code::kNotFound);
  }
  forged = *name;
  forged.port = importer_.door_.first;
  EXPECT_EQ(importer_.find_handle(forged).status().code(), Code::kNotFound) << "another daemon";
}

TEST_F(ExportedNamesTest, NamesEndWithTheSession) {
  std::optional<Worker> session(std::in_place, *this, Exporter{"alice on one", 8308, {4}});
  const auto handle = session->add(ExportKind::kEvent, some_handle(1));
  const auto descriptor = session->add(ExportKind::kAllocation, open_null());
  ASSERT_TRUE(handle && descriptor);
  ASSERT_TRUE(importer_.find_handle(*handle));
  session.reset();
  EXPECT_EQ(importer_.find_handle(*handle).status().code(), Code::kNotFound);
  EXPECT_EQ(importer_.find_descriptor(*descriptor).status().code(), Code::kNotFound);
}

TEST_F(ExportedNamesTest, TheImporterLearnsWhereTheMemoryIs) {
  const ExportOrigin origin{.place = ExportOrigin::Place::kDevice, .device = {1, 2, 3}};
  const auto handle = exporter_.add(ExportKind::kMemory, some_handle(1), origin);
  const auto descriptor = exporter_.add(ExportKind::kAllocation, open_null(), origin);
  const auto unknown = exporter_.add(ExportKind::kMemory, some_handle(2));
  ASSERT_TRUE(handle && descriptor && unknown);
  for (ExportedNames* worker : {&importer_, &exporter_}) {
    ExportOrigin found;
    ASSERT_TRUE(worker->find_handle(*handle, &found));
    EXPECT_EQ(found, origin);
    found = {};
    ASSERT_TRUE(worker->find_descriptor(*descriptor, &found));
    EXPECT_EQ(found, origin);
    ASSERT_TRUE(worker->find_handle(*unknown, &found));
    EXPECT_EQ(found, ExportOrigin{});
  }
  // A copy between workers may have exported the handle before the program exports it.
  ASSERT_TRUE(exporter_.add(ExportKind::kMemory, some_handle(2), origin));
  ASSERT_TRUE(exporter_.add(ExportKind::kMemory, some_handle(2)));
  ExportOrigin found;
  ASSERT_TRUE(importer_.find_handle(*unknown, &found));
  EXPECT_EQ(found, origin);
}

// Programs may store opened memory under the bytes of the handle, so these must not change.
TEST_F(ExportedNamesTest, OneHandleHasOneName) {
  const auto name = exporter_.add(ExportKind::kMemory, some_handle(1));
  const auto again = exporter_.add(ExportKind::kMemory, some_handle(1));
  const auto other = exporter_.add(ExportKind::kMemory, some_handle(2));
  const auto event = exporter_.add(ExportKind::kEvent, some_handle(1));
  ASSERT_TRUE(name && again && other && event);
  EXPECT_EQ(name->secret, again->secret);
  EXPECT_NE(name->secret, other->secret);
  EXPECT_NE(name->secret, event->secret);
}

TEST_F(ExportedNamesTest, TheOldestNamesGoWhenThereAreTooMany) {
  const auto descriptor = exporter_.add(ExportKind::kPool, open_null());
  const auto oldest = exporter_.add(ExportKind::kMemory, some_handle(0));
  const auto second = exporter_.add(ExportKind::kMemory, some_handle(1));
  ASSERT_TRUE(descriptor && oldest && second);
  for (size_t i = 2; i <= ExportedNames::kMostHandles; ++i) {
    ASSERT_TRUE(exporter_.add(ExportKind::kMemory, some_handle(i)));
  }
  EXPECT_FALSE(importer_.find_handle(*oldest));
  EXPECT_TRUE(importer_.find_handle(*second));
  EXPECT_TRUE(importer_.find_descriptor(*descriptor));
  EXPECT_FALSE(exporter_.remove(*second)) << "only descriptors are given back";
}

TEST(ExportedNameTest, HandlesHoldANameOfTheirKindAndNothingElse) {
  ExportedNames names;
  const auto name = names.add(ExportKind::kMemory, some_handle(1));
  ASSERT_TRUE(name);
  const wire::HandleBytes handle = wire::to_handle(*name);
  ASSERT_TRUE(wire::name_in(handle, ExportKind::kMemory));
  EXPECT_EQ(wire::name_in(handle, ExportKind::kMemory)->secret, name->secret);
  EXPECT_FALSE(wire::name_in(handle, ExportKind::kEvent));
  EXPECT_FALSE(wire::name_in({}, ExportKind::kMemory));
  for (const size_t byte : {0, 8, 14, 48, 63}) {
    wire::HandleBytes altered = handle;
    altered[byte] ^= std::byte{1};
    EXPECT_FALSE(wire::name_in(altered, ExportKind::kMemory)) << byte;
  }
}

}  // namespace
}  // namespace rcuda::server
