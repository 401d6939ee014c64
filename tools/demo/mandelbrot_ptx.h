// The kernel of rcuda-run --demo, as text: the driver of the server compiles it, so no CUDA toolkit
// is needed to build or to run the demonstration.
#pragma once

namespace rcuda::demo {

// mandelbrot(out, width, rows, first_row, left, top, step_x, step_y, limit): one thread for each of
// width * rows points. Thread i takes the point c at column i % width of row first_row + i / width.
// It writes to out[i] the number of steps of z = z * z + c before the step that moves z farther
// than 2 from 0, but at most `limit`. main.cpp repeats the operations in this order and with the
// same roundings, so the host gets the same numbers.
inline constexpr char kMandelbrotPtx[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64

.visible .entry mandelbrot(
  .param .u64 out, .param .u32 width, .param .u32 rows, .param .u32 first_row,
  .param .f32 left, .param .f32 top, .param .f32 step_x, .param .f32 step_y, .param .u32 limit)
{
  .reg .pred %outside, %escaped, %done;
  .reg .b32 %thread, %block, %size, %point, %width, %rows, %row, %column, %step, %limit;
  .reg .f32 %left, %top, %dx, %dy, %x, %y, %cx, %cy, %re, %im, %minus, %twice, %next, %norm;
  .reg .b64 %out, %offset;

  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mad.lo.u32 %point, %block, %size, %thread;
  ld.param.u32 %width, [width];
  ld.param.u32 %rows, [rows];
  mul.lo.u32 %rows, %rows, %width;
  setp.ge.u32 %outside, %point, %rows;
  @%outside ret;

  div.u32 %row, %point, %width;
  rem.u32 %column, %point, %width;
  ld.param.u32 %size, [first_row];
  add.u32 %row, %row, %size;
  ld.param.f32 %left, [left];
  ld.param.f32 %top, [top];
  ld.param.f32 %dx, [step_x];
  ld.param.f32 %dy, [step_y];
  cvt.rn.f32.u32 %x, %column;
  cvt.rn.f32.u32 %y, %row;
  fma.rn.f32 %cx, %x, %dx, %left;
  fma.rn.f32 %cy, %y, %dy, %top;

  ld.param.u32 %limit, [limit];
  mov.u32 %step, 0;
  mov.f32 %re, 0f00000000;
  mov.f32 %im, 0f00000000;
iterate:
  neg.f32 %minus, %im;
  fma.rn.f32 %next, %minus, %im, %cx;
  fma.rn.f32 %next, %re, %re, %next;
  add.rn.f32 %twice, %re, %re;
  fma.rn.f32 %im, %twice, %im, %cy;
  mov.f32 %re, %next;
  mul.rn.f32 %norm, %im, %im;
  fma.rn.f32 %norm, %re, %re, %norm;
  setp.gt.f32 %escaped, %norm, 0f40800000;
  @%escaped bra store;
  add.u32 %step, %step, 1;
  setp.lt.u32 %done, %step, %limit;
  @%done bra iterate;
store:
  ld.param.u64 %out, [out];
  cvta.to.global.u64 %out, %out;
  mul.wide.u32 %offset, %point, 4;
  add.u64 %out, %out, %offset;
  st.global.u32 [%out], %step;
  ret;
}
)ptx";

}  // namespace rcuda::demo
