#include "p2p/planner/strategy.h"

#include <charconv>
#include <cstdio>

namespace rcuda::p2p {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

struct PaperRow {
  uint64_t above_bytes;  // the row holds for copies larger than this
  Chunking chunking;
};

// Largest first; the last row holds for everything.
constexpr std::array<PaperRow, 3> kPaperV4a{{
    {4 * kMiB, {256 * kKiB, 16}},
    {700 * kKiB, {512 * kKiB, 2}},
    {0, {1 * kMiB, 2}},
}};
constexpr std::array<PaperRow, 4> kPaperV4b{{
    {14 * kMiB, {1 * kMiB, 4}},
    {4 * kMiB, {512 * kKiB, 4}},
    {600 * kKiB, {256 * kKiB, 8}},
    {0, {128 * kKiB, 8}},
}};

template <size_t N>
Chunking look_up(const std::array<PaperRow, N>& rows, uint64_t bytes) {
  for (const PaperRow& row : rows) {
    if (bytes > row.above_bytes) return row.chunking;
  }
  return rows.back().chunking;
}

}  // namespace

const char* to_string(Strategy strategy) {
  switch (strategy) {
    case Strategy::kV1:
      return "v1";
    case Strategy::kV2a:
      return "v2a";
    case Strategy::kV2b:
      return "v2b";
    case Strategy::kV3a:
      return "v3a";
    case Strategy::kV3b:
      return "v3b";
    case Strategy::kV4a:
      return "v4a";
    case Strategy::kV4b:
      return "v4b";
    case Strategy::kIpc:
      return "ipc";
  }
  return "?";
}

const char* to_string(Route route) {
  switch (route) {
    case Route::kShm:
      return "shm";
    case Route::kTcp:
      return "tcp";
    case Route::kVerbs:
      return "verbs";
    case Route::kIpc:
      return "ipc";
  }
  return "?";
}

std::optional<Strategy> parse_strategy(std::string_view name) {
  for (Strategy strategy : kStrategies) {
    if (name == to_string(strategy)) return strategy;
  }
  return std::nullopt;
}

Route route_of(const transport::MediumTraits& traits) {
  if (traits.shares_pages) return Route::kShm;
  return traits.has_adapter ? Route::kVerbs : Route::kTcp;
}

Staging staging_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::kV1:
    case Strategy::kIpc:
      return Staging::kNone;
    case Strategy::kV2a:
    case Strategy::kV3a:
    case Strategy::kV4a:
      return Staging::kDevice;
    case Strategy::kV2b:
    case Strategy::kV3b:
    case Strategy::kV4b:
      return Staging::kHost;
  }
  return Staging::kHost;
}

Strategy host_counterpart(Strategy strategy) {
  switch (strategy) {
    case Strategy::kV1:
    case Strategy::kV2a:
      return Strategy::kV2b;
    case Strategy::kV3a:
      return Strategy::kV3b;
    case Strategy::kV4a:
    case Strategy::kIpc:
      return Strategy::kV4b;
    default:
      return strategy;
  }
}

std::string bytes_text(uint64_t bytes) {
  char text[32];
  const auto value = static_cast<double>(bytes);
  if (bytes < kKiB) {
    std::snprintf(text, sizeof text, "%llu B", static_cast<unsigned long long>(bytes));
  } else if (bytes < kMiB) {
    std::snprintf(text, sizeof text, "%.4g KB", value / static_cast<double>(kKiB));
  } else {
    std::snprintf(text, sizeof text, "%.4g MB", value / static_cast<double>(kMiB));
  }
  return text;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  unsigned shift = 0;
  if (unit == "K" || unit == "k") {
    shift = 10;
  } else if (unit == "M" || unit == "m") {
    shift = 20;
  } else if (unit == "G" || unit == "g") {
    shift = 30;
  } else if (!unit.empty()) {
    return std::nullopt;
  }
  if (value > (UINT64_MAX >> shift)) return std::nullopt;
  return value << shift;
}

std::string to_string(const Plan& plan) {
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, " over %s, %u x %s, ", to_string(plan.route),
                plan.chunking.depth, bytes_text(plan.chunking.chunk_bytes).c_str());
  std::string text = std::string(to_string(plan.strategy)) + numbers;
  if (plan.predicted_us > 0) {
    std::snprintf(numbers, sizeof numbers, "%.1f us predicted: ", plan.predicted_us);
    text += numbers;
  }
  return text + plan.reason;
}

Chunking paper_chunking(Strategy strategy, uint64_t bytes) {
  switch (strategy) {
    case Strategy::kV1:
    case Strategy::kIpc:
      return {bytes, 1};
    case Strategy::kV2a:
    case Strategy::kV2b:
      return kPaperV2;
    case Strategy::kV3a:
    case Strategy::kV3b:
      return kPaperV3;
    case Strategy::kV4a:
      return look_up(kPaperV4a, bytes);
    case Strategy::kV4b:
      return look_up(kPaperV4b, bytes);
  }
  return kPaperV3;
}

Strategy paper_hybrid(uint64_t bytes) {
  return bytes <= kPaperHybridThresholdBytes ? Strategy::kV4a : Strategy::kV4b;
}

}  // namespace rcuda::p2p
