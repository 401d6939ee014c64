#include "common/identity/encoding.h"

namespace rcuda::identity {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// Encodes bytes as hexadecimal or base64url. Each digit encodes `bits` bits, from the highest bit
// of the first byte on. The missing bits of the last digit are zero.
std::string encode(std::span<const uint8_t> bytes, std::string_view digits, unsigned bits) {
  std::string text;
  uint32_t held = 0;
  unsigned held_bits = 0;
  for (const uint8_t byte : bytes) {
    held = (held << 8) | byte;
    held_bits += 8;
    while (held_bits >= bits) {
      held_bits -= bits;
      text += digits[(held >> held_bits) & ((1u << bits) - 1)];
    }
  }
  if (held_bits > 0) text += digits[(held << (bits - held_bits)) & ((1u << bits) - 1)];
  return text;
}

bool decode(std::string_view text, std::string_view digits, unsigned bits,
            std::span<uint8_t> bytes) {
  if (text.size() != (bytes.size() * 8 + bits - 1) / bits) return false;
  uint32_t held = 0;
  unsigned held_bits = 0;
  size_t next = 0;
  for (const char c : text) {
    const size_t digit = digits.find(c);
    if (digit == std::string_view::npos) return false;
    held = (held << bits) | static_cast<uint32_t>(digit);
    held_bits += bits;
    if (held_bits >= 8) {
      held_bits -= 8;
      bytes[next++] = static_cast<uint8_t>(held >> held_bits);
    }
  }
  return (held & ((1u << held_bits) - 1)) == 0;
}

}  // namespace

std::string to_hex(std::span<const uint8_t> bytes) { return encode(bytes, kHexDigits, 4); }

bool from_hex(std::string_view text, std::span<uint8_t> bytes) {
  return decode(text, kHexDigits, 4, bytes);
}

std::string to_base64url(std::span<const uint8_t> bytes) { return encode(bytes, kBase64Digits, 6); }

bool from_base64url(std::string_view text, std::span<uint8_t> bytes) {
  return decode(text, kBase64Digits, 6, bytes);
}

}  // namespace rcuda::identity
