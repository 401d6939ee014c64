// mbarrier: barriers that are 64-bit objects in shared memory.
//
// Only the threads of one block reach them, and these run on one worker thread, so plain reads and
// writes suffice. The layout, on which no program may depend: pending arrivals in bits 0-19,
// arrivals expected per phase in bits 20-39, pending transactions (biased) in bits 40-60, and the
// phase in bits 61-63. A phase ends when both pending counts are zero.
#include <algorithm>
#include <bit>
#include <cstring>

#include "softgpu/exec/lanes.h"
#include "softgpu/exec/memory.h"
#include "softgpu/exec/system.h"

namespace softgpu::exec {
namespace {

constexpr uint32_t kMaxCount = (1u << 20) - 1;

struct BarrierObject {
  uint32_t pending;
  uint32_t expected;
  int32_t transactions;
  uint32_t phase;

  static BarrierObject unpack(uint64_t bits) {
    return {static_cast<uint32_t>(bits & kMaxCount), static_cast<uint32_t>(bits >> 20 & kMaxCount),
            static_cast<int32_t>(bits >> 40 & 0x1fffff) - (1 << 20),
            static_cast<uint32_t>(bits >> 61)};
  }
  uint64_t pack() const {
    return (pending & kMaxCount) | uint64_t{expected & kMaxCount} << 20 |
           uint64_t{static_cast<uint32_t>(transactions + (1 << 20)) & 0x1fffff} << 40 |
           uint64_t{phase & 7} << 61;
  }
  void finish_phase() {
    if (pending != 0 || transactions != 0) return;
    pending = expected;
    phase = (phase + 1) & 7;
  }
};

// Calls f(lane, object, bits) for each active lane and stores the object back. `bits`: the packed
// object before the call.
template <class F>
void update_each(Lanes& x, const Instr& i, F f) {
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    const auto l = static_cast<uint32_t>(std::countr_zero(rest));
    uint64_t address =
        (i.flags & kAddress32) != 0 ? x.at<uint32_t>(i.a)[l] : x.at<uint64_t>(i.a)[l];
    address += static_cast<uint64_t>(i.imm);
    if ((i.flags & kAddress32) != 0) address &= 0xffffffff;
    std::byte* host = host_address(x, l, static_cast<ptx::Space>(i.sub), address, 8, true);
    if (host == nullptr) return;
    if (host < x.shared || host >= x.shared + x.shared_bytes) {
      return x.fault_at(l, CUDA_ERROR_INVALID_ADDRESS_SPACE, address,
                        "mbarrier object outside of the block's shared memory");
    }
    uint64_t bits;
    std::memcpy(&bits, host, sizeof bits);
    BarrierObject object = BarrierObject::unpack(bits);
    f(l, object, bits);
    bits = object.pack();
    std::memcpy(host, &bits, sizeof bits);
  }
}

uint32_t count_of(Lanes& x, const Instr& i, uint32_t lane) { return x.at<uint32_t>(i.b)[lane]; }

void init(Lanes& x, const Instr& i) {
  update_each(x, i, [&](uint32_t l, BarrierObject& object, uint64_t) {
    const uint32_t count = count_of(x, i, l) & kMaxCount;
    object = {count, count, 0, 0};
  });
}
void invalidate(Lanes& x, const Instr& i) {
  update_each(x, i, [&](uint32_t, BarrierObject& object, uint64_t) { object = {0, 0, 0, 0}; });
}
template <bool kDrop, bool kExpect>
void arrive(Lanes& x, const Instr& i) {
  uint64_t* state = x.at<uint64_t>(i.d);
  update_each(x, i, [&](uint32_t l, BarrierObject& object, uint64_t before) {
    uint32_t count = 1;
    if (kExpect) {
      object.transactions += static_cast<int32_t>(count_of(x, i, l));
    } else {
      count = count_of(x, i, l);
    }
    if (kDrop) object.expected -= std::min(count, object.expected);
    object.pending -= std::min(count, object.pending);
    object.finish_phase();
    state[l] = before;
  });
}
template <int kSign>
void transactions(Lanes& x, const Instr& i) {
  update_each(x, i, [&](uint32_t l, BarrierObject& object, uint64_t) {
    object.transactions += kSign * static_cast<int32_t>(count_of(x, i, l));
    if (kSign < 0) object.finish_phase();
  });
}
template <bool kParity>
void wait(Lanes& x, const Instr& i) {
  uint32_t complete = 0;
  update_each(x, i, [&](uint32_t l, BarrierObject& object, uint64_t) {
    bool done;
    if (kParity) {  // a phase has ended if the current phase has the other parity
      done = (object.phase & 1) != (x.at<uint32_t>(i.b)[l] & 1);
    } else {
      done = object.phase != BarrierObject::unpack(x.at<uint64_t>(i.b)[l]).phase;
    }
    complete |= static_cast<uint32_t>(done) << l;
  });
  x.set_predicate(i.d, complete);
  if ((complete & x.mask) != x.mask) x.fuel -= kSleepCost;
}
void pending_count(Lanes& x, const Instr& i) {
  const uint64_t* state = x.at<uint64_t>(i.b);
  uint32_t* d = x.at<uint32_t>(i.d);
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    d[l] = BarrierObject::unpack(state[l]).pending;
  }
}
// cp.async.mbarrier.arrive: the thread's copies are already done, so the arrival happens now.
// Without noinc (i.count is 0), the instruction also raises the pending count by 1 before the
// arrival lowers it by 1, so nothing changes.
void cp_async_arrive(Lanes& x, const Instr& i) {
  update_each(x, i, [&](uint32_t, BarrierObject& object, uint64_t) {
    if (i.count == 0) return;
    object.pending -= std::min(1u, object.pending);
    object.finish_phase();
  });
}

// cp.async.bulk: copies immediately, 16 bytes at a time. Then subtracts the copied bytes from the
// pending transactions of the barrier, if the instruction names one.
void bulk_copy(Lanes& x, const Instr& i) {
  BulkCopy how;
  std::memcpy(&how, &i.sub, sizeof how);
  const auto address_of = [&](Slot slot, int bit, int32_t offset, uint32_t lane) {
    if ((how.narrow >> bit & 1) != 0) {
      return uint64_t{x.at<uint32_t>(slot)[lane] + static_cast<uint32_t>(offset)};
    }
    return x.at<uint64_t>(slot)[lane] + static_cast<uint64_t>(int64_t{offset});
  };
  const ptx::Space to_space = how.to_global ? ptx::Space::kGlobal : ptx::Space::kShared;
  const ptx::Space from_space = how.from_global ? ptx::Space::kGlobal : ptx::Space::kShared;
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    const auto l = static_cast<uint32_t>(std::countr_zero(rest));
    const uint64_t to = address_of(i.a, 0, static_cast<int32_t>(i.imm), l);
    const uint64_t from = address_of(i.b, 1, static_cast<int32_t>(i.imm >> 32), l);
    const uint32_t bytes = x.at<uint32_t>(i.c)[l];
    if (bytes % 16 != 0) {
      return x.fault_at(l, CUDA_ERROR_MISALIGNED_ADDRESS, bytes,
                        "the size of a bulk copy is not a multiple of 16 bytes:");
    }
    for (uint32_t done = 0; done < bytes; done += 16) {
      std::byte* target = host_address(x, l, to_space, to + done, 16, true);
      if (target == nullptr) return;
      const std::byte* source = host_address(x, l, from_space, from + done, 16, false);
      if (source == nullptr) return;
      std::memcpy(target, source, 16);
    }
    if (!how.has_barrier) continue;
    std::byte* host = host_address(x, l, ptx::Space::kShared,
                                   address_of(i.e, 2, static_cast<int32_t>(i.target), l), 8, true);
    if (host == nullptr) return;
    uint64_t bits;
    std::memcpy(&bits, host, sizeof bits);
    BarrierObject object = BarrierObject::unpack(bits);
    object.transactions -= static_cast<int32_t>(bytes);
    object.finish_phase();
    bits = object.pack();
    std::memcpy(host, &bits, sizeof bits);
  }
}

}  // namespace

Handler bulk_copy_handler() { return bulk_copy; }

Handler barrier_object_handler(BarrierOp op, bool parity, bool with_expect) {
  switch (op) {
    case BarrierOp::kInit:
      return init;
    case BarrierOp::kInval:
      return invalidate;
    case BarrierOp::kArrive:
      return with_expect ? arrive<false, true> : arrive<false, false>;
    case BarrierOp::kArriveDrop:
      return with_expect ? arrive<true, true> : arrive<true, false>;
    case BarrierOp::kTestWait:
    case BarrierOp::kTryWait:
      return parity ? wait<true> : wait<false>;
    case BarrierOp::kPending:
      return pending_count;
    case BarrierOp::kExpectTx:
      return transactions<1>;
    case BarrierOp::kCompleteTx:
      return transactions<-1>;
    case BarrierOp::kCpAsyncArrive:
      return cp_async_arrive;
  }
  return nullptr;
}

}  // namespace softgpu::exec
