#include "p2p/plan/without.h"

#include <algorithm>
#include <cstdlib>

#include "common/base/log.h"

namespace rcuda::p2p {

std::optional<Without> parse_without(std::string_view list) {
  constexpr struct {
    std::string_view name;
    bool Without::*mechanism;
  } kNames[] = {{"persisted", &Without::persisted}, {"prober", &Without::prober}};
  Without without;
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), name.size() + 1));
    const auto* const found = std::find_if(std::begin(kNames), std::end(kNames),
                                           [&](const auto& entry) { return entry.name == name; });
    if (found == std::end(kNames)) return std::nullopt;
    without.*found->mechanism = true;
  }
  return without;
}

const Without& without() {
  static const Without kWithout = [] {
    const char* const list = ::secure_getenv("RCUDA_P2P_WITHOUT");
    const std::optional<Without> parsed = parse_without(list ? list : "");
    if (!parsed) {
      RCUDA_ERROR(
          "RCUDA_P2P_WITHOUT is \"%s\" and turns nothing off; it may be a list of "
          "persisted and prober",
          list);
    }
    return parsed.value_or(Without{});
  }();
  return kWithout;
}

}  // namespace rcuda::p2p
