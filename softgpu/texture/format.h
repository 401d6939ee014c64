// Texel formats: their size, and how the bytes of one texel become the values that a kernel gets.
//
// A texel has one, two or four channels; channels that it lacks are read as 0. Block-compressed,
// planar and packed formats are not supported. Pure functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <cuda.h>

namespace softgpu::texture {

enum class Numbers : uint8_t { kUnsigned, kSigned, kFloat };

struct Format {
  Numbers numbers = Numbers::kUnsigned;
  uint8_t channel_bytes = 1;
  uint8_t channels = 1;
  bool is_normalised = false;  // UNORM and SNORM formats: always read as floats

  uint32_t texel_bytes() const { return uint32_t{channel_bytes} * channels; }
  bool operator==(const Format&) const = default;
};

// No value if the format is unknown or does not have this number of channels.
std::optional<Format> format_of(CUarray_format format, unsigned channels);
// No value for NONE and the block-compressed formats.
std::optional<Format> format_of(CUresourceViewFormat format);

// The four 32-bit registers that a read returns, with the bits of integers or floats.
using Words = std::array<uint32_t, 4>;
using Color = std::array<float, 4>;

// The channels of an integer texel, extended to 32 bits.
Words integers_of(const Format& format, const std::byte* texel);
// The channels as floats. Channels of an integer format are divided by their greatest value.
// `srgb` converts red, green and blue of 8-bit unsigned channels to linear.
Color floats_of(const Format& format, bool srgb, const std::byte* texel);
// Raises values below -1 to -1: the least value of a signed integer format lies one step below -1.
Color limited(const Format& format, Color color);
// The result of a filter. As on an H100, channels of integer formats are rounded to 16 bits, except
// for those that were sRGB.
Color filtered(const Format& format, bool srgb, const std::array<double, 4>& sum);

Words words_of(const Color& color);

// The border color in the texture's format: the result of a read outside of the texture in border
// mode. Integers are the lowest bits of the color's words.
Words border_words(const Format& format, bool reads_integers, const Color& border);

}  // namespace softgpu::texture
