#include "tests/unit/softgpu/driver/stream_fixture.h"

namespace softgpu::driver {

const char* const kTestPtx = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry empty() { ret; }

.visible .entry set(.param .u64 p, .param .u32 v) {
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [p];
  ld.param.u32 %r1, [v];
  st.volatile.global.u32 [%rd1], %r1;
  ret;
}

.visible .entry add(.param .u64 p, .param .u32 v) {
  .reg .b64 %rd<2>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [p];
  ld.param.u32 %r1, [v];
  atom.global.add.u32 %r2, [%rd1], %r1;
  ret;
}

.visible .entry shift(.param .u64 p, .param .u32 v) {
  .reg .b64 %rd<2>;
  .reg .b32 %r<4>;
  ld.param.u64 %rd1, [p];
  ld.param.u32 %r1, [v];
  ld.volatile.global.u32 %r2, [%rd1];
  mad.lo.u32 %r3, %r2, 31, %r1;
  st.volatile.global.u32 [%rd1], %r3;
  ret;
}

.visible .entry copy(.param .u64 d, .param .u64 s) {
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [d];
  ld.param.u64 %rd2, [s];
  ld.volatile.global.u32 %r1, [%rd2];
  st.volatile.global.u32 [%rd1], %r1;
  ret;
}

.visible .entry spin(.param .u64 p) {
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  .reg .pred %q<2>;
  ld.param.u64 %rd1, [p];
again:
  ld.volatile.global.u32 %r1, [%rd1];
  setp.eq.u32 %q1, %r1, 0;
  @%q1 bra again;
  ret;
}

.visible .entry illegal() {
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  mov.u64 %rd1, 16;
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}

.visible .entry trapping() { trap; }

.visible .entry maxn() .maxntid 64, 1, 1 { ret; }

.visible .entry reqn() .reqntid 32, 2, 1 { ret; }

.visible .entry shared(.param .u64 p) {
  .shared .align 4 .b8 words[1024];
  .reg .b64 %rd<2>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, 5;
  mov.u32 %r2, words;
  st.volatile.shared.u32 [%r2], %r1;
  ld.volatile.shared.u32 %r1, [%r2];
  st.volatile.global.u32 [%rd1], %r1;
  ret;
}

.visible .entry many(.param .u8 a, .param .u64 b, .param .align 16 .b8 c[24], .param .u16 d) { ret; }
)";

}  // namespace softgpu::driver
