#include "p2p/plan/strategy.h"

#include <charconv>
#include <cstdio>
#include <span>

namespace rcuda::p2p {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

struct PaperRow {
  uint64_t above_bytes;  // the row holds for copies larger than this
  Chunking chunking;
};

// Largest first. The last row holds for all other sizes.
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

constexpr std::array<PaperRow, 1> kPaperV2Rows{{{0, kPaperV2}}};
constexpr std::array<PaperRow, 1> kPaperV3Rows{{{0, kPaperV3}}};

// All properties of a strategy. A new strategy needs a row here and a name in the enum.
struct StrategyRow {
  Strategy strategy;
  const char* name;
  Staging staging;
  Strategy in_host_memory;           // see host_counterpart()
  std::span<const PaperRow> pieces;  // empty: the whole copy at once
};
constexpr std::array<StrategyRow, kStrategies.size()> kTable{{
    {Strategy::kV1, "v1", Staging::kRegistered, Strategy::kV2b, {}},
    {Strategy::kV2a, "v2a", Staging::kDevice, Strategy::kV2b, kPaperV2Rows},
    {Strategy::kV2b, "v2b", Staging::kHost, Strategy::kV2b, kPaperV2Rows},
    {Strategy::kV3a, "v3a", Staging::kDevice, Strategy::kV3b, kPaperV3Rows},
    {Strategy::kV3b, "v3b", Staging::kHost, Strategy::kV3b, kPaperV3Rows},
    {Strategy::kV4a, "v4a", Staging::kDevice, Strategy::kV4b, kPaperV4a},
    {Strategy::kV4b, "v4b", Staging::kHost, Strategy::kV4b, kPaperV4b},
    {Strategy::kIpc, "ipc", Staging::kMapped, Strategy::kV4b, {}},
}};
constexpr bool in_enum_order() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].strategy != kStrategies[i] || static_cast<size_t>(kStrategies[i]) != i) {
      return false;
    }
  }
  return true;
}
static_assert(in_enum_order());

const StrategyRow& row(Strategy strategy) { return kTable.at(static_cast<size_t>(strategy)); }

}  // namespace

const char* to_string(Strategy strategy) { return row(strategy).name; }

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

Staging staging_of(Strategy strategy) { return row(strategy).staging; }

Strategy host_counterpart(Strategy strategy) { return row(strategy).in_host_memory; }

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
  const std::span<const PaperRow> pieces = row(strategy).pieces;
  if (pieces.empty()) return {bytes, 1};
  for (const PaperRow& piece : pieces) {
    if (bytes > piece.above_bytes) return piece.chunking;
  }
  return pieces.back().chunking;
}

Strategy paper_hybrid(uint64_t bytes) {
  return bytes <= kPaperHybridThresholdBytes ? Strategy::kV4a : Strategy::kV4b;
}

}  // namespace rcuda::p2p
