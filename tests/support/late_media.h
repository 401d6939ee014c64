// Media that exist only in tests: shared memory and TCP, each in a FaultLink, so that puts arrive
// late, and transfers start late and overtake each other. media_table.cpp adds them to the table of
// each program that links rcuda_test_media; no other code knows them. The number RCUDA_TEST_DELAYS
// plus the process id is the seed of the delays. Without the variable, the seed is always the same.
#pragma once

#include "common/transport/media.h"
#include "common/transport/shm/medium.h"
#include "common/transport/tcp/medium.h"

namespace rcuda::test {

constexpr transport::MediumTraits named(transport::MediumTraits traits, const char* name) {
  traits.name = name;
  return traits;
}

inline constexpr transport::MediumTraits kLateShmTraits =
    named(transport::shm::kTraits, "late-shm");
inline constexpr transport::MediumTraits kLateTcpTraits =
    named(transport::tcp::kTraits, "late-tcp");

Result<std::unique_ptr<transport::Link>> make_late_shm(transport::Bootstrap bootstrap,
                                                       const transport::LinkOptions& options);
Result<std::unique_ptr<transport::Link>> make_late_tcp(transport::Bootstrap bootstrap,
                                                       const transport::LinkOptions& options);

inline constexpr transport::Medium kLateShm{.traits = kLateShmTraits, .make = make_late_shm};
inline constexpr transport::Medium kLateTcp{.traits = kLateTcpTraits, .make = make_late_tcp};

}  // namespace rcuda::test
