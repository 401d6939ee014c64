#include "softgpu/exec/lanes/address.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

// Bounds of the addresses of all lanes.
struct Extent {
  uint64_t low;
  uint64_t high;
  uint64_t bits;  // all addresses or-ed together: shows misalignment of any lane
  bool uniform;
  bool consecutive;  // lane l is l elements above lane 0
};

// All loops are vectorised. The two common patterns (uniform and consecutive) need no minimum and
// maximum.
SOFTGPU_INLINE Extent extent_of(const uint64_t* address, uint64_t first, uint32_t bytes) {
  uint64_t differs = 0;
  uint64_t uneven = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    differs |= address[l] ^ first;
    uneven |= address[l] ^ (address[0] + static_cast<uint64_t>(l) * bytes);
  }
  if (differs == 0) return {first, first, first, true, false};
  if (uneven == 0) {
    const uint64_t last = address[0] + static_cast<uint64_t>(kLanes - 1) * bytes;
    return {address[0], last, address[0], false, true};
  }
  // Valid addresses are below 2^63, so the cheaper signed comparison suffices; others fail the
  // range checks.
  int64_t low = static_cast<int64_t>(address[0]);
  int64_t high = low;
  uint64_t bits = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    const int64_t a = static_cast<int64_t>(address[l]);
    low = a < low ? a : low;
    high = a > high ? a : high;
    bits |= address[l];
  }
  return {static_cast<uint64_t>(low), static_cast<uint64_t>(high), bits, false, false};
}

// Resolves lane by lane: for generic addresses in several windows, for accesses to several
// allocations, and to find the faulting lane.
bool resolve_each(Lanes& x, ptx::Space space, const uint64_t* address, uint32_t bytes, bool write,
                  Addresses& out) {
  uint64_t any = 0;
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    const uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
    const std::byte* host = host_address(x, l, space, address[l], bytes, write);
    if (host == nullptr) return false;
    any = reinterpret_cast<uint64_t>(host);
    out.host[l] = any;
  }
  for (uint32_t l = 0; l < kLanes; ++l) {
    if ((x.mask & kBit[l]) == 0) out.host[l] = any;
  }
  out.uniform = false;
  out.contiguous = false;
  return true;
}

}  // namespace

void compute_addresses(const Lanes& x, const Instr& i, Slot base, int64_t offset, bool is_32_bit,
                       uint64_t* out) {
  if ((i.flags & kFrameRelative) != 0) offset += x.local_base;
  if (is_32_bit) {
    const uint32_t* a = x.at<uint32_t>(base);
    SOFTGPU_LANE_LOOP out[l] = a[l] + static_cast<uint32_t>(offset);
  } else {
    const uint64_t* a = x.at<uint64_t>(base);
    SOFTGPU_LANE_LOOP out[l] = a[l] + static_cast<uint64_t>(offset);
  }
}

bool resolve(Lanes& x, const Instr& i, uint32_t bytes, bool write, Addresses& out) {
  alignas(64) uint64_t address[kLanes];
  compute_addresses(x, i, i.a, i.imm, (i.flags & kAddress32) != 0, address);
  const uint64_t first = address[__builtin_ctz(x.mask)];
  if (x.mask != kFullMask) {
    const uint32_t mask = x.mask;
    SOFTGPU_LANE_LOOP address[l] = (mask & kBit[l]) != 0 ? address[l] : first;
  }
  const Extent extent = extent_of(address, first, bytes);
  auto space = static_cast<ptx::Space>(i.sub);
  uint64_t low = extent.low;
  uint64_t high = extent.high;
  if (space == ptx::Space::kGeneric) {
    const uint64_t window = low & kWindowMask;
    space = ptx::Space::kGlobal;
    if (high >= kSharedWindow) {
      if ((high & kWindowMask) != window) {
        return resolve_each(x, ptx::Space::kGeneric, address, bytes, write, out);
      }
      if (window == kSharedWindow) space = ptx::Space::kShared;
      if (window == kLocalWindow) space = ptx::Space::kLocal;
      if (window == kParamWindow) space = ptx::Space::kParam;
      if (space != ptx::Space::kGlobal) {
        low -= window;
        high -= window;
        SOFTGPU_LANE_LOOP address[l] -= window;
      }
    }
  }
  bool good = (extent.bits & (bytes - 1)) == 0;
  std::byte* base = nullptr;
  bool per_lane = false;
  switch (space) {
    case ptx::Space::kShared:
      good = good && low <= high && inside(high, bytes, x.shared_bytes);
      base = x.shared;
      break;
    case ptx::Space::kLocal:
      good = good && low <= high && inside(high, bytes, x.local_limit);
      base = x.local;
      per_lane = true;
      break;
    case ptx::Space::kParam:
      good = good && !write && low <= high && inside(high, bytes, x.parameter_bytes);
      base = const_cast<std::byte*>(x.parameters);
      break;
    default:
      good = good && x.memory->covers(low, high + bytes, write);
      break;
  }
  if (!good) {
    const ptx::Space each =
        static_cast<ptx::Space>(i.sub) == ptx::Space::kGeneric ? ptx::Space::kGeneric : space;
    // Report the address that the program used.
    if (each == ptx::Space::kGeneric && space != ptx::Space::kGlobal) {
      const uint64_t window = extent.low & kWindowMask;
      SOFTGPU_LANE_LOOP address[l] += window;
    }
    return resolve_each(x, each, address, bytes, write, out);
  }
  const uint64_t offset = reinterpret_cast<uint64_t>(base);
  if (per_lane) {
    const uint64_t stride = x.local_stride;
    SOFTGPU_LANE_LOOP out.host[l] = address[l] + offset + l * stride;
    if (x.mask != kFullMask) {
      const uint64_t host = out.host[__builtin_ctz(x.mask)];
      const uint32_t mask = x.mask;
      SOFTGPU_LANE_LOOP out.host[l] = (mask & kBit[l]) != 0 ? out.host[l] : host;
    }
  } else {
    SOFTGPU_LANE_LOOP out.host[l] = address[l] + offset;
  }
  out.uniform = !per_lane && extent.uniform;
  out.contiguous = !per_lane && extent.consecutive && x.mask == kFullMask;
  return true;
}

}  // namespace softgpu::exec::SOFTGPU_ISA
