// Shared memory: Links between two processes of one machine. See shm_link.cpp.
#pragma once

#include "common/transport/media.h"

namespace rcuda::transport::shm {

Result<std::unique_ptr<Link>> make_link(Bootstrap bootstrap, const LinkOptions& options);

inline constexpr MediumTraits kTraits{
    .name = "shm", .reach = Reach::kThisMachine, .shares_pages = true};
inline constexpr Medium kMedium{.traits = kTraits, .make = make_link};

}  // namespace rcuda::transport::shm
