// Kernel parameters of every layout: small types, aligned structures, vectors, many parameters, and
// very large ones.
#include "program.h"

struct Small {
  char a;
  short b;
};
struct alignas(16) Aligned {
  int x;
};
struct Nested {
  char tag;
  Small small[3];
  double weight;
};
struct Empty {};
enum class Colour : unsigned char { kRed = 3 };

__global__ void layouts(long long* out, bool flag, char c, Small small, Aligned aligned,
                        char3 triple, Empty, float4 four, Nested nested, Colour colour,
                        long long wide, char last) {
  out[0] = flag;
  out[1] = c;
  out[2] = small.a * 1000 + small.b;
  out[3] = aligned.x;
  out[4] = triple.x * 10000 + triple.y * 100 + triple.z;
  out[5] = static_cast<long long>(four.x + four.w * 100);
  out[6] = nested.tag + nested.small[2].b + static_cast<long long>(nested.weight * 4);
  out[7] = static_cast<int>(colour);
  out[8] = wide;
  out[9] = last;
}

template <int kBytes>
struct Block {
  unsigned char bytes[kBytes];
};

template <int kBytes>
__global__ void sum(Block<kBytes> block, unsigned* out) {
  unsigned total = 0;
  for (int i = 0; i < kBytes; ++i) total = total * 31 + block.bytes[i];
  *out = total;
}

// A dynamically indexed parameter, whose address is taken.
__global__ void pick(Block<256> block, int index, int* out) {
  const unsigned char* bytes = block.bytes;
  bytes += index + threadIdx.x;
  out[threadIdx.x] = *bytes;
}

__global__ void many(int* out, int a, int b, int c, int d, int e, int f, int g, int h, int i, int j,
                     int k, int l, int m, int n, int o, int p, int q, int r, int s, int t) {
  const int values[] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t};
  for (int x = 0; x < 20; ++x) out[x] = values[x] * (x + 1);
}

template <int kBytes>
void large() {
  DeviceArray<unsigned> out(1);
  Block<kBytes> block;
  unsigned expected = 0;
  for (int i = 0; i < kBytes; ++i) {
    block.bytes[i] = static_cast<unsigned char>(i * 7 + kBytes);
    expected = expected * 31 + block.bytes[i];
  }
  sum<<<1, 1>>>(block, out.get());
  block.bytes[0] = block.bytes[kBytes - 1] = 99;  // the launch took a copy
  FINISH();
  CHECK(out.values()[0] == expected);
  std::printf("%d bytes: %08x\n", kBytes, expected);
}

int main() {
  DeviceArray<long long> out(10);
  Nested nested{'n', {{1, 2}, {3, 4}, {5, 600}}, 2.75};
  layouts<<<1, 1>>>(out.get(), true, 'c', Small{-3, 77}, Aligned{123}, make_char3(1, 2, 3), Empty{},
                    make_float4(5, 6, 7, 8), nested, Colour::kRed, -(1ll << 50), -1);
  FINISH();
  for (const long long value : out.values()) std::printf("%lld ", value);
  std::printf("\n");

  large<1>();
  large<4000>();
  large<20000>();
  large<32000>();

  DeviceArray<int> numbers(20);
  many<<<1, 1>>>(numbers.get(), 1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12, 13, -14, 15, -16, 17,
                 -18, 19, -20);
  FINISH();
  print_digest("many", numbers.values());
  Block<256> block;
  for (int i = 0; i < 256; ++i) block.bytes[i] = static_cast<unsigned char>(255 - i);
  DeviceArray<int> picked(32);
  pick<<<1, 32>>>(block, 100, picked.get());
  FINISH();
  for (int i = 0; i < 32; ++i) CHECK(picked.values()[i] == 155 - i);
}
