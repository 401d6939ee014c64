// How much pageable memory may stay registered with the adapter between transfers.
#pragma once

#include <cstdint>

namespace rcuda::transport::verbs {

inline constexpr unsigned kKeptMiB = 1024;
inline constexpr unsigned kMaxKeptMiB = 1u << 24;

// The limit of this process, kKeptMiB at first; 0: none stays registered. Call it before the first
// verbs Link is made. Any thread.
void keep_registered(uint64_t bytes);

}  // namespace rcuda::transport::verbs
