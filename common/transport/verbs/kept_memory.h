// RCUDA_VERBS_CACHE: how many MiB of pageable memory may stay registered with the adapter; 0: none.
// Programs and servers refuse what is no such number when they start; the plug-in reads it.
#pragma once

namespace rcuda::transport::verbs {

inline constexpr unsigned kKeptMiB = 1024;
inline constexpr unsigned kMostKeptMiB = 1u << 24;

}  // namespace rcuda::transport::verbs
