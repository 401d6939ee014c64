// Kronecker graphs (R-MAT), generated from a counter: edge i of a seed is always the same, on the
// host and on every device. Parameters are Graph500's: a = 0.57, b = c = 0.19.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

namespace triangles {

// An undirected edge as a sort key: the smaller vertex in the high 32 bits, the larger in the low
// 32 bits. Self-loops are kNoEdge.
using EdgeKey = uint64_t;
inline constexpr EdgeKey kNoEdge = ~EdgeKey{0};

HOST_DEVICE inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

HOST_DEVICE inline EdgeKey make_key(uint32_t u, uint32_t v) {
  if (u == v) return kNoEdge;
  const uint32_t low = u < v ? u : v;
  const uint32_t high = u < v ? v : u;
  return static_cast<uint64_t>(low) << 32 | high;
}

HOST_DEVICE inline EdgeKey kronecker_edge(uint64_t seed, uint64_t index, int scale) {
  constexpr uint32_t kA = static_cast<uint32_t>(0.57 * 4294967296.0);
  constexpr uint32_t kAb = static_cast<uint32_t>(0.76 * 4294967296.0);
  constexpr uint32_t kAbc = static_cast<uint32_t>(0.95 * 4294967296.0);
  uint32_t u = 0;
  uint32_t v = 0;
  for (int level = 0; level < scale; ++level) {
    const uint32_t dice = static_cast<uint32_t>(mix(mix(seed) ^ (index * 64 + level)) >> 32);
    u = u << 1 | (dice >= kAb);
    v = v << 1 | ((dice >= kA && dice < kAb) || dice >= kAbc);
  }
  return make_key(u, v);
}

}  // namespace triangles
