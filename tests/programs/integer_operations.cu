// Integer instructions against the same expressions on the CPU.
#include "program.h"

__host__ __device__ inline uint64_t rotate(uint64_t x, unsigned by) {
  by &= 63;
  return by == 0 ? x : (x << by) | (x >> (64 - by));
}

// The operations that both sides can compute with the same source.
__host__ __device__ inline uint64_t mix(uint32_t a, uint32_t b, uint64_t c, uint64_t d) {
  const int32_t sa = static_cast<int32_t>(a), sb = static_cast<int32_t>(b) | 1;
  const int64_t sc = static_cast<int64_t>(c), sd = static_cast<int64_t>(d) | 1;
  uint64_t h = a;
  h = rotate(h, 5) ^ (a + b) ^ (uint64_t{a} * b);
  h = rotate(h, 7) ^ static_cast<uint32_t>(sa / sb) ^ static_cast<uint64_t>(sa % sb);
  h = rotate(h, 11) ^ (a / (b | 1)) ^ (a % (b | 1));
  h = rotate(h, 13) ^ static_cast<uint64_t>(sc / sd) ^ static_cast<uint64_t>(sc % sd);
  h = rotate(h, 17) ^ (c / (d | 1)) ^ (c % (d | 1));
  h = rotate(h, 19) ^ (c * d) ^ (c + d) ^ (c - d);
  h = rotate(h, 23) ^ (a << (b & 31)) ^ (a >> (b & 31)) ^ static_cast<uint32_t>(sa >> (b & 31));
  h = rotate(h, 29) ^ (c << (d & 63)) ^ (c >> (d & 63)) ^ static_cast<uint64_t>(sc >> (d & 63));
  h = rotate(h, 31) ^ (sa < sb) ^ ((a < b) << 1) ^ ((sc < sd) << 2) ^ ((c < d) << 3);
  h = rotate(h, 37) ^ (sa < sb ? a : b) ^ (c > d ? c : d);
  h = rotate(h, 41) ^ static_cast<uint64_t>(static_cast<int8_t>(a)) ^ static_cast<uint16_t>(b);
  h = rotate(h, 43) ^ static_cast<uint64_t>(static_cast<int16_t>(a) * static_cast<int16_t>(b));
  return h;
}

__global__ void mix_all(const uint64_t* in, uint64_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = mix(in[2 * i], in[2 * i + 1], in[2 * i], in[2 * i + 1]);
}

__global__ void intrinsics(const uint64_t* in, uint64_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint32_t a = in[2 * i], b = in[2 * i + 1];
  const uint64_t c = in[2 * i], d = in[2 * i + 1];
  uint64_t* o = out + 12 * i;
  o[0] = __popc(a) | __popcll(c) << 8 | __clz(b) << 16 | static_cast<uint64_t>(__clzll(d)) << 24;
  o[1] = __ffs(a) | static_cast<uint64_t>(__ffsll(d)) << 32;
  o[2] = __brev(a) | static_cast<uint64_t>(__brev(b)) << 32;
  o[3] = __brevll(c);
  o[4] = __umulhi(a, b) | static_cast<uint64_t>(static_cast<uint32_t>(__mulhi(a, b))) << 32;
  o[5] = __umul64hi(c, d);
  o[6] = __mul64hi(c, d);
  o[7] = __byte_perm(a, b, 0x6240) | static_cast<uint64_t>(__byte_perm(a, b, 0xb3d5)) << 32;
  o[8] = __funnelshift_l(a, b, a) | static_cast<uint64_t>(__funnelshift_rc(a, b, b)) << 32;
  o[9] = __usad(a, b, 7) | static_cast<uint64_t>(__sad(a, b, 9)) << 32;
  o[10] = __dp4a(a, b, 1u) |
          static_cast<uint64_t>(__dp4a(static_cast<int>(a), static_cast<int>(b), 1)) << 32;
  o[11] = __uhadd(a, b) | static_cast<uint64_t>(__vadd2(a, b)) << 32;
}

int main() {
  const int n = 4096;
  Random random;
  std::vector<uint64_t> in(2 * n);
  const uint64_t special[] = {0,          1,          ~0ull, 1ull << 63, 1ull << 31,
                              0x7fffffff, 0xffffffff, 31,    32,         63};
  for (uint64_t& x : in) {
    x = static_cast<uint64_t>(random.next()) << 32 ^ random.next() << 1;
    if (random.below(4) == 0) x = special[random.below(10)];
    if (random.below(4) == 0) x >>= random.below(64);
  }
  // The smallest number divided by -1 overflows, and the CPU would trap.
  for (uint64_t& x : in) {
    if (x == 1ull << 63 || static_cast<uint32_t>(x) == 1u << 31) ++x;
  }
  DeviceArray<uint64_t> device_in(in), mixed(n), results(12 * n);
  mix_all<<<n / 128, 128>>>(device_in.get(), mixed.get(), n);
  intrinsics<<<n / 128, 128>>>(device_in.get(), results.get(), n);
  FINISH();
  const std::vector<uint64_t> out = mixed.values();
  for (int i = 0; i < n; ++i)
    CHECK(out[i] == mix(in[2 * i], in[2 * i + 1], in[2 * i], in[2 * i + 1]));
  print_digest("expressions", out);
  print_digest("intrinsics", results.values());
}
