#include "tests/support/late_media.h"

#include <cstdint>
#include <cstdlib>

#include <unistd.h>

#include "common/base/log.h"
#include "tests/support/fault_link.h"

namespace rcuda::test {

using transport::Bootstrap;
using transport::Link;
using transport::LinkOptions;

namespace {

Result<std::unique_ptr<Link>> delayed(Result<std::unique_ptr<Link>> link,
                                      const transport::MediumTraits& traits) {
  if (!link.ok()) return link;
  FaultPlan plan{.traits = &traits};
  if (const char* seed = std::getenv("RCUDA_TEST_DELAYS")) {
    plan.seed = std::strtoull(seed, nullptr, 10) + static_cast<uint64_t>(::getpid());
  }
  RCUDA_INFO("simulated delays in the Link over %s", traits.name);
  return std::unique_ptr<Link>(
      std::make_unique<FaultLink>(std::move(link).value(), std::move(plan)));
}

}  // namespace

Result<std::unique_ptr<Link>> make_late_shm(Bootstrap bootstrap, const LinkOptions& options) {
  return delayed(transport::shm::make_link(std::move(bootstrap), options), kLateShmTraits);
}

Result<std::unique_ptr<Link>> make_late_tcp(Bootstrap bootstrap, const LinkOptions& options) {
  return delayed(transport::tcp::make_link(std::move(bootstrap), options), kLateTcpTraits);
}

}  // namespace rcuda::test
