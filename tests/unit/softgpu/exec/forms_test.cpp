// Every instruction form that nvcc 13.0 makes of ordinary programs (stencils, reductions, atomics,
// half precision, cooperative groups, pipelines, thrust) for sm_75, sm_90 and sm_100 must be on the
// list of supported forms.
#include "softgpu/exec/forms.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace softgpu::exec {
namespace {

struct Emitted {
  std::string_view opcode;
  std::string_view modifiers;  // one word per form; "-" for none
};
constexpr Emitted kEmitted[] = {
    {"abs", "f16 f32 f64 s32"},
    {"activemask", "b32"},
    {"add", "cc.u32 f16x2 f32 f64 rn.f32 rn.f64 rp.f32 s16 s32 s64 u32 u64"},
    {"addc", "cc.u32 u32"},
    {"and", "b16 b32 b64 pred"},
    {"atom",
     "add.acq_rel.cta.u64 add.noftz.f16x2 add.relaxed.cta.u64 add.relaxed.gpu.s32 "
     "add.release.gpu.u32 global.add.f32 global.add.f64 global.add.u32 global.add.u64 "
     "global.and.b32 global.cas.b32 global.cas.b64 global.dec.u32 global.exch.b32 "
     "global.exch.b64 global.inc.u32 global.max.s32 global.max.u64 global.min.s32 "
     "global.or.b32 global.xor.b32 relaxed.global.cas.b32 relaxed.global.cas.b64 "
     "shared.add.u32"},
    {"bar", "red.or.pred red.popc.u32 sync warp.sync"},
    {"barrier", "sync"},
    {"bfe", "s32 u32"},
    {"bfi", "b32 b64"},
    {"bfind", "shiftamt.u32"},
    {"bmsk", "clamp.b32"},
    {"bra", "- uni"},
    {"brev", "b32"},
    {"call", "- uni"},
    {"clz", "b32 b64"},
    {"copysign", "f32 f64"},
    {"cos", "approx.f32"},
    {"cp", "async.ca.shared.global async.commit_group async.wait_group"},
    {"cvt",
     "f32.bf16 f32.f16 f64.f32 rmi.f32.f32 rmi.f64.f64 rn.bf16.f32 rn.f16.f32 rn.f16.s32 "
     "rn.f32.f64 rn.f32.s32 rn.f32.s64 rn.f32.u32 rn.f64.s16 rn.f64.s32 rn.f64.s64 "
     "rn.f64.u32 rni.f32.f32 rni.f64.f64 rni.s32.f32 rni.s32.f64 rpi.f32.f32 rpi.f64.f64 "
     "rzi.f32.f32 rzi.f64.f64 rzi.s32.f32 rzi.s32.f64 rzi.s64.f32 rzi.s64.f64 rzi.u32.f32 "
     "rzi.u32.f64 s16.s8 s64.s32 s8.s32 sat.f32.f32 u16.u32 u32.u16 u32.u64 u64.u32"},
    {"cvta", "global.u64 local.u64 shared.u64 to.global.u64"},
    {"div", "approx.f32 rn.f32 rn.f64 u32 u64"},
    {"dp4a", "s32.s32"},
    {"ex2", "approx.f32 approx.ftz.f32"},
    {"exit", "-"},
    {"fma", "rm.f32 rn.f16 rn.f32 rn.f64 rz.f32"},
    {"griddepcontrol", "launch_dependents wait"},
    {"ld",
     "acquire.cta.b64 acquire.gpu.b32 acquire.gpu.u32 ca.u32 const.f32 const.u32 "
     "global.f32 global.f64 global.nc.f32 global.nc.u32 global.nc.u64 global.nc.v2.f64 "
     "global.nc.v2.u64 global.u16 global.u32 global.u64 global.u8 global.v2.u16 "
     "global.v4.f32 local.f64 local.u32 local.u64 param.b32 param.b64 param.f32 param.f64 "
     "param.s32 param.s8 param.u16 param.u32 param.u64 param.u8 param.v2.u8 param.v4.u8 "
     "relaxed.gpu.v2.u32 shared.f32 shared.s32 shared.u16 shared.u32 shared.u64 "
     "shared.v2.u32 shared.v4.u32 u32 volatile.global.u32 volatile.shared.u32"},
    {"lg2", "approx.f32 approx.ftz.f32"},
    {"mad", "lo.cc.u32 lo.s32 lo.s64 wide.u32"},
    {"madc", "hi.cc.u32 hi.u32 lo.cc.u32"},
    {"match", "any.sync.b32 any.sync.b64"},
    {"max", "f32 f64 s32 u32 u64"},
    {"mbarrier", "arrive.shared::cta.b64 init.shared.b64 try_wait.shared.b64"},
    {"membar", "cta gl sys"},
    {"min", "f32 f64 s32 u32 u64"},
    {"mov", "b16 b32 b64 f32 f64 pred s32 u16 u32 u64"},
    {"mul",
     "bf16x2 f16x2 f32 f64 hi.s32 hi.s64 hi.u16 hi.u32 lo.s16 lo.s32 lo.s64 lo.u32 rm.f32 "
     "rn.f32 rn.f64 wide.s32 wide.u16 wide.u32"},
    {"nanosleep", "u32"},
    {"neg", "f32 f64 s32 s64"},
    {"not", "b32 b64 pred"},
    {"or", "b32 b64 pred"},
    {"popc", "b32 b64"},
    {"prmt", "b32"},
    {"rcp", "approx.ftz.f32 approx.ftz.f64 rn.f32 rn.f64"},
    {"redux", "sync.add.s32 sync.add.u32"},
    {"rem", "u32"},
    {"ret", "-"},
    {"rsqrt", "approx.f32 approx.f64 approx.ftz.f64"},
    {"sad", "u32"},
    {"selp", "b16 b32 b64 f32 f64 s64 u16 u32 u64"},
    {"set", "eq.f16.f16"},
    {"setp",
     "eq.b16 eq.b32 eq.b64 eq.f32 eq.f64 eq.s16 eq.s32 eq.s64 equ.f64 ge.f32 ge.f64 ge.s32 "
     "ge.u32 ge.u64 geu.f32 gt.f32 gt.f64 gt.s32 gt.s64 gt.u32 gt.u64 gtu.f32 gtu.f64 "
     "le.f32 le.f64 le.s32 le.u32 le.u64 leu.f32 leu.f64 lt.f16 lt.f32 lt.f64 lt.s32 "
     "lt.s64 lt.u32 lt.u64 ltu.f32 ltu.f64 nan.f32 nan.f64 ne.s16 ne.s32 ne.s64 ne.u32 "
     "neu.f32 neu.f64 num.f32 num.f64"},
    {"shf", "l.wrap.b32"},
    {"shfl", "sync.bfly.b32 sync.down.b32 sync.idx.b32 sync.up.b32"},
    {"shl", "b32 b64"},
    {"shr", "b32 b64 s32 s64 u16 u32 u64"},
    {"sin", "approx.f32"},
    {"sqrt", "approx.ftz.f32 rn.f32 rn.f64"},
    {"st",
     "global.f32 global.f64 global.u16 global.u32 global.u64 global.v2.u16 global.v2.u32 "
     "global.v4.f32 local.f64 local.u32 local.u64 local.v2.b32 local.v2.u32 local.v4.u32 "
     "param.b32 param.b64 param.f32 param.f64 relaxed.gpu.v2.u32 release.gpu.b32 "
     "shared.f32 shared.u16 shared.u32 shared.u64 shared.v2.u32 shared.v2.u64 "
     "shared.v4.u32 u32 volatile.global.u32 volatile.shared.u32"},
    {"sub", "cc.u32 f32 f64 s16 s32 s64"},
    {"subc", "cc.u32 u32"},
    {"suld",
     "b.1d.v4.b32.trap b.2d.b32.trap b.2d.b64.trap b.2d.b8.trap b.2d.v2.b64.trap "
     "b.2d.v4.b32.clamp b.2d.v4.b8.trap b.3d.v4.b32.zero b.a1d.v4.b32.trap b.a2d.v4.b32.trap"},
    {"sust",
     "b.1d.v4.b32.trap b.2d.b32.zero b.2d.v4.b32.trap b.2d.v4.b8.clamp b.3d.v4.b32.trap "
     "b.a1d.v4.b32.trap b.a2d.v4.b32.trap"},
    {"tex",
     "1d.v4.f32.f32 1d.v4.f32.s32 1d.v4.s32.s32 1d.v4.u32.s32 2d.v4.f32.f32 2d.v4.s32.f32 "
     "2d.v4.u32.f32 3d.v4.f32.f32 a1d.v4.f32.f32 a2d.v4.f32.f32 acube.v4.f32.f32 "
     "cube.v4.f32.f32 grad.1d.v4.f32.f32 grad.2d.v4.f32.f32 grad.3d.v4.f32.f32 "
     "grad.a1d.v4.f32.f32 grad.a2d.v4.f32.f32 grad.cube.v4.f32.f32 level.1d.v4.f32.f32 "
     "level.2d.v4.f32.f32 level.3d.v4.f32.f32 level.a1d.v4.f32.f32 level.a2d.v4.f32.f32 "
     "level.acube.v4.f32.f32 level.cube.v4.f32.f32"},
    {"tld4", "a.2d.v4.f32.f32 g.2d.v4.u32.f32 r.2d.v4.f32.f32"},
    {"trap", "-"},
    {"vote", "ballot.sync.b32 sync.all.pred sync.any.pred sync.ballot.b32"},
    {"xor", "b32 b64 pred"},
};

ptx::Instruction instruction(std::string_view opcode, std::string_view modifiers) {
  ptx::Instruction made;
  made.opcode = opcode;
  if (modifiers == "-") return made;
  while (true) {
    const size_t dot = modifiers.find('.');
    made.modifiers.push_back(modifiers.substr(0, dot));
    if (dot == std::string_view::npos) return made;
    modifiers.remove_prefix(dot + 1);
  }
}

TEST(FormsTest, NameWhatNvccEmits) {
  for (const Emitted& emitted : kEmitted) {
    for (std::string_view rest = emitted.modifiers; !rest.empty();) {
      const std::string_view form = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(rest.size(), form.size() + 1));
      EXPECT_NE(next_match(instruction(emitted.opcode, form), nullptr), nullptr)
          << emitted.opcode << "." << form;
    }
  }
}

TEST(FormsTest, NameNothingElse) {
  for (const auto& [opcode, modifiers] :
       {Emitted{"add", "rn.u32"}, Emitted{"add", "f32.f32"}, Emitted{"mul", "u32"},
        Emitted{"mma", "sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"},
        Emitted{"tex", "2d.f32.f32"}, Emitted{"ld", "global"}, Emitted{"shfl", "sync.b32"},
        Emitted{"nothing", "-"}}) {
    EXPECT_EQ(next_match(instruction(opcode, modifiers), nullptr), nullptr)
        << opcode << "." << modifiers;
  }
}

}  // namespace
}  // namespace softgpu::exec
