#include "common/base/units.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>

#include "common/base/lower.h"

namespace rcuda {
namespace {

constexpr const char* kSizeUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
constexpr int kShift = 10;  // from one size unit to the next

struct TimeUnit {
  const char* name;
  uint64_t ns;
  bool is_printed;
};
constexpr uint64_t kSecondNs = 1'000'000'000;
// In descending order.
constexpr TimeUnit kTimeUnits[] = {
    {"w", 604'800'000'000'000, false},
    {"d", 86'400'000'000'000, true},
    {"h", 3'600'000'000'000, true},
    {"m", 60'000'000'000, true},
    {"min", 60'000'000'000, false},
    {"s", kSecondNs, true},
    {"ms", 1'000'000, true},
    {"us", 1'000, true},
    {"ns", 1, true},
};

// Removes a whole number from the front of the text.
std::optional<uint64_t> take_number(std::string_view* text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc()) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return number;
}

// Removes a fraction such as ".5" from the front of the text. Returns it in units of 1e-9.
std::optional<uint64_t> take_fraction(std::string_view* text) {
  if (!text->starts_with('.')) return 0;
  text->remove_prefix(1);
  const std::string_view before = *text;
  std::optional<uint64_t> number = take_number(text);
  const size_t digits = before.size() - text->size();
  if (!number || digits > 9) return std::nullopt;
  for (size_t i = digits; i < 9; ++i) *number *= 10;
  return number;
}

std::string unit_of(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return lower(text);
}

// Returns the binary exponent of a unit of size (10 for KiB); nullopt if there is no such unit.
std::optional<int> shift_of(const std::string& unit) {
  if (unit.empty()) return 0;
  for (size_t i = 0; i < std::size(kSizeUnits); ++i) {
    const std::string full = lower(kSizeUnits[i]);
    const std::string letter = full.substr(0, 1);
    const bool short_form =
        i > 0 && (unit == letter || unit == letter + "b" || unit == letter + "i");
    if (unit == full || short_form) return kShift * static_cast<int>(i);
  }
  return std::nullopt;
}

// A number from the front of a text: the whole part, and the fraction in units of 1e-9.
struct Number {
  uint64_t whole = 0, billionths = 0;
  bool has_fraction = false;
};

std::optional<Number> take(std::string_view* text) {
  const std::optional<uint64_t> whole = take_number(text);
  if (!whole) return std::nullopt;
  const bool has_fraction = text->starts_with('.');
  const std::optional<uint64_t> billionths = take_fraction(text);
  if (!billionths) return std::nullopt;
  return Number{*whole, *billionths, has_fraction};
}

// Converts the number from `unit` to the smallest unit. The caller has checked that the result of
// the whole part fits.
uint64_t in_unit(const Number& number, uint64_t unit) {
  const auto part = static_cast<unsigned __int128>(number.billionths) * unit / 1'000'000'000;
  return number.whole * unit + static_cast<uint64_t>(part);
}

// Returns a text such as "1.5 GiB". `format`: the printf format of the number.
std::string size_text(const char* format, uint64_t bytes, size_t unit) {
  char text[40];
  std::snprintf(text, sizeof text, format,
                static_cast<double>(bytes) / static_cast<double>(uint64_t{1} << (kShift * unit)));
  return std::string(text) + " " + kSizeUnits[unit];
}

// Returns the index of the largest unit that is not larger than the size.
size_t size_unit(uint64_t bytes) {
  size_t unit = 0;
  while (unit + 1 < std::size(kSizeUnits) && bytes >> (kShift * (unit + 1)) != 0) ++unit;
  return unit;
}

}  // namespace

std::optional<std::chrono::nanoseconds> parse_time(std::string_view text) {
  const std::optional<Number> number = take(&text);
  if (!number) return std::nullopt;
  const std::string name = text.empty() ? "s" : unit_of(text);
  const auto* const unit = std::find_if(std::begin(kTimeUnits), std::end(kTimeUnits),
                                        [&](const TimeUnit& known) { return known.name == name; });
  constexpr auto kMost = static_cast<uint64_t>(std::chrono::nanoseconds(kLongestTime).count());
  if (unit == std::end(kTimeUnits) || number->whole > kMost / unit->ns) return std::nullopt;
  const uint64_t ns = in_unit(*number, unit->ns);
  if (ns > kMost) return std::nullopt;
  return std::chrono::nanoseconds(static_cast<int64_t>(ns));
}

std::optional<std::chrono::seconds> parse_life(std::string_view text) {
  if (text == "never" || text == "ever") return std::chrono::seconds(0);
  const auto time = parse_time(text);
  if (!time || *time < std::chrono::seconds(1)) return std::nullopt;
  return std::chrono::ceil<std::chrono::seconds>(*time);
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  const std::optional<Number> number = take(&text);
  const std::optional<int> shift = shift_of(unit_of(text));
  if (!number || !shift || (number->has_fraction && *shift == 0)) return std::nullopt;
  if (number->whole > std::numeric_limits<uint64_t>::max() >> *shift) return std::nullopt;
  return in_unit(*number, uint64_t{1} << *shift);
}

std::string time_text(std::chrono::nanoseconds time) {
  const auto ns = static_cast<uint64_t>(time.count());
  if (ns == 0) return "0s";
  const auto* const unit =
      std::find_if(std::begin(kTimeUnits), std::end(kTimeUnits),
                   [&](const TimeUnit& one) { return one.is_printed && ns % one.ns == 0; });
  return std::to_string(ns / unit->ns) + unit->name;
}

std::string rounded_time_text(std::chrono::nanoseconds time) {
  constexpr double kTenths = 10, kWholeFrom = 100;
  for (const TimeUnit& unit : kTimeUnits) {
    const double number = static_cast<double>(time.count()) / static_cast<double>(unit.ns);
    const double tenths = number < kWholeFrom ? kTenths : 1;
    const double rounded = std::round(number * tenths) / tenths;
    if (!unit.is_printed || rounded < (unit.ns > kSecondNs ? 2 : 1)) continue;
    char text[40];
    std::snprintf(text, sizeof text, "%.15g", rounded);
    return std::string(text) + unit.name;
  }
  return "0s";
}

std::string microseconds_text(double us) {
  return rounded_time_text(std::chrono::nanoseconds(std::llround(us * 1000)));
}

std::string bytes_text(uint64_t bytes) { return size_text("%.4g", bytes, size_unit(bytes)); }

std::string exact_bytes_text(uint64_t bytes) {
  for (size_t unit = size_unit(bytes); unit > 0; --unit) {
    const std::string text = size_text("%.10g", bytes, unit);
    if (text.size() <= std::string_view("1023.999 MiB").size() && parse_bytes(text) == bytes) {
      return text;
    }
  }
  return std::to_string(bytes) + " B";
}

}  // namespace rcuda
