// Times and sizes as people write and read them, in settings, options, files and messages. No other
// code parses or prints them.
//
// Units of time: ns, us, ms, s, m (or min), h, d, w; a number without a unit is in seconds. Units
// of size: K, M, G, T (also KB, KiB, ...), all powers of 1024; a number without a unit is in bytes.
// Numbers may have a fraction. Case does not matter, and a blank may precede the unit.
//
// Exceptions: errors of a protocol have exact counts of bytes ("37 bytes"), and rates of media and
// of copies are in GB/s, as adapters state them.
// Pure functions; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rcuda {

// The longest time that parse_time() accepts: about a hundred years.
inline constexpr std::chrono::hours kLongestTime{100 * 366 * 24};

// Parses "80us", "10m", "1.5h", "2d". Returns nullopt for other texts, and for times above
// kLongestTime. A fraction of a nanosecond is dropped.
std::optional<std::chrono::nanoseconds> parse_time(std::string_view text);
// Parses the lifetime of a token or a lease. "never" (it does not end) becomes 0, as does "ever",
// an older spelling. A time of a second or more becomes whole seconds, rounded up. Returns nullopt
// for other texts.
std::optional<std::chrono::seconds> parse_life(std::string_view text);
inline constexpr char kLifeForms[] = "a time from now such as 90m, 12h, 30d or 8w, or never";
// Parses "4096", "64M", "1.5G". Returns nullopt for other texts, for a fraction without K, M, G or
// T, and for sizes that do not fit 64 bits. A remaining fraction of a byte is dropped.
std::optional<uint64_t> parse_bytes(std::string_view text);

// Returns a text such as "10s", "90m" or "2d", in the largest unit up to days that divides the
// time. parse_time() of the text returns the same time.
std::string time_text(std::chrono::nanoseconds time);
// Returns a measured time in the largest unit in which the number is at least 1 (for minutes and
// longer units: at least 2). Rounds a number below 100 to tenths, a larger number to a whole
// number. "4.7ms", "12s", "90s", "2.5h".
std::string rounded_time_text(std::chrono::nanoseconds time);
std::string microseconds_text(double us);
// Returns a text such as "64 MiB" or "1.5 GiB", rounded to four significant digits.
std::string bytes_text(uint64_t bytes);
// As bytes_text(), but not rounded: parse_bytes() of the text returns the same size.
std::string exact_bytes_text(uint64_t bytes);

}  // namespace rcuda
