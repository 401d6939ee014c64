#include "tests/contract/link_contract.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <future>
#include <sstream>
#include <stdexcept>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/late_media.h"

namespace rcuda::test {

using transport::Bytes;
using transport::Link;
using transport::RegionId;
using transport::Wake;

namespace {
bool is_late(const Medium& medium) {
  return medium.name() == std::string_view(kLateShmTraits.name) ||
         medium.name() == std::string_view(kLateTcpTraits.name);
}
}  // namespace

std::vector<LinkCase> link_cases() {
  std::vector<std::string> chosen;
  if (const char* value = std::getenv("RCUDA_TEST_MEDIA")) {
    std::istringstream names(value);
    for (std::string name; std::getline(names, name, ',');) chosen.push_back(name);
  }
  std::vector<LinkCase> cases;
  for (const Medium& medium : transport::media()) {
    const bool named = std::find(chosen.begin(), chosen.end(), medium.name()) != chosen.end();
    if (chosen.empty() ? medium.usable_over != nullptr : !named) continue;
    if (is_late(medium)) {
      cases.push_back({&medium, true, false});
    } else {
      cases.push_back({&medium, false, false});
      cases.push_back({&medium, true, true});
    }
  }
  return cases;
}

std::string link_case_name(const testing::TestParamInfo<LinkCase>& info) {
  std::string name = info.param.medium->name();
  std::replace(name.begin(), name.end(), '-', '_');
  return name + (info.param.wrapped ? "_faulty" : "");
}

void PrintTo(const LinkCase& link_case, std::ostream* out) {
  *out << link_case.medium->name() << (link_case.wrapped ? ", faulty" : "");
}

int rounds(int full, bool faulty) {
  int divisor = faulty ? 20 : 1;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  divisor *= 20;
#endif
  if (const char* slow = std::getenv("RCUDA_TEST_SLOWDOWN")) divisor *= std::atoi(slow);
  return std::max(full / divisor, 10);
}

Status put_word(Link& link, uint64_t offset, uint64_t word, Wake wake) {
  return link.put(offset, std::as_bytes(std::span(&word, 1)), {}, wake);
}

namespace {
std::byte pattern_at(uint64_t seed, size_t place) {
  uint64_t x = (seed + place / 8) * 0x9e3779b97f4a7c15;
  x ^= x >> 29;
  return static_cast<std::byte>(x >> (place % 8 * 8));
}
}  // namespace

void fill_pattern(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern_at(seed, i);
}

testing::AssertionResult has_pattern(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern_at(seed, i)) {
      return testing::AssertionFailure() << "byte " << i << " of " << bytes.size() << " is "
                                         << std::to_integer<int>(bytes[i]) << ", seed " << seed;
    }
  }
  return testing::AssertionSuccess();
}

SharedBlock::SharedBlock(size_t size) {
  fd = ::memfd_create("block", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(size)), 0);
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  EXPECT_NE(base, MAP_FAILED);
  bytes = {static_cast<std::byte*>(base), size};
}

SharedBlock::~SharedBlock() {
  ::munmap(bytes.data(), bytes.size());
  ::close(fd);
}

DescriptorLimit::DescriptorLimit() {
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
  rlimit now = before_;
  now.rlim_cur = 256;
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
  while (true) {
    UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!next) break;
    taken_.push_back(std::move(next));
  }
  EXPECT_EQ(errno, EMFILE);
}
DescriptorLimit::~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

Status write_and_wait(Link& link, RegionId region, uint64_t offset, Bytes from) {
  std::promise<Status> outcome;
  link.write(region, offset, from.data(), from.size(),
             [&](const Status& status) { outcome.set_value(status); });
  return outcome.get_future().get();
}

Status read_and_wait(Link& link, RegionId region, uint64_t offset, std::span<std::byte> into) {
  std::promise<Status> outcome;
  link.read(region, offset, into.data(), into.size(),
            [&](const Status& status) { outcome.set_value(status); });
  return outcome.get_future().get();
}

namespace {
// On a loaded host, an emulated machine may make no progress for longer than the default
// peer_timeout.
transport::LinkOptions patient(transport::LinkOptions options) {
  const bool by_default = options.peer_timeout == transport::LinkOptions().peer_timeout;
  if (by_default && std::getenv("RCUDA_TEST_SLOWDOWN")) options.peer_timeout = kPatience;
  return options;
}
}  // namespace

void LinkContract::connect(const transport::LinkOptions& client,
                           const transport::LinkOptions& server) {
  client_.reset();
  server_.reset();
  Result<LinkPair> pair = make_link_pair(medium(), patient(client), patient(server));
  if (!pair.ok()) throw std::runtime_error(pair.status().message());  // ends the whole test
  cut_ = pair->cut;
  client_ = std::move(pair->client);
  server_ = std::move(pair->server);
  if (wrapped()) {
    client_ = std::make_unique<FaultLink>(std::move(client_), FaultPlan{.seed = 11});
    server_ = std::make_unique<FaultLink>(std::move(server_), FaultPlan{.seed = 22});
  }
}

}  // namespace rcuda::test

// Replaces GoogleTest's main(), because a peer process runs this program too.
int main(int argc, char** argv) {
  rcuda::test::run_peer_if_asked();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
