// Times and sizes as people write and read them, in settings, options and messages.
//
// Units of time: ns, us, ms, s, m (or min), h, d, w. Units of size: K, M, G, T (also KB, KiB, ...),
// all powers of 1024. Case does not matter, and a blank may precede the unit. Pure functions; any
// thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rcuda {

// The longest time that parse_time() accepts: about a hundred years.
inline constexpr std::chrono::hours kLongestTime{100 * 366 * 24};

// What a number without a unit means.
enum class BareNumber { kSeconds, kRefused };

// "80us", "10m", "2d". Returns nullopt for other texts, and for times above kLongestTime.
std::optional<std::chrono::nanoseconds> parse_time(std::string_view text,
                                                   BareNumber bare = BareNumber::kSeconds);
// "4096", "64M", "1.5G". Returns nullopt for other texts, and for sizes that do not fit 64 bits. A
// fraction of a byte is dropped.
std::optional<uint64_t> parse_bytes(std::string_view text);

// "10s", "90m", "2d": a whole number of the largest unit that fits. parse_time() returns the time.
std::string time_text(std::chrono::nanoseconds time);
// "64 MiB", "1.5 GiB", with four significant digits.
std::string bytes_text(uint64_t bytes);
// The same without rounding: parse_bytes() returns the size.
std::string exact_bytes_text(uint64_t bytes);

}  // namespace rcuda
