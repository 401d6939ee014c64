// RCUDA_VERBS_CACHE: how many MiB of pageable memory may stay registered with the adapter; 0: none.
// Programs and servers check the value when they start; the plug-in reads it.
#pragma once

namespace rcuda::transport::verbs {

inline constexpr unsigned kKeptMiB = 1024;
inline constexpr unsigned kMaxKeptMiB = 1u << 24;

}  // namespace rcuda::transport::verbs
