#include "tests/support/fickle_medium.h"

#include <cstdlib>
#include <string>
#include <thread>

#include <unistd.h>

#include "tests/support/fault_link.h"

namespace rcuda::test {
namespace {

std::string behaviour() {
  const char* const text = std::getenv("RCUDA_TEST_FICKLE");
  return text ? text : "";
}

}  // namespace

Status fickle_host() {
  if (behaviour().empty()) return {Code::kUnsupported, "this host cannot use fickle"};
  return {};
}

Status fickle_over(int) {
  if (behaviour() == "unusable") return {Code::kUnsupported, "fickle is not usable here"};
  return {};
}

Result<std::unique_ptr<transport::Link>> make_fickle(transport::Bootstrap bootstrap,
                                                     const transport::LinkOptions& options) {
  if (behaviour() == "silent") std::this_thread::sleep_for(bootstrap.timeout);
  if (behaviour() == "dies") ::_exit(3);
  if (behaviour() != "works") {
    constexpr char kRefusal[64] = "fickle does not connect";  // not a Hello of TCP
    (void)bootstrap.control.send(kRefusal, sizeof kRefusal, 0);
    return Status(Code::kUnavailable, kRefusal);
  }
  auto link = transport::tcp::make_link(std::move(bootstrap), options);
  if (!link) return link;
  return std::unique_ptr<transport::Link>(
      std::make_unique<FaultLink>(std::move(link).value(), FaultPlan{.traits = &kFickleTraits}));
}

}  // namespace rcuda::test
