#include "tests/unit/client/two_puppets.h"

#include <cstdlib>
#include <iterator>
#include <string>

#include "client/session/wait.h"
#include "common/base/peer_order.h"
#include "common/wire/address_ranges.h"

namespace rcuda::client {
namespace {

wire::Welcome welcome(uint32_t devices, uint32_t window, uint32_t driver_version) {
  wire::Welcome made = test::PuppetServer::welcome_with(devices);
  // Not the first range, where AddressSanitizer has its shadow memory. Bases 0 to 3 lie within the
  // 16 GiB (kRoom, own_addresses.cpp) that the client keeps free above ThreadSanitizer's mappings,
  // which end at kBases.begin. The bases from kFirstBase on are those of welcome_with().
  constexpr size_t kRange = std::size(wire::kWindowRanges) > 1 ? 1 : 0;
  made.windows = {{wire::kWindowRanges[kRange].begin + window * wire::kSmallWindowBytes,
                   wire::kSmallWindowBytes},
                  {wire::kBases.begin + window * wire::kBaseBytes, wire::kBaseBytes}};
  made.driver_version = driver_version;
  return made;
}

}  // namespace

TwoPuppets::TwoPuppets() : first(welcome(2, 5, 13000)), second(welcome(1, 7, 12080)) {
  const std::string one = "127.0.0.1@" + std::to_string(first.port());
  const std::string two = "127.0.0.1@" + std::to_string(second.port());
  const std::string devices = one + ":1," + two + ":0," + one + ":0";
  ::setenv("RCUDA_DEVICES", devices.c_str(), 1);
  ::setenv("RCUDA_TRANSPORT", "shm", 1);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(Process::get().initialize(), CUDA_SUCCESS);
}

TwoPuppets& TwoPuppets::get() {
  static auto* made = new TwoPuppets;  // the sessions live as long as the process
  return *made;
}

void TwoPuppetsTest::SetUp() {
  TwoPuppets::get();
  ASSERT_EQ(process().check(), CUDA_SUCCESS);
  // Marked as retained, as by an application.
  for (CUdevice i = 0; i < static_cast<CUdevice>(process().device_count()); ++i) {
    process().device(i)->primary->given_back = false;
  }
  push_context(process().device(0)->primary);
}

void TwoPuppetsTest::TearDown() {
  for (const CUdeviceptr address : allocated_) process().memory().remove(address);
  pop_context();
  // Work that a test has left in flight ends before the next test.
  for (int ordinal = 0; ordinal < 3; ++ordinal) {
    const Context& context = *process().device(ordinal)->primary;
    EXPECT_EQ(synchronize_context(*context.session, context.id), CUDA_SUCCESS);
  }
}

CUdeviceptr TwoPuppetsTest::allocate(Session& session, uint64_t offset, size_t bytes) {
  Allocation allocation;
  allocation.base = session.welcome().windows.front().base + offset;
  allocation.bytes = bytes;
  allocation.session = &session;
  allocation.context = wire::primary_context_id(0);
  allocation.device = session.ordinals()[0];
  EXPECT_TRUE(process().memory().add(allocation));
  allocated_.push_back(allocation.base);
  return allocation.base;
}

void TwoPuppetsTest::settle(Session& session) {
  EXPECT_EQ(session.call(session.in_context(0), wire::PingBody{}), CUDA_SUCCESS);
  after_peer(&TwoPuppets::get().first);
  after_peer(&TwoPuppets::get().second);
}

LoneSession::LoneSession(const char* medium)
    : puppet(test::PuppetServer::welcome_with(1), transport::find_medium(medium)->traits.reach) {
  wire::Credentials credentials;
  EXPECT_TRUE(credentials.security.set("none", "RCUDA_SECURITY", "the test").ok());
  SessionOptions options;
  options.medium = transport::find_medium(medium);
  options.credentials = &credentials;
  auto opened = Session::open({nullptr, "127.0.0.1", puppet.port(), {0}, {0}}, options);
  if (!opened) {
    ADD_FAILURE() << opened.status().message();
    std::abort();
  }
  session = std::move(opened).value();
}

CUresult LoneSession::ping() {
  return ordered_with(puppet,
                      [&] { return session->call(session->in_context(0), wire::PingBody{}); });
}

}  // namespace rcuda::client
