// One supported shape of an instruction: opcode family, types, rounding and options. Decode reads
// it from the modifiers and finds the handler by it.
//
// A Form exists only while an instruction is decoded. The data that the handler needs at run time
// are in the Instr (code.h). Plain data, any thread.
#pragma once

#include <cstdint>

#include "softgpu/exec/code.h"
#include "softgpu/ptx/module.h"

namespace softgpu::exec {

enum class Op : uint8_t {
  kNone,
  // integer.cpp
  kAdd,
  kSub,
  kMulLo,
  kMulHi,
  kMulWide,
  kMadLo,
  kMadHi,
  kMadWide,
  kMul24,
  kMad24,
  kDiv,
  kRem,
  kAbs,
  kNeg,
  kMin,
  kMax,
  kSad,
  kDp4a,
  kDp2a,
  kAbsDiff2,
  kAbsDiff4,
  // bits.cpp
  kAnd,
  kOr,
  kXor,
  kNot,
  kCnot,
  kShl,
  kShr,
  kShf,
  kPopc,
  kClz,
  kBfind,
  kBrev,
  kBfe,
  kBfi,
  kBmsk,
  kSzext,
  kPrmt,
  kLop3,
  kFns,
  kSelp,
  kSlct,
  kMov,
  kPack,
  kUnpack,
  // compare.cpp
  kSetp,
  kSet,
  // float.cpp, half.cpp
  kMul,
  kFma,
  kCopysign,
  kTestp,
  kSqrt,
  kRcp,
  kRsqrt,
  kSin,
  kCos,
  kEx2,
  kLg2,
  kTanh,
  // convert.cpp
  kCvt,
  kCvtPack,
  kCvtPair,
  // memory.cpp
  kLd,
  kSt,
  kLdMatrix,
  kStMatrix,
  kCpAsync,
  kCvta,
  kCvtaTo,
  kIsspacep,
  kLocalAddress,
  // atomic.cpp
  kAtom,
  kRed,
  kMbarrier,
  // texture.cpp
  kTexture,  // tex and tld4
  kTextureQuery,
  kSurfaceLoad,
  kSurfaceStore,
  kSurfaceQuery,
  // system.cpp
  kClock,
  kClock64,
  kClockHi,
  kGlobalTimer,
  kGlobalTimerLo,
  kGlobalTimerHi,
  kNanosleep,
  kFence,
  kNop,
  kTrap,
  kActiveMask,
  // Executed by the warp itself: see Flow.
  kBra,
  kBrx,
  kCall,
  kRet,
  kExit,
  kBarSync,
  kBarArrive,
  kBarRed,
  kBarWarp,
  kShfl,
  kVote,
  kMatch,
  kRedux,
  kElect,
};

enum class Rounding : uint8_t { kNone, kNearest, kZero, kDown, kUp, kNearestAway };

enum class Compare : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan,
};

enum class Combine : uint8_t { kNone, kAnd, kOr, kXor };

enum class AtomicOp : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExch, kCas, kInc, kDec };

enum class BarrierOp : uint8_t {
  kInit,
  kInval,
  kArrive,
  kArriveDrop,
  kTestWait,
  kTryWait,
  kPending,
  kExpectTx,
  kCompleteTx,
  kCpAsyncArrive
};

enum class PermuteMode : uint8_t { kIndex, kF4e, kB4e, kRc8, kEcl, kEcr, kRc16 };

struct Form {
  Op op = Op::kNone;
  ptx::Type type = ptx::Type::kNone;   // the instruction's first type: with two, the destination's
  ptx::Type type2 = ptx::Type::kNone;  // the source's type, if the instruction has two types
  ptx::Space space = ptx::Space::kGeneric;
  Rounding rounding = Rounding::kNone;
  bool round_to_integer = false;  // rni, rzi, rmi, rpi
  bool ftz = false;
  bool saturate = false;  // .sat, .satfinite
  bool relu = false;
  bool nan = false;  // min.NaN
  bool xorsign_abs = false;
  bool high = false;          // mul24.hi
  bool clamp = false;         // shf.clamp, bmsk.clamp, szext.clamp
  bool left = false;          // shf.l
  bool shift_amount = false;  // bfind.shiftamt
  bool accumulate = false;    // vabsdiff4.add: one sum instead of four bytes
  bool carry_in = false;
  bool carry_out = false;
  bool approximate = false;
  bool full_range = false;  // div.full
  bool coarse = false;      // rcp.approx.ftz.f64: the result's low word is 0
  Compare compare = Compare::kEq;
  Combine combine = Combine::kNone;
  AtomicOp atomic = AtomicOp::kAdd;
  BarrierOp barrier = BarrierOp::kInit;
  PermuteMode permute = PermuteMode::kIndex;
  bool strong = false;   // volatile, relaxed, acquire, release: not weak
  uint8_t elements = 1;  // .v2, .v4, .v8
  // Register widths of operands whose size may differ from the type's (ld, st, cvt).
  uint8_t d_bytes = 0;
  uint8_t a_bytes = 0;
};

// Data for a handler that serves many conversions, passed in Instr::imm.
struct Conversion {
  ptx::Type to;
  ptx::Type from;
  uint8_t to_bytes;  // of the destination register; may be wider than the type
  uint8_t from_bytes;
  Rounding rounding;
  bool round_to_integer : 1;
  bool ftz : 1;
  bool saturate : 1;
  bool relu : 1;
  uint16_t unused;
};
static_assert(sizeof(Conversion) == sizeof(int64_t));

// The handlers compiled for one instruction set.
struct InstructionSet {
  Handler (*find)(const Form& form);          // nullptr if the set lacks the form
  uintptr_t (*comparison)(const Form& form);  // setp and set: goes into Instr::imm; 0: none
};
// The best instruction set that this processor supports.
const InstructionSet& instruction_set();

}  // namespace softgpu::exec
