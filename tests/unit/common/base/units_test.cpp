#include "common/base/units.h"

#include <limits>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

namespace rcuda {
namespace {

using namespace std::chrono_literals;

TEST(Units, TimesAreRead) {
  const std::pair<const char*, std::chrono::nanoseconds> cases[] = {
      {"0", 0s},      {"7", 7s},         {"1s", 1s},          {"80us", 80us},
      {"3ns", 3ns},   {"250ms", 250ms},  {"2m", 2min},        {"5min", 5min},
      {"90m", 90min}, {"10 M", 10min},   {"2h", 2h},          {"2d", 48h},
      {"30d", 720h},  {"1.5h", 90min},   {"0.5", 500ms},      {"4.7 ms", 4700us},
      {"0.5ns", 0ns}, {"0.25 s", 250ms}, {"8w", 8 * 7 * 24h}, {"878400h", kLongestTime}};
  for (const auto& [text, time] : cases) EXPECT_EQ(parse_time(text), time) << text;
}

TEST(Units, OtherTextsAreNoTimes) {
  for (const char* text :
       {"", "s", "soon", "-1s", "1.h", ".5h", "1,5h", "never", "1y", "1 s ", " 1s", "878400.5h",
        "878401h", "1s1s", "99999999999999999999d", "0x10"}) {
    EXPECT_EQ(parse_time(text), std::nullopt) << text;
  }
}

TEST(Units, LivesAreRead) {
  const std::pair<const char*, std::optional<std::chrono::seconds>> cases[] = {
      {"never", 0s},         {"90m", 90min},
      {"30d", 720h},         {"12", 12s},
      {"1.5s", 2s},          {"1s", 1s},
      {"0", std::nullopt},   {"999ms", std::nullopt},
      {"ever", 0s},          {"Never", std::nullopt},
      {"", std::nullopt},    {"-1d", std::nullopt},
      {"100y", std::nullopt}};
  for (const auto& [text, life] : cases) EXPECT_EQ(parse_life(text), life) << text;
}

TEST(Units, MeasuredTimesArePrinted) {
  const std::pair<std::chrono::nanoseconds, const char*> cases[] = {
      {0ns, "0s"},        {7ns, "7ns"},      {1234ns, "1.2us"},      {99'960ns, "100us"},
      {999'999ns, "1ms"}, {4667us, "4.7ms"}, {123'456us, "123ms"},   {2s, "2s"},
      {90s, "90s"},       {115s, "115s"},    {150s, "2.5m"},         {3725s, "62.1m"},
      {30h, "30h"},       {100h, "4.2d"},    {24h * 12345, "12345d"}};
  for (const auto& [time, text] : cases) {
    EXPECT_EQ(rounded_time_text(time), text);
    EXPECT_TRUE(parse_time(text)) << text;
  }
}

TEST(Units, TimesArePrinted) {
  const std::pair<std::chrono::nanoseconds, const char*> cases[] = {
      {0s, "0s"},       {10s, "10s"},   {60s, "1m"},        {90s, "90s"},
      {90min, "90m"},   {2h, "2h"},     {48h, "2d"},        {7 * 24h, "7d"},
      {250ms, "250ms"}, {80us, "80us"}, {1500us, "1500us"}, {1s + 1ns, "1000000001ns"}};
  for (const auto& [time, text] : cases) {
    EXPECT_EQ(time_text(time), text);
    EXPECT_EQ(parse_time(text), time) << text;
  }
}

TEST(Units, SizesAreRead) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"4096", 4096},
      {"12B", 12},
      {"1k", 1024},
      {"64M", 64u << 20},
      {"64 MiB", 64u << 20},
      {"64mb", 64u << 20},
      {"1.5G", 3u << 29},
      {"1.5Gi", 3u << 29},
      {"64mi", 64u << 20},
      {"0.25T", 256ull << 30},
      {"0.1K", 102},
      {"16777215.999999T", (16777215ull << 40) + 1099510528264},
      {"18446744073709551615", std::numeric_limits<uint64_t>::max()}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_bytes(text), bytes) << text;
}

TEST(Units, OtherTextsAreNoSizes) {
  for (const char* text :
       {"", "M", "-1M", "1.5", "1.5B", "1.G", ".5G", "1.0000000001G", "12parsecs", "1,5G",
        "16777216T", "18446744073709551616", "1G ", "1GiBs", "1Bi", "1i"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(Units, SizesArePrinted) {
  struct Case {
    uint64_t bytes;
    const char* text;
    const char* exact;
  };
  for (const Case& c :
       {Case{0, "0 B", "0 B"}, Case{300, "300 B", "300 B"}, Case{65'536, "64 KiB", "64 KiB"},
        Case{64u << 20, "64 MiB", "64 MiB"}, Case{3u << 29, "1.5 GiB", "1.5 GiB"},
        Case{1100u << 20, "1.074 GiB", "1100 MiB"}, Case{4097, "4.001 KiB", "4097 B"},
        Case{5ull << 40, "5 TiB", "5 TiB"}, Case{1ull << 50, "1024 TiB", "1024 TiB"}}) {
    EXPECT_EQ(bytes_text(c.bytes), c.text);
    EXPECT_EQ(exact_bytes_text(c.bytes), c.exact);
    EXPECT_EQ(parse_bytes(c.exact), c.bytes);
  }
}

}  // namespace
}  // namespace rcuda
