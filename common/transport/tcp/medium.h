// TCP: Links between any two machines. See tcp_link.h.
#pragma once

#include "common/transport/media.h"

namespace rcuda::transport::tcp {

Result<std::unique_ptr<Link>> make_link(Bootstrap bootstrap, const LinkOptions& options);

inline constexpr MediumTraits kTraits{.name = "tcp",
                                      .reach = Reach::kNetwork,
                                      .copies_by_cpu = true,
                                      .has_region_puts = true,
                                      .orders_writes = true,
                                      .has_immediates = true};
inline constexpr Medium kMedium{.traits = kTraits, .make = make_link};

}  // namespace rcuda::transport::tcp
