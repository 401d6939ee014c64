#include "common/interop/md2.h"

#include <cstring>
#include <vector>

namespace rcuda::interop {
namespace {

constexpr size_t kBlock = 16;

// RFC 1319 section 3.2: a permutation of 0 to 255 made from the digits of pi.
constexpr uint8_t kPi[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,
    243, 192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212,
    224, 22,  103, 66,  111, 24,  138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160,
    251, 245, 142, 187, 47,  238, 122, 169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137,
    11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151,
    3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198, 79,  184,
    56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,  100,
    113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246,
    28,  70,  97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249,
    206, 186, 197, 234, 38,  44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129,
    77,  82,  106, 220, 55,  200, 108, 193, 171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120,
    136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254, 59,  0,   29,  57,  242, 239, 183, 14,
    102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,  80,  180, 143, 237, 31,
    26,  219, 153, 141, 51,  159, 17,  131, 20,
};

}  // namespace

Md2Digest md2(std::span<const uint8_t> message) {
  // Padding: n bytes of value n, 1 to 16 of them, then the checksum block.
  std::vector<uint8_t> padded(message.begin(), message.end());
  const size_t padding = kBlock - padded.size() % kBlock;
  padded.insert(padded.end(), padding, static_cast<uint8_t>(padding));

  uint8_t checksum[kBlock] = {};
  uint8_t last = 0;
  for (size_t block = 0; block < padded.size(); block += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) {
      checksum[i] ^= kPi[padded[block + i] ^ last];
      last = checksum[i];
    }
  }
  padded.insert(padded.end(), checksum, checksum + kBlock);

  uint8_t state[3 * kBlock] = {};
  for (size_t block = 0; block < padded.size(); block += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) {
      state[kBlock + i] = padded[block + i];
      state[2 * kBlock + i] = static_cast<uint8_t>(padded[block + i] ^ state[i]);
    }
    unsigned carry = 0;
    for (unsigned round = 0; round < 18; ++round) {
      for (uint8_t& byte : state) {
        byte ^= kPi[carry];
        carry = byte;
      }
      carry = (carry + round) % 256;
    }
  }
  Md2Digest digest;
  std::memcpy(digest.data(), state, digest.size());
  return digest;
}

Md2Digest hmac_md2(std::span<const uint8_t> key, std::span<const uint8_t> message) {
  uint8_t block[kBlock] = {};
  if (key.size() > kBlock) {
    const Md2Digest hashed = md2(key);
    std::memcpy(block, hashed.data(), hashed.size());
  } else {
    std::memcpy(block, key.data(), key.size());
  }
  std::vector<uint8_t> inner, outer;
  for (uint8_t byte : block) {
    inner.push_back(byte ^ 0x36);
    outer.push_back(byte ^ 0x5c);
  }
  inner.insert(inner.end(), message.begin(), message.end());
  const Md2Digest digest = md2(inner);
  outer.insert(outer.end(), digest.begin(), digest.end());
  return md2(outer);
}

}  // namespace rcuda::interop
