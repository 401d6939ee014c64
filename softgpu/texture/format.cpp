#include "softgpu/texture/format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace softgpu::texture {
namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A channel's bits, zero- or sign-extended.
uint32_t extended(const Format& format, const std::byte* at) {
  const bool is_signed = format.numbers == Numbers::kSigned;
  switch (format.channel_bytes) {
    case 1:
      return is_signed ? static_cast<uint32_t>(load<int8_t>(at)) : load<uint8_t>(at);
    case 2:
      return is_signed ? static_cast<uint32_t>(load<int16_t>(at)) : load<uint16_t>(at);
    default:
      return load<uint32_t>(at);
  }
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::bit_cast<float>((exponent + 112) << 23 | fraction << 13);
  return sign != 0 ? -magnitude : magnitude;
}

// The greatest value of an integer channel. It represents 1.
double greatest(const Format& format) {
  const uint32_t unsigned_greatest = (uint32_t{1} << (8 * format.channel_bytes)) - 1;
  return format.numbers == Numbers::kUnsigned ? unsigned_greatest : unsigned_greatest >> 1;
}

float normalised(const Format& format, uint32_t bits) {
  const double value = format.numbers == Numbers::kUnsigned
                           ? static_cast<double>(bits)
                           : static_cast<double>(static_cast<int32_t>(bits));
  return static_cast<float>(value / greatest(format));
}

float linear_of_srgb(float encoded) {
  const double value = static_cast<double>(encoded);
  return static_cast<float>(value <= 0.04045 ? value / 12.92
                                             : std::pow((value + 0.055) / 1.055, 2.4));
}

float float_of(const Format& format, const std::byte* at) {
  if (format.numbers != Numbers::kFloat) return normalised(format, extended(format, at));
  return format.channel_bytes == 2 ? half_to_float(load<uint16_t>(at)) : load<float>(at);
}

// A channel of a border color as the format can represent it. Integers are rounded, halves are
// truncated.
float representable(const Format& format, float value) {
  if (format.numbers == Numbers::kFloat) {
    constexpr uint32_t kBitsOfHalf = ~uint32_t{0x1fff};
    if (format.channel_bytes == 4) return value;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & kBitsOfHalf);
  }
  const float inside = std::clamp(value, format.numbers == Numbers::kUnsigned ? 0.0f : -1.0f, 1.0f);
  const float scaled = inside * static_cast<float>(greatest(format));
  const double whole = std::ceil(static_cast<double>(scaled) - 0.5) + 0.0;  // no negative zero
  return static_cast<float>(whole / greatest(format));
}

struct FixedFormat {
  CUarray_format format;
  Format is;
};
// Formats whose name says the number of channels.
constexpr FixedFormat kFixed[] = {
    {CU_AD_FORMAT_UNORM_INT8X1, {Numbers::kUnsigned, 1, 1, true}},
    {CU_AD_FORMAT_UNORM_INT8X2, {Numbers::kUnsigned, 1, 2, true}},
    {CU_AD_FORMAT_UNORM_INT8X4, {Numbers::kUnsigned, 1, 4, true}},
    {CU_AD_FORMAT_UNORM_INT16X1, {Numbers::kUnsigned, 2, 1, true}},
    {CU_AD_FORMAT_UNORM_INT16X2, {Numbers::kUnsigned, 2, 2, true}},
    {CU_AD_FORMAT_UNORM_INT16X4, {Numbers::kUnsigned, 2, 4, true}},
    {CU_AD_FORMAT_SNORM_INT8X1, {Numbers::kSigned, 1, 1, true}},
    {CU_AD_FORMAT_SNORM_INT8X2, {Numbers::kSigned, 1, 2, true}},
    {CU_AD_FORMAT_SNORM_INT8X4, {Numbers::kSigned, 1, 4, true}},
    {CU_AD_FORMAT_SNORM_INT16X1, {Numbers::kSigned, 2, 1, true}},
    {CU_AD_FORMAT_SNORM_INT16X2, {Numbers::kSigned, 2, 2, true}},
    {CU_AD_FORMAT_SNORM_INT16X4, {Numbers::kSigned, 2, 4, true}},
};

std::optional<Format> basic_format(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
      return Format{Numbers::kUnsigned, 1};
    case CU_AD_FORMAT_UNSIGNED_INT16:
      return Format{Numbers::kUnsigned, 2};
    case CU_AD_FORMAT_UNSIGNED_INT32:
      return Format{Numbers::kUnsigned, 4};
    case CU_AD_FORMAT_SIGNED_INT8:
      return Format{Numbers::kSigned, 1};
    case CU_AD_FORMAT_SIGNED_INT16:
      return Format{Numbers::kSigned, 2};
    case CU_AD_FORMAT_SIGNED_INT32:
      return Format{Numbers::kSigned, 4};
    case CU_AD_FORMAT_HALF:
      return Format{Numbers::kFloat, 2};
    case CU_AD_FORMAT_FLOAT:
      return Format{Numbers::kFloat, 4};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Format> format_of(CUarray_format format, unsigned channels) {
  if (channels != 1 && channels != 2 && channels != 4) return std::nullopt;
  for (const FixedFormat& fixed : kFixed) {
    if (fixed.format != format) continue;
    return fixed.is.channels == channels ? std::optional(fixed.is) : std::nullopt;
  }
  std::optional<Format> basic = basic_format(format);
  if (basic) basic->channels = static_cast<uint8_t>(channels);
  return basic;
}

// The plain view formats come in groups of three: one, two and four channels.
std::optional<Format> format_of(CUresourceViewFormat format) {
  constexpr CUarray_format kGroups[] = {
      CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_SIGNED_INT8,    CU_AD_FORMAT_UNSIGNED_INT16,
      CU_AD_FORMAT_SIGNED_INT16,  CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32,
      CU_AD_FORMAT_HALF,          CU_AD_FORMAT_FLOAT,
  };
  static_assert(CU_RES_VIEW_FORMAT_UINT_1X8 == 1 && CU_RES_VIEW_FORMAT_FLOAT_4X32 == 24);
  if (format < CU_RES_VIEW_FORMAT_UINT_1X8 || format > CU_RES_VIEW_FORMAT_FLOAT_4X32) {
    return std::nullopt;
  }
  const unsigned at = static_cast<unsigned>(format) - CU_RES_VIEW_FORMAT_UINT_1X8;
  return format_of(kGroups[at / 3], 1u << at % 3);
}

Words integers_of(const Format& format, const std::byte* texel) {
  Words words = {};
  for (uint32_t c = 0; c < format.channels; ++c) {
    words[c] = extended(format, texel + c * format.channel_bytes);
  }
  return words;
}

Color floats_of(const Format& format, bool srgb, const std::byte* texel) {
  Color color = {};
  for (uint32_t c = 0; c < format.channels; ++c) {
    color[c] = float_of(format, texel + c * format.channel_bytes);
    if (srgb && c < 3) color[c] = linear_of_srgb(color[c]);
  }
  return color;
}

Color limited(const Format& format, Color color) {
  if (format.numbers == Numbers::kSigned) {
    for (float& channel : color) channel = std::max(channel, -1.0f);
  }
  return color;
}

Color filtered(const Format& format, bool srgb, const std::array<double, 4>& sum) {
  const double steps = format.numbers == Numbers::kUnsigned ? 65535 : 32767;
  constexpr double kHalf = 0.5 + 0x1p-10;  // the sum of rounded floats may be just below a half
  Color color;
  for (size_t c = 0; c < color.size(); ++c) {
    const bool is_rounded = format.numbers != Numbers::kFloat && (!srgb || c == 3);
    color[c] = static_cast<float>(is_rounded ? std::floor(sum[c] * steps + kHalf) / steps : sum[c]);
  }
  return limited(format, color);
}

Words words_of(const Color& color) { return std::bit_cast<Words>(color); }

Words border_words(const Format& format, bool reads_integers, const Color& border) {
  Words words = {};
  for (uint32_t c = 0; c < format.channels; ++c) {
    if (reads_integers) {
      const auto bits = std::bit_cast<uint32_t>(border[c]);
      std::byte low[sizeof bits];
      std::memcpy(low, &bits, sizeof bits);
      words[c] = extended(format, low);
    } else {
      words[c] = std::bit_cast<uint32_t>(representable(format, border[c]));
    }
  }
  return words;
}

}  // namespace softgpu::texture
