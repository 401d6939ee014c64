#include "p2p/plan/settings.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "common/base/units.h"

namespace rcuda::p2p {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kAnySize = UINT64_MAX;

// The numbers of v4 and the threshold of the hybrid are the published values. v2 and v3 were
// published with fixed buffers but without their sizes; the sizes here are our choice.
constexpr Chunking kSingle{1 * kMiB, 1};
constexpr Chunking kFixed{512 * kKiB, 4};
constexpr SizeRule kV1[] = {{kAnySize, Staging::kRegistered, {}}};
constexpr SizeRule kV2a[] = {{kAnySize, Staging::kDevice, kSingle}};
constexpr SizeRule kV2b[] = {{kAnySize, Staging::kHost, kSingle}};
constexpr SizeRule kV3a[] = {{kAnySize, Staging::kDevice, kFixed}};
constexpr SizeRule kV3b[] = {{kAnySize, Staging::kHost, kFixed}};
constexpr SizeRule kV4a[] = {{700 * kKiB, Staging::kDevice, {1 * kMiB, 2}},
                             {4 * kMiB, Staging::kDevice, {512 * kKiB, 2}},
                             {kAnySize, Staging::kDevice, {256 * kKiB, 16}}};
// The hybrid is v4a up to 200 KB, v4b above.
constexpr SizeRule kHybrid[] = {{200 * 1000, Staging::kDevice, {1 * kMiB, 2}},
                                {600 * kKiB, Staging::kHost, {128 * kKiB, 8}},
                                {4 * kMiB, Staging::kHost, {256 * kKiB, 8}},
                                {14 * kMiB, Staging::kHost, {512 * kKiB, 4}},
                                {kAnySize, Staging::kHost, {1 * kMiB, 4}}};
constexpr std::span<const SizeRule> kV4b = std::span(kHybrid).subspan(1);
constexpr SizeRule kIpc[] = {{kAnySize, Staging::kMapped, {}}};

struct Strategy {
  std::string_view name;
  std::span<const SizeRule> rules;
  std::span<const SizeRule> host_rules;
};
constexpr Strategy kStrategies[] = {
    {"v1", kV1, kV2b},        {"v2a", kV2a, kV2b}, {"v2b", kV2b, kV2b}, {"v3a", kV3a, kV3b},
    {"v3b", kV3b, kV3b},      {"v4a", kV4a, kV4b}, {"v4b", kV4b, kV4b}, {"hybrid", kHybrid, kV4b},
    {"paper", kHybrid, kV4b}, {"ipc", kIpc, kV4b},
};

// Parses a chunking such as "256Kx8": chunk size, then depth.
std::optional<Chunking> parse_chunking(std::string_view text) {
  const size_t times = text.find('x');
  if (times == std::string_view::npos) return std::nullopt;
  const std::optional<uint64_t> chunk = parse_bytes(text.substr(0, times));
  const std::optional<uint64_t> depth = parse_bytes(text.substr(times + 1));
  if (!chunk || !depth || *chunk == 0 || *depth == 0 || *depth > 1024) return std::nullopt;
  return Chunking{*chunk, static_cast<uint32_t>(*depth)};
}

bool parse_strategy(std::string_view text, PlannerOptions* options) {
  if (text.empty() || text == "auto") return true;
  const size_t colon = text.find(':');
  const auto* const found =
      std::find_if(std::begin(kStrategies), std::end(kStrategies),
                   [&](const Strategy& each) { return each.name == text.substr(0, colon); });
  if (found == std::end(kStrategies)) return false;
  options->rules = found->rules;
  options->host_rules = found->host_rules;
  if (colon == std::string_view::npos) return true;
  options->chunking = parse_chunking(text.substr(colon + 1));
  return options->chunking.has_value();
}

bool parse_path(std::string_view text, PlannerOptions* options) {
  if (text.empty() || text == "auto") return true;
  if (text == to_string(Route::kIpc)) {  // works only within one machine
    options->medium = &transport::plain_medium(transport::Reach::kThisMachine);
    options->route = Route::kIpc;
    return true;
  }
  options->medium = transport::find_medium(text);
  if (options->medium) options->route = route_of(options->medium->traits);
  return options->medium != nullptr;
}

}  // namespace

std::span<const SizeRule> host_rules() { return kV4b; }

Result<PlannerOptions> parse_planner_options(std::string_view strategy, std::string_view path) {
  PlannerOptions options;
  if (!parse_strategy(strategy, &options)) {
    std::string names;
    for (const Strategy& each : kStrategies) names += std::string(each.name) + ", ";
    return Status(Code::kInvalidArgument,
                  "RCUDA_P2P_STRATEGY=\"" + std::string(strategy) +
                      "\" is not a strategy: use auto, " + names +
                      "or a strategy with chunk size and depth, for example v4b:256Kx8");
  }
  if (!parse_path(path, &options)) {
    return Status(Code::kInvalidArgument, "RCUDA_P2P_PATH=\"" + std::string(path) +
                                              "\" is not a path: use auto, ipc, " +
                                              transport::medium_names());
  }
  return options;
}

}  // namespace rcuda::p2p
