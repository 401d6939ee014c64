// The executable form of a program: what decode produces and warps run.
//
// A warp's registers are arrays of 32 lanes: 64 bytes for a 16-bit register, 128 for 32 bits, 256
// for 64 bits, 512 for 128 bits; a predicate is one 32-bit word, a bit a lane. An instruction names
// its operands by Slot: a bank (the frame's registers, the function's constants, the warp's special
// registers) and a byte offset, so a handler reads immediates and %tid.x exactly as it reads
// registers.
//
// Everything here is immutable once load() has returned and shared by all warps of all grids.
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
// Carries out one instruction for the lanes in Lanes::mask.
using Handler = void (*)(Lanes&, const Instr&);

enum class Bank : uint32_t { kRegisters, kConstants, kSpecial };
inline constexpr uint32_t kBanks = 3;

class Slot {
 public:
  constexpr Slot() = default;  // the frame's bit bucket: readable, writable, never meaningful
  constexpr Slot(Bank bank, uint32_t offset_bytes)
      : encoded_(static_cast<uint32_t>(bank) << 30 | offset_bytes) {}
  constexpr uint32_t bank() const { return encoded_ >> 30; }
  constexpr uint32_t offset_bytes() const { return encoded_ & 0x3fffffff; }
  constexpr bool operator==(const Slot& other) const { return encoded_ == other.encoded_; }

 private:
  uint32_t encoded_ = 0;
};

// What a thread may have of local memory, calls included; what NVIDIA's hardware has, too.
inline constexpr uint32_t kMaxLocalBytes = 512 * 1024;

// The start of every frame's registers.
inline constexpr uint32_t kBucketBytes = 512;           // Slot{}: where `_` is written to
inline constexpr uint32_t kCarryOffset = kBucketBytes;  // add.cc's carry, a bit a lane
inline constexpr uint32_t kFirstPredicate = kCarryOffset + 64;

// How the warp's loop treats an instruction. Plain ones only run their handler.
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
  kArrive,      // bar.arrive: counts, does not wait
  kCollective,  // waits for other lanes of the warp
  kUnsupported,
};

enum InstrFlag : uint8_t {
  kGuardNegated = 1,
  kNegateA = 2,  // the predicate operand a (votes) or c (setp) is negated
  kNegateC = 4,
  kFrameRelative = 8,  // the address is an offset into the frame's local area
  kAddress32 = 16,     // the address register has 32 bits
  kHasCount = 32,      // bar: a thread count is given
  kActiveLanes = 64,   // a collective of whoever is here (before sm_70): it waits for nobody
};

inline constexpr uint32_t kNoGuard = ~0u;

struct alignas(64) Instr {
  Handler handler = nullptr;
  Slot d, d2;                 // destinations
  Slot a, b, c, e;            // sources
  int64_t imm = 0;            // address offset; lookup table of lop3; ...
  uint32_t guard = kNoGuard;  // offset of the guarding predicate in the registers
  uint32_t target = 0;        // branch target; index of a call site, branch table or operand list
  uint32_t line = 0;          // in the PTX text
  Flow flow = Flow::kPlain;
  uint8_t flags = 0;
  uint8_t sub = 0;    // the family's own: space, shuffle mode, barrier action, ...
  uint8_t count = 1;  // elements of a vector access
};
static_assert(sizeof(Instr) == 64);

// Functions that the driver, not the program, provides.
enum class SystemCall : uint32_t { kNone, kVprintf, kMalloc, kFree, kAssertFail };

// Where a parameter lies: of an entry in the launch's parameter buffer, else in the local area of
// the frame. A function's formal parameters and a body's .param variables live there too.
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

// Constants are read as vectors of a whole register.
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
  uint32_t register_count = 0;  // as the PTX declares them; for CU_FUNC_ATTRIBUTE_NUM_REGS
  AlignedBytes constants;
  uint32_t local_bytes = 0;         // the frame's local area
  uint32_t local_align_bytes = 16;  // of its start; what the ABI gives a frame, or more
  uint32_t stack_bytes = 0;         // what a call of it costs of the stack
  uint32_t shared_bytes = 0;        // its own static shared variables
  uint32_t parameter_bytes = 0;     // entry: of the launch's parameter buffer
  std::vector<Area> parameters;
  std::vector<Area> returns;
  std::vector<Slot> lists;  // operands of vector accesses
  std::vector<CallSite> calls;
  std::vector<std::vector<uint32_t>> branch_tables;
  std::vector<const Function*> callees;
  bool calls_indirectly = false;
  std::vector<uint32_t> takes_address_of;  // functions, by index in the program
  std::vector<uint32_t> shared_symbols;    // Linker::shared_variables() that it names
  bool names_dynamic_shared = false;
  std::string unsupported;                     // its first unsupported form, with the line
  std::vector<std::string> unsupported_names;  // all of them, each once
};

// Generic addresses. Global ones are host addresses; the windows lie where no host mapping can be.
inline constexpr uint64_t kSharedWindow = 0x0001'0000'0000'0000;
inline constexpr uint64_t kLocalWindow = 0x0001'0001'0000'0000;
inline constexpr uint64_t kParamWindow = 0x0001'0002'0000'0000;
inline constexpr uint64_t kFunctionWindow = 0x0001'0003'0000'0000;  // 16 bytes a function
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

// %tid and friends: one register a name in the special bank, filled when a warp starts.
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
  kZero,  // registers that have one fixed value here
  kOne,
  kSpecial32Count,
  kGridId = kSpecial32Count,  // 64-bit ones from here
  kSpecialCount,
};
constexpr uint32_t special_offset(uint32_t which) {
  return which < kSpecial32Count ? which * 128
                                 : kSpecial32Count * 128 + (which - kSpecial32Count) * 256;
}
inline constexpr uint32_t kSpecialBytes = special_offset(kSpecialCount);

}  // namespace softgpu::exec
