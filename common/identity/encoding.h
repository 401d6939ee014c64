// Bytes as text: lower-case hexadecimal, and base64url without padding (RFC 4648).
//
// Decoding is strict: the caller knows the number of bytes, and decoding accepts only the text that
// encoding returns for these bytes. The functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rcuda::identity {

std::string to_hex(std::span<const uint8_t> bytes);
// Returns false if `text` does not encode exactly bytes.size() bytes; their content is then
// undefined.
bool from_hex(std::string_view text, std::span<uint8_t> bytes);

std::string to_base64url(std::span<const uint8_t> bytes);
bool from_base64url(std::string_view text, std::span<uint8_t> bytes);

}  // namespace rcuda::identity
