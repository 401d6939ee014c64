// InfiniBand and RoCE. The Link itself is in a plug-in library (plugin.h), so that programs of
// rcuda start without rdma-core. loader.cpp finds and loads the plug-in.
#pragma once

#include "common/transport/media.h"

namespace rcuda::transport::verbs {

// Checks that the plug-in can be loaded, and that the socket's local address belongs to an RDMA
// device (or that RCUDA_VERBS_DEVICE names one). Otherwise returns an error with the reason.
Status usable_by_plugin(int control_socket);
// Returns kUnsupported with the reason if this host has no RDMA adapter, or if it limits the memory
// that this process may lock. With such a limit, allocations of page-locked memory that work over
// TCP could fail over verbs.
Status fit_host();
// Makes a Link with the plug-in librcuda-verbs.so. The first call that needs the plug-in loads it:
// from RCUDA_PLUGIN_DIR if that is set, otherwise from rcuda/ next to the calling library, or from
// the lib folder of the calling program's tree. kUnsupported with the reason if it is missing.
Result<std::unique_ptr<Link>> make_by_plugin(Bootstrap bootstrap, const LinkOptions& options);

inline constexpr MediumTraits kTraits{.name = "verbs",
                                      .reach = Reach::kNetwork,
                                      .has_region_puts = true,
                                      .has_immediates = true,
                                      .has_adapter = true,
                                      .moves_in_clear = true};
inline constexpr Medium kMedium{.traits = kTraits,
                                .usable_over = usable_by_plugin,
                                .fit_host = fit_host,
                                .make = make_by_plugin};

}  // namespace rcuda::transport::verbs
