// Linked into the client and the server of the order test and into nothing else (CMakeLists.txt
// here): every Link they make is behind a FaultLink, so that puts come late and transfers start
// late and overtake each other. The linker's --wrap sends the calls of the functions that make
// Links here; what is built for use has no hook for it. RCUDA_TEST_DELAYS is the seed, a number.
#include <cstdint>
#include <cstdlib>
#include <memory>

#include <unistd.h>

#include "common/base/log.h"
#include "common/transport/link.h"
#include "tests/support/fault_link.h"

namespace rcuda::test {

using transport::Bootstrap;
using transport::Link;
using transport::LinkOptions;

// By their mangled names; CMakeLists.txt has them too. When a signature changes, nobody defines
// __real_... any more and the link fails.
#define SHM_LINK "_ZN5rcuda9transport13make_shm_linkENS0_9BootstrapERKNS0_11LinkOptionsE"
#define TCP_LINK "_ZN5rcuda9transport13make_tcp_linkENS0_9BootstrapERKNS0_11LinkOptionsE"

Result<std::unique_ptr<Link>> real_shm(Bootstrap, const LinkOptions&) __asm__("__real_" SHM_LINK);
Result<std::unique_ptr<Link>> real_tcp(Bootstrap, const LinkOptions&) __asm__("__real_" TCP_LINK);
Result<std::unique_ptr<Link>> wrap_shm(Bootstrap, const LinkOptions&) __asm__("__wrap_" SHM_LINK);
Result<std::unique_ptr<Link>> wrap_tcp(Bootstrap, const LinkOptions&) __asm__("__wrap_" TCP_LINK);

namespace {

Result<std::unique_ptr<Link>> delayed(Result<std::unique_ptr<Link>> link) {
  const char* seed = std::getenv("RCUDA_TEST_DELAYS");
  if (!link.ok() || !seed) return link;
  FaultPlan plan;
  plan.seed = std::strtoull(seed, nullptr, 10) + static_cast<uint64_t>(::getpid());
  RCUDA_INFO("delays in the link over %s", (*link)->medium());
  return std::unique_ptr<Link>(
      std::make_unique<FaultLink>(std::move(link).value(), std::move(plan)));
}

}  // namespace

Result<std::unique_ptr<Link>> wrap_shm(Bootstrap bootstrap, const LinkOptions& options) {
  return delayed(real_shm(std::move(bootstrap), options));
}

Result<std::unique_ptr<Link>> wrap_tcp(Bootstrap bootstrap, const LinkOptions& options) {
  return delayed(real_tcp(std::move(bootstrap), options));
}

}  // namespace rcuda::test
