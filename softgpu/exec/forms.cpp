#include "softgpu/exec/forms.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

namespace softgpu::exec {
namespace {

#define INT16_64 "u16|u32|u64|s16|s32|s64"
#define ROUND "rn|rz|rm|rp"
#define ANY16_64 "b16|b32|b64|" INT16_64 "|f32|f64"
#define INT_COMPARE "eq|ne|lt|le|gt|ge|lo|ls|hi|hs"
#define FLOAT_COMPARE "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
#define BOOL "and|or|xor"
#define SCOPE "cta|cluster|gpu|sys"
#define SHARED "shared|shared::cta|shared::cluster"
#define CVT_TYPE "u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f32|f64"
#define MEMORY_TYPE "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"
#define EVICT "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
#define PREFETCH "L2::64B|L2::128B|L2::256B"
#define L2_EVICT "L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged"
#define LD_SPACE "global|const|local|param|param::entry|param::func|" SHARED
#define SURFACE_SHAPE "1d|2d|3d|a1d|a2d"
#define TEXTURE_SHAPE SURFACE_SHAPE "|cube|acube"
#define ST_SPACE "global|local|param|param::func|" SHARED

constexpr Pattern kPatterns[] = {
    // Integer arithmetic.
    {"add", INT16_64 "|u16x2|s16x2", "d a a", Op::kAdd},
    {"add", "sat s32", "d a a", Op::kAdd},
    {"add", "cc u32|s32|u64|s64", "d a a", Op::kAdd},
    {"addc", "[cc] u32|s32|u64|s64", "d a a", Op::kAdd},
    {"sub", INT16_64, "d a a", Op::kSub},
    {"sub", "sat s32", "d a a", Op::kSub},
    {"sub", "cc u32|s32|u64|s64", "d a a", Op::kSub},
    {"subc", "[cc] u32|s32|u64|s64", "d a a", Op::kSub},
    {"mul", "lo " INT16_64, "d a a", Op::kMulLo},
    {"mul", "hi " INT16_64, "d a a", Op::kMulHi},
    {"mul", "wide u16|s16|u32|s32", "dw a a", Op::kMulWide},
    {"mad", "lo " INT16_64, "d a a a", Op::kMadLo},
    {"mad", "hi " INT16_64, "d a a a", Op::kMadHi},
    {"mad", "hi sat s32", "d a a a", Op::kMadHi},
    {"mad", "wide u16|s16|u32|s32", "dw a a aw", Op::kMadWide},
    {"mad", "lo cc u32|s32|u64|s64", "d a a a", Op::kMadLo},
    {"mad", "hi cc u32|s32|u64|s64", "d a a a", Op::kMadHi},
    {"madc", "lo [cc] u32|s32|u64|s64", "d a a a", Op::kMadLo},
    {"madc", "hi [cc] u32|s32|u64|s64", "d a a a", Op::kMadHi},
    {"mul24", "lo|hi u32|s32", "d a a", Op::kMul24},
    {"mad24", "lo|hi u32|s32", "d a a a", Op::kMad24},
    {"mad24", "hi sat s32", "d a a a", Op::kMad24},
    {"sad", INT16_64, "d a a a", Op::kSad},
    {"div", INT16_64, "d a a", Op::kDiv},
    {"rem", INT16_64, "d a a", Op::kRem},
    {"abs", "s16|s32|s64", "d a", Op::kAbs},
    {"neg", "s16|s32|s64", "d a", Op::kNeg},
    {"min", INT16_64 "|u16x2|s16x2", "d a a", Op::kMin},
    {"min", "~relu s32|s16x2", "d a a", Op::kMin},
    {"max", INT16_64 "|u16x2|s16x2", "d a a", Op::kMax},
    {"max", "~relu s32|s16x2", "d a a", Op::kMax},
    {"vabsdiff2", "u32 u32 u32 [add]", "d a a a", Op::kAbsDiff2},
    {"vabsdiff4", "u32 u32 u32 [add]", "d a a a", Op::kAbsDiff4},
    {"dp4a", "u32|s32 u32|s32", "d32 a32 a32 a32", Op::kDp4a},
    {"dp2a", "lo|hi u32|s32 u32|s32", "d32 a32 a32 a32", Op::kDp2a},

    // Bits.
    {"and", "pred|b16|b32|b64", "d a a", Op::kAnd},
    {"or", "pred|b16|b32|b64", "d a a", Op::kOr},
    {"xor", "pred|b16|b32|b64", "d a a", Op::kXor},
    {"not", "pred|b16|b32|b64", "d a", Op::kNot},
    {"cnot", "b16|b32|b64", "d a", Op::kCnot},
    {"shl", "b16|b32|b64", "d a a32", Op::kShl},
    {"shr", "b16|b32|b64|" INT16_64, "d a a32", Op::kShr},
    {"shf", "l|r clamp|wrap b32", "d a a a32", Op::kShf},
    {"popc", "b32|b64", "d32 a", Op::kPopc},
    {"clz", "b32|b64", "d32 a", Op::kClz},
    {"bfind", "[shiftamt] u32|u64|s32|s64", "d32 a", Op::kBfind},
    {"brev", "b32|b64", "d a", Op::kBrev},
    {"bfe", "u32|u64|s32|s64", "d a a32 a32", Op::kBfe},
    {"bfi", "b32|b64", "d a a a32 a32", Op::kBfi},
    {"bmsk", "clamp|wrap b32", "d a a", Op::kBmsk},
    {"szext", "clamp|wrap u32|s32", "d a a32", Op::kSzext},
    {"prmt", "b32 [f4e|b4e|rc8|ecl|ecr|rc16]", "d a a a", Op::kPrmt},
    {"lop3", "b32", "d a a a i", Op::kLop3},
    {"lop3", "and|or b32", "d|p a a a i n!", Op::kLop3},
    {"fns", "b32", "d a a32 a32", Op::kFns},
    {"selp", ANY16_64, "d a a n", Op::kSelp},
    {"slct", ANY16_64 " s32", "d a a a2", Op::kSlct},
    {"slct", "[ftz] " ANY16_64 " f32", "d a a a2", Op::kSlct},
    {"mov", "pred|b128|" ANY16_64, "d a", Op::kMov},

    // Comparisons.
    {"setp", INT_COMPARE " b16|b32|b64|" INT16_64, "p| a a", Op::kSetp},
    {"setp", INT_COMPARE " " BOOL " b16|b32|b64|" INT16_64, "p| a a n!", Op::kSetp},
    {"setp", FLOAT_COMPARE " [ftz] f32|f16|f16x2", "p| a a", Op::kSetp},
    {"setp", FLOAT_COMPARE " " BOOL " [ftz] f32|f16|f16x2", "p| a a n!", Op::kSetp},
    {"setp", FLOAT_COMPARE " f64|bf16|bf16x2", "p| a a", Op::kSetp},
    {"setp", FLOAT_COMPARE " " BOOL " f64|bf16|bf16x2", "p| a a n!", Op::kSetp},
    {"set", INT_COMPARE " u32|s32|f32 b16|b32|b64|" INT16_64, "d a2 a2", Op::kSet},
    {"set", INT_COMPARE " " BOOL " u32|s32|f32 b16|b32|b64|" INT16_64, "d a2 a2 n!", Op::kSet},
    {"set", FLOAT_COMPARE " [ftz] u32|s32|f32 f32|f64", "d a2 a2", Op::kSet},
    {"set", FLOAT_COMPARE " " BOOL " [ftz] u32|s32|f32 f32|f64", "d a2 a2 n!", Op::kSet},
    {"set", FLOAT_COMPARE " [ftz] f16|u16|s16|u32|s32 f16", "d a2 a2", Op::kSet},
    {"set", FLOAT_COMPARE " " BOOL " [ftz] f16|u16|s16|u32|s32 f16", "d a2 a2 n!", Op::kSet},
    {"set", FLOAT_COMPARE " bf16|u16|s16|u32|s32 bf16", "d a2 a2", Op::kSet},
    {"set", FLOAT_COMPARE " " BOOL " bf16|u16|s16|u32|s32 bf16", "d a2 a2 n!", Op::kSet},
    {"set", FLOAT_COMPARE " [ftz] f16x2|u32|s32 f16x2", "d a2 a2", Op::kSet},
    {"set", FLOAT_COMPARE " " BOOL " [ftz] f16x2|u32|s32 f16x2", "d a2 a2 n!", Op::kSet},
    {"set", FLOAT_COMPARE " bf16x2|u32|s32 bf16x2", "d a2 a2", Op::kSet},
    {"set", FLOAT_COMPARE " " BOOL " bf16x2|u32|s32 bf16x2", "d a2 a2 n!", Op::kSet},

    // Floating point.
    {"add", "[" ROUND "] [ftz] [sat] f32", "d a a", Op::kAdd},
    {"add", "[" ROUND "] f64", "d a a", Op::kAdd},
    {"add", "[rn] [ftz] [sat] f16|f16x2", "d a a", Op::kAdd},
    {"add", "[rn] bf16|bf16x2", "d a a", Op::kAdd},
    {"sub", "[" ROUND "] [ftz] [sat] f32", "d a a", Op::kSub},
    {"sub", "[" ROUND "] f64", "d a a", Op::kSub},
    {"sub", "[rn] [ftz] [sat] f16|f16x2", "d a a", Op::kSub},
    {"sub", "[rn] bf16|bf16x2", "d a a", Op::kSub},
    {"mul", "[" ROUND "] [ftz] [sat] f32", "d a a", Op::kMul},
    {"mul", "[" ROUND "] f64", "d a a", Op::kMul},
    {"mul", "[rn] [ftz] [sat] f16|f16x2", "d a a", Op::kMul},
    {"mul", "[rn] bf16|bf16x2", "d a a", Op::kMul},
    {"fma", ROUND " [ftz] [sat] f32", "d a a a", Op::kFma},
    {"fma", ROUND " f64", "d a a a", Op::kFma},
    {"fma", "rn [ftz] [sat|relu] f16|f16x2", "d a a a", Op::kFma},
    {"fma", "rn [relu] bf16|bf16x2", "d a a a", Op::kFma},
    {"mad", "[" ROUND "] [ftz] [sat] f32", "d a a a", Op::kFma},
    {"mad", ROUND " f64", "d a a a", Op::kFma},
    {"div", ROUND " [ftz] f32", "d a a", Op::kDiv},
    {"div", ROUND " f64", "d a a", Op::kDiv},
    {"div", "approx|full [ftz] f32", "d a a", Op::kDiv},
    {"rcp", ROUND " [ftz] f32", "d a", Op::kRcp},
    {"rcp", ROUND " f64", "d a", Op::kRcp},
    {"rcp", "approx [ftz] f32", "d a", Op::kRcp},
    {"rcp", "approx ftz f64", "d a", Op::kRcp},
    {"sqrt", ROUND " [ftz] f32", "d a", Op::kSqrt},
    {"sqrt", ROUND " f64", "d a", Op::kSqrt},
    {"sqrt", "approx [ftz] f32", "d a", Op::kSqrt},
    {"rsqrt", "approx [ftz] f32|f64", "d a", Op::kRsqrt},
    {"sin", "approx [ftz] f32", "d a", Op::kSin},
    {"cos", "approx [ftz] f32", "d a", Op::kCos},
    {"lg2", "approx [ftz] f32", "d a", Op::kLg2},
    {"ex2", "approx [ftz] f32", "d a", Op::kEx2},
    {"ex2", "approx f16|f16x2", "d a", Op::kEx2},
    {"ex2", "approx ftz bf16|bf16x2", "d a", Op::kEx2},
    {"tanh", "approx f32|f16|f16x2|bf16|bf16x2", "d a", Op::kTanh},
    {"min", "[ftz] [NaN] f32|f16|f16x2", "d a a", Op::kMin},
    {"min", "[ftz] [NaN] xorsign abs f32|f16|f16x2", "d a a", Op::kMin},
    {"min", "[ftz] [NaN] f32", "d a a a", Op::kMin},
    {"min", "[NaN] bf16|bf16x2", "d a a", Op::kMin},
    {"min", "[NaN] xorsign abs bf16|bf16x2", "d a a", Op::kMin},
    {"min", "f64", "d a a", Op::kMin},
    {"max", "[ftz] [NaN] f32|f16|f16x2", "d a a", Op::kMax},
    {"max", "[ftz] [NaN] xorsign abs f32|f16|f16x2", "d a a", Op::kMax},
    {"max", "[ftz] [NaN] f32", "d a a a", Op::kMax},
    {"max", "[NaN] bf16|bf16x2", "d a a", Op::kMax},
    {"max", "[NaN] xorsign abs bf16|bf16x2", "d a a", Op::kMax},
    {"max", "f64", "d a a", Op::kMax},
    {"abs", "[ftz] f32|f16|f16x2", "d a", Op::kAbs},
    {"abs", "f64|bf16|bf16x2", "d a", Op::kAbs},
    {"neg", "[ftz] f32|f16|f16x2", "d a", Op::kNeg},
    {"neg", "f64|bf16|bf16x2", "d a", Op::kNeg},
    {"copysign", "f32|f64", "d a a", Op::kCopysign},
    {"testp", "finite|infinite|number|notanumber|normal|subnormal f32|f64", "p a", Op::kTestp},

    // Conversions. decode checks whether the rounding fits the types.
    {"cvt", "[" ROUND "|rna|rni|rzi|rmi|rpi] [ftz] [sat] " CVT_TYPE " " CVT_TYPE, "dx ax",
     Op::kCvt},
    {"cvt", "rn|rz relu f16|bf16 f32", "dx ax", Op::kCvt},
    {"cvt", "rna tf32 f32", "d a2", Op::kCvt},
    {"cvt", "rn|rz [relu] tf32 f32", "d a2", Op::kCvt},
    {"cvt", "rn|rz [relu] f16x2|bf16x2 f32", "d a2 a2", Op::kCvtPair},
    {"cvt", "rn|rz [relu] satfinite f16x2|bf16x2 f32", "d a2 a2", Op::kCvtPair},
    {"cvt", "rn satfinite [relu] e4m3x2|e5m2x2 f32", "d a2 a2", Op::kCvtPair},
    {"cvt", "rn satfinite [relu] e4m3x2|e5m2x2 f16x2", "d a2", Op::kCvtPair},
    {"cvt", "rn [relu] f16x2 e4m3x2|e5m2x2", "d a2", Op::kCvtPair},
    {"cvt", "pack sat u16|s16 s32", "d32 a2 a2", Op::kCvtPack},
    {"cvt", "pack sat u8|s8 s32 b32", "d32 a2 a2 a32", Op::kCvtPack},
    {"cvta", "global|const|local|param|param::entry|" SHARED " u64", "d a", Op::kCvta},
    {"cvta", "to global|const|local|param|param::entry|" SHARED " u64", "d a", Op::kCvtaTo},
    {"isspacep", "global|const|local|param|param::entry|" SHARED, "p a64", Op::kIsspacep},

    // Memory.
    {"ld",
     "[weak|volatile] [" LD_SPACE "] [ca|cg|cs|lu|cv] [" EVICT "] [L2::cache_hint] [" PREFETCH
     "] [v2|v4|v8] " MEMORY_TYPE "|b128",
     "v m a64?", Op::kLd},
    {"ld",
     "relaxed|acquire " SCOPE " [" LD_SPACE "] [" EVICT "] [L2::cache_hint] [" PREFETCH
     "] [v2|v4|v8] " MEMORY_TYPE "|b128",
     "v m a64?", Op::kLd},
    {"ld", "mmio relaxed sys [global] " MEMORY_TYPE, "v m", Op::kLd},
    {"ld",
     "global [ca|cg|cs] nc [" EVICT "] [L2::cache_hint] [" PREFETCH "] [v2|v4|v8] " MEMORY_TYPE
     "|b128",
     "v m a64?", Op::kLd},
    {"ldu", "[global] [v2|v4] " MEMORY_TYPE "|b128", "v m", Op::kLd},
    {"st",
     "[weak|volatile] [" ST_SPACE "] [wb|cg|cs|wt] [" EVICT
     "] [L2::cache_hint] [v2|v4|v8] " MEMORY_TYPE "|b128",
     "m vs a64?", Op::kSt},
    {"st",
     "relaxed|release " SCOPE " [" ST_SPACE "] [" EVICT "] [L2::cache_hint] [v2|v4|v8] " MEMORY_TYPE
     "|b128",
     "m vs a64?", Op::kSt},
    {"st", "mmio relaxed sys [global] " MEMORY_TYPE, "m vs", Op::kSt},
    {"ldmatrix", "sync aligned m8n8 x1|x2|x4 [trans] shared|shared::cta b16", "v m",
     Op::kLdMatrix},
    {"stmatrix", "sync aligned m8n8 x1|x2|x4 [trans] shared|shared::cta b16", "m vs",
     Op::kStMatrix},
    // A policy affects only caches, so createpolicy does nothing: the register keeps its value.
    {"createpolicy", "fractional " L2_EVICT " [" L2_EVICT "] b64", "d a64?", Op::kNop},
    {"createpolicy", "fractional " L2_EVICT " [" L2_EVICT "] b64", "d a32", Op::kNop},
    {"createpolicy", "cvt L2 b64", "d a64", Op::kNop},
    {"prefetch", "[global|local] L1|L2|L2::evict_last|L2::evict_normal", "m", Op::kNop},
    {"prefetchu", "L1", "m", Op::kNop},
    {"applypriority", "[global] L2::evict_normal", "m i", Op::kNop},
    {"discard", "[global] L2", "m i", Op::kNop},
    {"cp", "async ca|cg shared|shared::cta global [L2::cache_hint] [" PREFETCH "]",
     "m m2 i a32? a64?", Op::kCpAsync},
    {"cp",
     "async bulk shared::cluster|shared::cta global mbarrier::complete_tx::bytes [L2::cache_hint]",
     "m m2 a32 m3 a64?", Op::kCpAsync},
    {"cp", "async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes", "m m2 a32 m3",
     Op::kCpAsync},
    {"cp", "async bulk global shared::cta bulk_group [L2::cache_hint]", "m m2 a32 a64?",
     Op::kCpAsync},
    {"cp", "async bulk prefetch L2 global [L2::cache_hint]", "m a32 a64?", Op::kNop},
    {"cp", "async bulk commit_group", "", Op::kNop},
    {"cp", "async bulk wait_group [read]", "i", Op::kNop},
    {"cp", "async commit_group", "", Op::kNop},
    {"cp", "async wait_group", "i", Op::kNop},
    {"cp", "async wait_all", "", Op::kNop},
    {"cp", "async mbarrier arrive [noinc] [shared|shared::cta] b64", "m", Op::kMbarrier},

// Atomics.
#define ATOM "~[relaxed|acquire|release|acq_rel] [" SCOPE "] [global|" SHARED "] [L2::cache_hint] "
    {"atom", ATOM "and|or|xor b32|b64", "d m a a64?", Op::kAtom},
    {"atom", ATOM "exch b16|b32|b64|b128", "d m a a64?", Op::kAtom},
    {"atom", ATOM "cas b16|b32|b64|b128", "d m a a a64?", Op::kAtom},
    {"atom", ATOM "add u32|s32|u64|s64|f32|f64", "d m a a64?", Op::kAtom},
    {"atom", ATOM "add noftz f16|f16x2|bf16|bf16x2", "d m a a64?", Op::kAtom},
    {"atom", ATOM "min|max u32|s32|u64|s64", "d m a a64?", Op::kAtom},
    {"atom", ATOM "inc|dec u32", "d m a a64?", Op::kAtom},
    {"atom", ATOM "add v2|v4 f32", "v m vs a64?", Op::kAtom},
    {"atom", ATOM "add|min|max noftz v2|v4|v8 f16|f16x2|bf16|bf16x2", "v m vs a64?", Op::kAtom},
    {"red", ATOM "and|or|xor b32|b64", "m a a64?", Op::kRed},
    {"red", ATOM "add u32|s32|u64|s64|f32|f64", "m a a64?", Op::kRed},
    {"red", ATOM "add noftz f16|f16x2|bf16|bf16x2", "m a a64?", Op::kRed},
    {"red", ATOM "min|max u32|s32|u64|s64", "m a a64?", Op::kRed},
    {"red", ATOM "inc|dec u32", "m a a64?", Op::kRed},
    {"red", ATOM "add v2|v4 f32", "m vs a64?", Op::kRed},
    {"red", ATOM "add|min|max noftz v2|v4|v8 f16|f16x2|bf16|bf16x2", "m vs a64?", Op::kRed},
#define MBARRIER " [shared|shared::cta] b64"
#define MBARRIER_ORDER " [relaxed|acquire|release] [cta|cluster]"
    {"mbarrier", "init" MBARRIER, "m a32", Op::kMbarrier},
    {"mbarrier", "inval" MBARRIER, "m", Op::kMbarrier},
    {"mbarrier", "expect_tx|complete_tx" MBARRIER_ORDER MBARRIER, "m a32", Op::kMbarrier},
    {"mbarrier", "arrive|arrive_drop" MBARRIER_ORDER MBARRIER, "d64 m a32?", Op::kMbarrier},
    {"mbarrier", "arrive|arrive_drop noComplete [release] [cta]" MBARRIER, "d64 m a32",
     Op::kMbarrier},
    {"mbarrier", "arrive|arrive_drop expect_tx" MBARRIER_ORDER MBARRIER, "d64 m a32",
     Op::kMbarrier},
    {"mbarrier", "test_wait" MBARRIER_ORDER MBARRIER, "p m a64", Op::kMbarrier},
    {"mbarrier", "test_wait parity" MBARRIER_ORDER MBARRIER, "p m a32", Op::kMbarrier},
    {"mbarrier", "try_wait" MBARRIER_ORDER MBARRIER, "p m a64 a32?", Op::kMbarrier},
    {"mbarrier", "try_wait parity" MBARRIER_ORDER MBARRIER, "p m a32 a32?", Op::kMbarrier},
    {"mbarrier", "pending_count b64", "d32 a64", Op::kMbarrier},
    {"fence", "[sc|acq_rel|acquire|release] " SCOPE, "", Op::kFence},
    {"fence", "proxy alias|async|async.global|tensormap", "", Op::kFence},
    {"fence", "proxy async global|shared::cta|shared::cluster", "", Op::kFence},
    {"fence",
     "proxy async::generic acquire|release "
     "sync_restrict::shared::cta|sync_restrict::shared::cluster cluster",
     "", Op::kFence},
    {"fence", "mbarrier_init release cluster", "", Op::kFence},
    {"membar", "cta|gl|sys", "", Op::kFence},
    {"membar", "proxy alias", "", Op::kFence},

    // Textures and surfaces. decode_texture.cpp reads their operands.
    {"tex", "[base|level|grad] " TEXTURE_SHAPE " v4 u32|s32|f32 s32|f32", "", Op::kTexture},
    {"tld4", "r|g|b|a 2d|a2d|cube|acube v4 u32|s32|f32 f32", "", Op::kTexture},
    {"txq", "width|height|depth b32", "", Op::kTextureQuery},
    {"suld", "b " SURFACE_SHAPE " [ca|cg|cs|cv] [v2|v4] b8|b16|b32|b64 trap|clamp|zero", "",
     Op::kSurfaceLoad},
    {"sust", "b " SURFACE_SHAPE " [wb|cg|cs|wt] [v2|v4] b8|b16|b32|b64 trap|clamp|zero", "",
     Op::kSurfaceStore},
    {"suq", "width|height|depth b32", "", Op::kSurfaceQuery},

    // Warps and blocks.
    {"bar", "[cta] sync", "a32 a32?", Op::kBarSync},
    {"bar", "[cta] arrive", "a32 a32", Op::kBarArrive},
    {"bar", "[cta] red popc u32", "d a32 n!", Op::kBarRed},
    {"bar", "[cta] red popc u32", "d a32 a32 n!", Op::kBarRed},
    {"bar", "[cta] red and|or pred", "d a32 n!", Op::kBarRed},
    {"bar", "[cta] red and|or pred", "d a32 a32 n!", Op::kBarRed},
    {"barrier", "[cta] sync [aligned]", "a32 a32?", Op::kBarSync},
    {"barrier", "[cta] arrive [aligned]", "a32 a32", Op::kBarArrive},
    {"barrier", "[cta] red popc [aligned] u32", "d a32 n!", Op::kBarRed},
    {"barrier", "[cta] red popc [aligned] u32", "d a32 a32 n!", Op::kBarRed},
    {"barrier", "[cta] red and|or [aligned] pred", "d a32 n!", Op::kBarRed},
    {"barrier", "[cta] red and|or [aligned] pred", "d a32 a32 n!", Op::kBarRed},
    {"bar", "warp sync", "a32", Op::kBarWarp},
    {"vote", "~sync all|any|uni pred", "p n! a32", Op::kVote},
    {"vote", "~sync ballot b32", "d n! a32", Op::kVote},
    {"vote", "all|any|uni pred", "p n!", Op::kVote},
    {"vote", "ballot b32", "d n!", Op::kVote},
    {"shfl", "up|down|bfly|idx b32", "d|p a a32 a32", Op::kShfl},
    {"shfl", "sync up|down|bfly|idx b32", "d|p a a32 a32 a32", Op::kShfl},
    {"match", "~any sync b32|b64", "d32 a a32", Op::kMatch},
    {"match", "~all sync b32|b64", "d32|p a a32", Op::kMatch},
    {"redux", "sync add|min|max u32|s32", "d a a32", Op::kRedux},
    {"redux", "sync and|or|xor b32", "d a a32", Op::kRedux},
    {"elect", "sync", "d32|p a32", Op::kElect},
    {"activemask", "b32", "d", Op::kActiveMask},

    // Control.
    {"bra", "[uni]", "label", Op::kBra},
    {"brx", "idx [uni]", "a32 table", Op::kBrx},
    {"call", "[uni]", "call", Op::kCall},
    {"ret", "[uni]", "", Op::kRet},
    {"exit", "", "", Op::kExit},
    {"trap", "", "", Op::kTrap},
    {"brkpt", "", "", Op::kTrap},
    {"nanosleep", "u32", "a32", Op::kNanosleep},
    {"pmevent", "[mask]", "i", Op::kNop},
    {"griddepcontrol", "launch_dependents|wait", "", Op::kNop},
    {"setmaxnreg", "inc|dec sync aligned u32", "i", Op::kNop},
};

// The groups of a pattern's modifiers, split once.
struct Group {
  std::vector<std::string_view> names;
  bool optional = false;
};
struct Compiled {
  std::vector<Group> groups;
  bool any_order = false;
};

Compiled compile(std::string_view text) {
  Compiled compiled;
  if (text.starts_with('~')) {
    compiled.any_order = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    Group group;
    if (word.starts_with('[')) {
      group.optional = true;
      word = word.substr(1, word.size() - 2);
    }
    while (true) {
      const size_t bar = word.find('|');
      group.names.push_back(word.substr(0, bar));
      if (bar == std::string_view::npos) break;
      word.remove_prefix(bar + 1);
    }
    compiled.groups.push_back(std::move(group));
  }
  return compiled;
}

struct Index {
  std::vector<Compiled> compiled;
  std::unordered_map<std::string_view, std::vector<uint32_t>> by_opcode;

  Index() {
    for (uint32_t k = 0; k < std::size(kPatterns); ++k) {
      compiled.push_back(compile(kPatterns[k].modifiers));
      by_opcode[kPatterns[k].opcode].push_back(k);
    }
  }
};
const Index& patterns() {
  static const Index index;
  return index;
}

bool contains(const Group& group, std::string_view name) {
  return std::find(group.names.begin(), group.names.end(), name) != group.names.end();
}

bool matches(const Compiled& pattern, const std::vector<std::string_view>& modifiers) {
  if (pattern.any_order) {
    uint64_t used = 0;
    for (const std::string_view modifier : modifiers) {
      size_t g = 0;
      while (g < pattern.groups.size() &&
             ((used >> g & 1) != 0 || !contains(pattern.groups[g], modifier))) {
        ++g;
      }
      if (g == pattern.groups.size()) return false;
      used |= uint64_t{1} << g;
    }
    for (size_t g = 0; g < pattern.groups.size(); ++g) {
      if ((used >> g & 1) == 0 && !pattern.groups[g].optional) return false;
    }
    return true;
  }
  size_t at = 0;
  for (const Group& group : pattern.groups) {
    if (at < modifiers.size() && contains(group, modifiers[at])) {
      ++at;
    } else if (!group.optional) {
      return false;
    }
  }
  return at == modifiers.size();
}

// The effect of a modifier, for modifiers with only one meaning.
using Apply = void (*)(Form&);
const std::unordered_map<std::string_view, Apply>& meanings() {
  static const std::unordered_map<std::string_view, Apply> table = {
      {"rn", [](Form& f) { f.rounding = Rounding::kNearest; }},
      {"rz", [](Form& f) { f.rounding = Rounding::kZero; }},
      {"rm", [](Form& f) { f.rounding = Rounding::kDown; }},
      {"rp", [](Form& f) { f.rounding = Rounding::kUp; }},
      {"rna", [](Form& f) { f.rounding = Rounding::kNearestAway; }},
      {"rni", [](Form& f) { f.rounding = Rounding::kNearest, f.round_to_integer = true; }},
      {"rzi", [](Form& f) { f.rounding = Rounding::kZero, f.round_to_integer = true; }},
      {"rmi", [](Form& f) { f.rounding = Rounding::kDown, f.round_to_integer = true; }},
      {"rpi", [](Form& f) { f.rounding = Rounding::kUp, f.round_to_integer = true; }},
      {"ftz", [](Form& f) { f.ftz = true; }},
      {"sat", [](Form& f) { f.saturate = true; }},
      {"satfinite", [](Form& f) { f.saturate = true; }},
      {"relu", [](Form& f) { f.relu = true; }},
      {"NaN", [](Form& f) { f.nan = true; }},
      {"xorsign", [](Form& f) { f.xorsign_abs = true; }},
      {"approx", [](Form& f) { f.approximate = true; }},
      {"full", [](Form& f) { f.full_range = true; }},
      {"clamp", [](Form& f) { f.clamp = true; }},
      {"l", [](Form& f) { f.left = true; }},
      {"shiftamt", [](Form& f) { f.shift_amount = true; }},
      {"cc", [](Form& f) { f.carry_out = true; }},
      {"f4e", [](Form& f) { f.permute = PermuteMode::kF4e; }},
      {"b4e", [](Form& f) { f.permute = PermuteMode::kB4e; }},
      {"rc8", [](Form& f) { f.permute = PermuteMode::kRc8; }},
      {"ecl", [](Form& f) { f.permute = PermuteMode::kEcl; }},
      {"ecr", [](Form& f) { f.permute = PermuteMode::kEcr; }},
      {"rc16", [](Form& f) { f.permute = PermuteMode::kRc16; }},
      {"x2", [](Form& f) { f.elements = 2; }},
      {"x4", [](Form& f) { f.elements = 4; }},
      {"v2", [](Form& f) { f.elements = 2; }},
      {"v4", [](Form& f) { f.elements = 4; }},
      {"v8", [](Form& f) { f.elements = 8; }},
      {"volatile", [](Form& f) { f.strong = true; }},
      {"relaxed", [](Form& f) { f.strong = true; }},
      {"acquire", [](Form& f) { f.strong = true; }},
      {"release", [](Form& f) { f.strong = true; }},
      {"global", [](Form& f) { f.space = ptx::Space::kGlobal; }},
      {"const", [](Form& f) { f.space = ptx::Space::kConst; }},
      {"local", [](Form& f) { f.space = ptx::Space::kLocal; }},
      {"param", [](Form& f) { f.space = ptx::Space::kParam; }},
      {"param::entry", [](Form& f) { f.space = ptx::Space::kParam; }},
      {"param::func", [](Form& f) { f.space = ptx::Space::kParam; }},
      {"shared", [](Form& f) { f.space = ptx::Space::kShared; }},
      {"shared::cta", [](Form& f) { f.space = ptx::Space::kShared; }},
      {"shared::cluster", [](Form& f) { f.space = ptx::Space::kShared; }},
  };
  return table;
}

struct ComparisonName {
  std::string_view name;
  Compare compare;
};
constexpr ComparisonName kComparisons[] = {
    {"eq", Compare::kEq},   {"ne", Compare::kNe},   {"lt", Compare::kLt},   {"le", Compare::kLe},
    {"gt", Compare::kGt},   {"ge", Compare::kGe},   {"lo", Compare::kLt},   {"ls", Compare::kLe},
    {"hi", Compare::kGt},   {"hs", Compare::kGe},   {"equ", Compare::kEqu}, {"neu", Compare::kNeu},
    {"ltu", Compare::kLtu}, {"leu", Compare::kLeu}, {"gtu", Compare::kGtu}, {"geu", Compare::kGeu},
    {"num", Compare::kNum}, {"nan", Compare::kNan},
};
struct AtomicName {
  std::string_view name;
  AtomicOp op;
};
constexpr AtomicName kAtomics[] = {
    {"add", AtomicOp::kAdd},   {"min", AtomicOp::kMin}, {"max", AtomicOp::kMax},
    {"and", AtomicOp::kAnd},   {"or", AtomicOp::kOr},   {"xor", AtomicOp::kXor},
    {"exch", AtomicOp::kExch}, {"cas", AtomicOp::kCas}, {"inc", AtomicOp::kInc},
    {"dec", AtomicOp::kDec},
};

}  // namespace

const Pattern* next_match(const ptx::Instruction& instruction, const Pattern* previous) {
  const Index& index = patterns();
  const auto found = index.by_opcode.find(instruction.opcode);
  if (found == index.by_opcode.end()) return nullptr;
  for (const uint32_t k : found->second) {
    if (previous != nullptr && &kPatterns[k] <= previous) continue;
    if (matches(index.compiled[k], instruction.modifiers)) return &kPatterns[k];
  }
  return nullptr;
}

bool has_modifier(const ptx::Instruction& instruction, std::string_view name) {
  return std::find(instruction.modifiers.begin(), instruction.modifiers.end(), name) !=
         instruction.modifiers.end();
}

Form form_of(const ptx::Instruction& instruction, Op op) {
  Form form;
  form.op = op;
  for (const std::string_view modifier : instruction.modifiers) {
    if (const auto meaning = meanings().find(modifier); meaning != meanings().end()) {
      meaning->second(form);
      continue;
    }
    const ptx::Type type = ptx::type_from_name(modifier);
    if (type == ptx::Type::kNone) continue;
    if (form.type == ptx::Type::kNone) {
      form.type = type;
    } else if (form.type2 == ptx::Type::kNone) {
      form.type2 = type;
    }
  }
  form.high = has_modifier(instruction, "hi") && op != Op::kSetp && op != Op::kSet;
  form.carry_in =
      instruction.opcode == "addc" || instruction.opcode == "subc" || instruction.opcode == "madc";
  form.accumulate =
      (op == Op::kAbsDiff2 || op == Op::kAbsDiff4) && has_modifier(instruction, "add");
  form.coarse = form.approximate && form.ftz && form.type == ptx::Type::kF64;
  if (op == Op::kSetp || op == Op::kSet) {
    for (const ComparisonName& c : kComparisons) {
      if (c.name == instruction.modifiers[0]) form.compare = c.compare;
    }
  }
  if (op == Op::kSetp || op == Op::kSet || op == Op::kLop3) {
    if (has_modifier(instruction, "and")) form.combine = Combine::kAnd;
    if (has_modifier(instruction, "or")) form.combine = Combine::kOr;
    if (has_modifier(instruction, "xor")) form.combine = Combine::kXor;
  }
  if (op == Op::kAtom || op == Op::kRed) {
    for (const AtomicName& a : kAtomics) {
      if (has_modifier(instruction, a.name)) form.atomic = a.op;
    }
  }
  return form;
}

std::string full_name(const ptx::Instruction& instruction) {
  std::string name(instruction.opcode);
  for (const std::string_view modifier : instruction.modifiers) {
    name += '.';
    name += modifier;
  }
  return name;
}

}  // namespace softgpu::exec
