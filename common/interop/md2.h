// MD2 (RFC 1319) and HMAC-MD2 (RFC 2104), with which NVIDIA's runtime signs its integrity check.
// MD2 is broken as a hash; nothing else may use it. OpenSSL is usually built without it. Pure
// functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace rcuda::interop {

using Md2Digest = std::array<uint8_t, 16>;

Md2Digest md2(std::span<const uint8_t> message);
Md2Digest hmac_md2(std::span<const uint8_t> key, std::span<const uint8_t> message);

}  // namespace rcuda::interop
