// PTX that compilers rarely write themselves: cache operators and hints, logic of three inputs,
// carries, selections by sign, classes of numbers, permutations, address spaces.
#include "program.h"

constexpr int kResults = 30;

__global__ void assorted(const int* in, unsigned* out, int* scratch, int n) {
  __shared__ int tile[64];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
  unsigned* o = out + kResults * i;
  const float x = a * 0.37f, y = b * 0.011f;
  asm("lop3.b32 %0, %1, %2, %3, 0xd2;" : "=r"(o[0]) : "r"(a), "r"(b), "r"(c));
  asm("bfe.s32 %0, %1, 5, 9;" : "=r"(o[1]) : "r"(a));
  asm("bfi.b32 %0, %1, %2, 7, 13;" : "=r"(o[2]) : "r"(a), "r"(b));
  asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(o[3]) : "r"(a), "r"(b), "r"(c));
  asm("prmt.b32.rc16 %0, %1, %2, %3;" : "=r"(o[4]) : "r"(a), "r"(b), "r"(c));
  asm("slct.s32.s32 %0, %1, %2, %3;" : "=r"(o[5]) : "r"(a), "r"(b), "r"(c));
  asm("mul24.lo.s32 %0, %1, %2;" : "=r"(o[6]) : "r"(a), "r"(b));
  asm("mad24.hi.u32 %0, %1, %2, %3;" : "=r"(o[7]) : "r"(a), "r"(b), "r"(c));
  asm("{ .reg .u32 low, high; add.cc.u32 low, %1, %2; addc.cc.u32 high, %3, %1; "
      "addc.u32 %0, low, high; }"
      : "=r"(o[8])
      : "r"(a), "r"(b), "r"(c));
  asm("{ .reg .u32 low; sub.cc.u32 low, %1, %2; subc.u32 %0, %3, low; }"
      : "=r"(o[9])
      : "r"(a), "r"(b), "r"(c));
  asm("mad.lo.cc.u32 %0, %1, %2, %3;" : "=r"(o[10]) : "r"(a), "r"(b), "r"(c));
  asm("{ .reg .pred p, q; testp.subnormal.f32 p, %1; testp.finite.f32 q, %2; selp.u32 %0, 1, 2, p; "
      "@q add.u32 %0, %0, 4; }"
      : "=r"(o[11])
      : "f"(__int_as_float(a & 0x807fffff)), "f"(__int_as_float(b)));
  asm("{ .reg .f32 t; copysign.f32 t, %1, %2; mov.b32 %0, t; }" : "=r"(o[12]) : "f"(x), "f"(y));
  asm("{ .reg .pred p, q; setp.lt.and.s32 p|q, %1, %2, 1; selp.s32 %0, 10, 20, p; @q add.s32 %0, "
      "%0, 5; }"
      : "=r"(o[13])
      : "r"(a), "r"(b));
  asm("set.gt.u32.s32 %0, %1, %2;" : "=r"(o[14]) : "r"(a), "r"(b));
  asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(o[15]) : "r"(a), "r"(b), "r"(c));
  asm("shf.r.clamp.b32 %0, %1, %2, %3;" : "=r"(o[16]) : "r"(a), "r"(b), "r"(c & 63));
  asm("szext.wrap.s32 %0, %1, %2;" : "=r"(o[17]) : "r"(a), "r"(c & 31));
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(o[18]) : "r"(b & 31), "r"(c & 31));
  asm("fns.b32 %0, %1, %2, %3;" : "=r"(o[19]) : "r"(a), "r"(b & 31), "r"(2));
  asm("cvt.sat.u8.s32 %0, %1;" : "=r"(o[20]) : "r"(a >> 8));
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, lo}; }" : "=r"(o[21]) : "r"(a));

  // One carry flag serves additions and subtractions; mixing them shows how it is kept.
  asm("{ .reg .u32 low; sub.cc.u32 low, %1, %2; addc.u32 %0, %3, 0; }"
      : "=r"(o[28])
      : "r"(a), "r"(b), "r"(c));
  asm("{ .reg .u32 low; add.cc.u32 low, %1, %2; subc.u32 %0, %3, 0; }"
      : "=r"(o[29])
      : "r"(a), "r"(b), "r"(c));

  // Loads and stores with every cache operator.
  int* cell = scratch + 4 * i;
  asm volatile("st.global.cg.u32 [%0], %1;" ::"l"(cell), "r"(a) : "memory");
  asm volatile("st.global.wt.u32 [%0+4], %1;" ::"l"(cell), "r"(b) : "memory");
  asm volatile("st.global.L1::no_allocate.u32 [%0+8], %1;" ::"l"(cell), "r"(c) : "memory");
  asm volatile("prefetch.global.L2 [%0];" ::"l"(cell));
  unsigned loaded[4];
  asm volatile("ld.global.cv.u32 %0, [%1];" : "=r"(loaded[0]) : "l"(cell));
  asm volatile("ld.global.cs.u32 %0, [%1+4];" : "=r"(loaded[1]) : "l"(cell));
  asm volatile("ld.global.ca.L2::128B.u32 %0, [%1+8];" : "=r"(loaded[2]) : "l"(cell));
  asm volatile("ld.weak.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(loaded[3]), "=r"(loaded[0])
               : "l"(cell));
  o[22] = loaded[0] ^ loaded[1] * 3 ^ loaded[2] * 5 ^ loaded[3] * 7;

  // Which space an address is in, and its number there.
  tile[threadIdx.x] = a;
  unsigned long long generic = reinterpret_cast<unsigned long long>(&tile[threadIdx.x]);
  asm("{ .reg .pred p, q; isspacep.shared p, %1; isspacep.global q, %2; selp.u32 %0, 1, 0, p; "
      "@q add.u32 %0, %0, 2; }"
      : "=r"(o[23])
      : "l"(generic), "l"(cell));
  unsigned shared_address;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }"
      : "=r"(shared_address)
      : "l"(generic));
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(o[24]) : "r"(shared_address));
  asm volatile("{ .reg .u32 t; atom.shared.exch.b32 t, [%1], %2; mov.u32 %0, t; }"
               : "=r"(o[25])
               : "r"(shared_address), "r"(b)
               : "memory");
  asm volatile("red.global.add.u32 [%0+12], %1;" ::"l"(cell), "r"(a) : "memory");
  o[26] = tile[threadIdx.x];
  asm volatile(
      "{ .reg .pred p; .reg .u32 k; mov.u32 k, 0; mov.u32 %0, 0;\n"
      "loop: add.u32 %0, %0, k; add.u32 k, k, 1; setp.lt.u32 p, k, %1; @p bra loop; }"
      : "=&r"(o[27])
      : "r"((a & 15) + 1));
}

// Four matrices of 8 x 8 elements, read as they are and transposed, and written back from the
// transposed registers. Also reads through a cache policy.
__global__ void matrices(unsigned* out) {
  __shared__ alignas(16) unsigned short tile[32][8], copy[32][8];
  const int lane = threadIdx.x;
  for (int column = 0; column < 8; ++column) {
    tile[lane][column] = static_cast<unsigned short>(lane * 8 + column);
    copy[lane][column] = tile[lane][column];
  }
  __syncthreads();
  const auto row = static_cast<unsigned>(__cvta_generic_to_shared(tile[lane]));
  unsigned plain[4], turned[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(plain[0]), "=r"(plain[1]), "=r"(plain[2]), "=r"(plain[3])
               : "r"(row)
               : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(turned[0]), "=r"(turned[1]), "=r"(turned[2]), "=r"(turned[3])
               : "r"(row)
               : "memory");
  unsigned first = plain[0];
#if __CUDA_ARCH__ >= 800
  asm volatile("{ .reg .b64 p; createpolicy.fractional.L2::evict_last.b64 p, 1.0;\n"
               "ld.global.L2::cache_hint.u32 %0, [%1], p; }"
               : "=r"(first)
               : "l"(out + 512 + lane));
#endif
#if __CUDA_ARCH__ >= 900
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(copy[lane]));
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
               "r"(turned[0]), "r"(turned[1])
               : "memory");
#endif
  __syncthreads();
  for (int k = 0; k < 4; ++k) {
    out[lane * 8 + k] = plain[k];
    out[lane * 8 + 4 + k] = turned[k];
  }
  for (int column = 0; column < 8; ++column) out[256 + lane * 8 + column] = copy[lane][column];
  out[512 + lane] = first;
}

void check_matrices() {
  std::vector<unsigned> start(544, 0);
  DeviceArray<unsigned> device(start);
  matrices<<<1, 32>>>(device.get());
  FINISH();
  const std::vector<unsigned> out = device.values();
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned row = lane / 4, column = lane % 4 * 2;
    for (unsigned k = 0; k < 4; ++k) {
      const unsigned first = k * 64 + row * 8 + column;
      CHECK(out[lane * 8 + k] == (first | (first + 1) << 16));
      const unsigned turned = k * 64 + column * 8 + row;
      CHECK(out[lane * 8 + 4 + k] == (turned | (turned + 8) << 16));
    }
    for (unsigned at = 0; at < 8; ++at) CHECK(out[256 + lane * 8 + at] == lane * 8 + at);
    CHECK(out[512 + lane] == 0 || out[512 + lane] == out[lane * 8]);
  }
}

int main() {
  check_matrices();
  const int n = 640;
  Random random(5);
  std::vector<int> in(3 * n);
  for (int& value : in) value = static_cast<int>(random.next() << 1 ^ random.next());
  DeviceArray<int> device(in), scratch(4 * n);
  DeviceArray<unsigned> out(kResults * n);
  scratch.clear();
  assorted<<<n / 64, 64>>>(device.get(), out.get(), scratch.get(), n);
  FINISH();
  const std::vector<unsigned> values = out.values();
  for (int column = 0; column < kResults; ++column) {
    std::vector<unsigned> picked;
    for (int i = 0; i < n; ++i) picked.push_back(values[kResults * i + column]);
    std::printf("%d: %08x %016llx\n", column, picked[1],
                static_cast<unsigned long long>(digest(picked)));
  }
  print_digest("scratch", scratch.values());
}
