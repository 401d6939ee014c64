// The executable form of a program: decode produces it, warps run it.
//
// A warp's registers are arrays of 32 lanes: 64 bytes for a 16-bit register, 128 for 32 bits, 256
// for 64 bits, 512 for 128 bits. A predicate is one 32-bit word with a bit per lane. An instruction
// names its operands by Slot: a bank (the frame's registers, the function's constants, the warp's
// special registers) and a byte offset. So a handler reads immediates and %tid.x like registers.
//
// Everything here is immutable after load() has returned, and shared by all warps of all grids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "softgpu/ptx/module.h"

namespace softgpu::exec {

inline constexpr uint32_t kLanes = 32;
inline constexpr uint32_t kFullMask = ~0u;

struct Lanes;
struct Instr;
struct Function;
// Executes one instruction for the lanes in Lanes::mask.
using Handler = void (*)(Lanes&, const Instr&);

enum class Bank : uint32_t { kRegisters, kConstants, kSpecial };
inline constexpr uint32_t kBanks = 3;

class Slot {
 public:
  // The frame's bit bucket: may be read and written, content meaningless.
  constexpr Slot() = default;
  constexpr Slot(Bank bank, uint32_t offset_bytes)
      : encoded_(static_cast<uint32_t>(bank) << 30 | offset_bytes) {}
  constexpr uint32_t bank() const { return encoded_ >> 30; }
  constexpr uint32_t offset_bytes() const { return encoded_ & 0x3fffffff; }
  constexpr bool operator==(const Slot& other) const { return encoded_ == other.encoded_; }

 private:
  uint32_t encoded_ = 0;
};

// The largest local memory of a thread, including calls; NVIDIA's hardware has the same limit.
inline constexpr uint32_t kMaxLocalBytes = 512 * 1024;

// The start of every frame's registers.
inline constexpr uint32_t kBucketBytes = 512;           // Slot{}: takes writes to `_`
inline constexpr uint32_t kCarryOffset = kBucketBytes;  // carry of add.cc, a bit per lane
inline constexpr uint32_t kFirstPredicate = kCarryOffset + 64;

// How the warp's loop handles an instruction. For kPlain, the loop only runs the handler.
enum class Flow : uint8_t {
  kPlain,
  kFaulting,  // the handler may record a fault
  kBranch,
  kBranchTable,
  kCall,
  kCallIndirect,
  kReturn,
  kExit,
  kBarrier,     // waits for other warps
  kArrive,      // bar.arrive: counts without waiting
  kCollective,  // waits for other lanes of the warp
  kUnsupported,
};

enum InstrFlag : uint8_t {
  kGuardNegated = 1,
  kNegateA = 2,        // a vote's predicate operand is negated
  kNegateC = 4,        // the predicate operand of setp, set, lop3 or bar.red is negated
  kFrameRelative = 8,  // the address is an offset into the frame's local area
  kAddress32 = 16,     // the address register has 32 bits
  kHasCount = 32,      // bar: a thread count is given
  kTransposed = 32,    // ldmatrix, stmatrix: with .trans
  kActiveLanes = 64,   // a collective of the active lanes, without waiting (before sm_70)
  kReference = 128,    // tex, suld, ...: the object's handle is in the variable at the address a
};

inline constexpr uint32_t kNoGuard = ~0u;

struct alignas(64) Instr {
  Handler handler = nullptr;
  Slot d, d2;                 // destinations
  Slot a, b, c, e;            // sources
  int64_t imm = 0;            // address offset; lookup table of lop3; ...
  uint32_t guard = kNoGuard;  // offset of the guarding predicate in the registers
  uint32_t target = 0;        // branch target; index of a call site, branch table or operand list
  uint32_t line = 0;          // line of the PTX text
  Flow flow = Flow::kPlain;
  uint8_t flags = 0;
  uint8_t sub = 0;    // specific to the family: space, shuffle mode, barrier action, ...
  uint8_t count = 1;  // elements of a vector access
};
static_assert(sizeof(Instr) == 64);

// Functions that the driver provides.
enum class SystemCall : uint32_t { kNone, kVprintf, kMalloc, kFree, kAssertFail, kSetConditional };

// The place of a parameter. Parameters of an entry are in the launch's parameter buffer; those of
// other functions, and the .param variables of a body, are in the frame's local area.
struct Area {
  uint32_t offset_bytes = 0;
  uint32_t size_bytes = 0;
};

// A call copies arguments from the caller's local area to the callee's, and results back.
struct CallSite {
  const Function* callee = nullptr;  // nullptr: indirect, or a system call
  SystemCall system_call = SystemCall::kNone;
  std::vector<Area> arguments;
  std::vector<Area> returns;
};

// Memory aligned to 64 bytes, because handlers read registers and constants as vectors.
struct AlignedBytes {
  AlignedBytes() = default;
  explicit AlignedBytes(size_t bytes)
      : data(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}))) {}
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> data;
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::vector<Instr> code;  // ends with a return
  uint32_t register_bytes = 0;
  uint32_t register_count = 0;  // estimate, in 32-bit registers; for CU_FUNC_ATTRIBUTE_NUM_REGS
  AlignedBytes constants;
  uint32_t local_bytes = 0;         // size of the frame's local area
  uint32_t local_align_bytes = 16;  // of the local area; at least the ABI's alignment of frames
  uint32_t stack_bytes = 0;         // stack that a call of the function uses
  uint32_t shared_bytes = 0;        // static shared variables of the function itself
  uint32_t parameter_bytes = 0;     // entry: size of the launch's parameter buffer
  std::vector<Area> parameters;
  std::vector<Area> returns;
  std::vector<Slot> lists;  // operands of vector accesses
  std::vector<CallSite> calls;
  std::vector<std::vector<uint32_t>> branch_tables;
  std::vector<const Function*> callees;
  bool calls_indirectly = false;
  std::vector<uint32_t> takes_address_of;  // indices of functions in the program
  std::vector<uint32_t> shared_symbols;    // indices into Linker::shared_variables()
  bool names_dynamic_shared = false;
  std::string unsupported;                     // its first unsupported form, with the line
  std::vector<std::string> unsupported_names;  // all unsupported forms, each once
};

// Generic addresses. Global and constant memory have their host addresses. Other memory, and
// functions, have windows at addresses that no host mapping can have.
inline constexpr uint64_t kSharedWindow = 0x0001'0000'0000'0000;
inline constexpr uint64_t kLocalWindow = 0x0001'0001'0000'0000;
inline constexpr uint64_t kParamWindow = 0x0001'0002'0000'0000;
inline constexpr uint64_t kFunctionWindow = 0x0001'0003'0000'0000;  // 16 bytes per function
inline constexpr uint64_t kWindowMask = 0xffff'ffff'0000'0000;

// The window of a state space; 0 for global and constant memory. Parameters of an entry are in the
// launch's buffer, those of other functions in local memory.
constexpr uint64_t window_of(ptx::Space space, bool parameters_are_local) {
  switch (space) {
    case ptx::Space::kShared:
      return kSharedWindow;
    case ptx::Space::kLocal:
      return kLocalWindow;
    case ptx::Space::kParam:
      return parameters_are_local ? kLocalWindow : kParamWindow;
    default:
      return 0;
  }
}

// %tid and similar: one register per name in the special bank. Block fills them before a warp runs.
enum SpecialRegister : uint32_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneId,
  kWarpId,
  kNumWarps,
  kSmId,
  kNumSms,
  kLaneMaskEq,
  kLaneMaskLe,
  kLaneMaskLt,
  kLaneMaskGe,
  kLaneMaskGt,
  kDynamicSharedSize,
  kTotalSharedSize,
  kEnvReg1,
  kEnvReg2,
  kZero,  // for all registers that are always 0 in softgpu; kOne: always 1
  kOne,
  kSpecial32Count,
  kGridId = kSpecial32Count,  // the 64-bit ones start here
  kSpecialCount,
};
constexpr uint32_t special_offset(uint32_t which) {
  return which < kSpecial32Count ? which * 128
                                 : kSpecial32Count * 128 + (which - kSpecial32Count) * 256;
}
inline constexpr uint32_t kSpecialBytes = special_offset(kSpecialCount);

}  // namespace softgpu::exec
