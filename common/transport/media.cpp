#include "common/transport/media.h"

#include <cstdlib>

#include "common/base/log.h"

namespace rcuda::transport {

const Medium* find_medium(std::string_view name) {
  for (const Medium& medium : media()) {
    if (name == medium.name()) return &medium;
  }
  return nullptr;
}

const Medium& plain_medium(Reach reach) {
  for (const Medium& medium : media()) {
    if (medium.traits.reach == reach && !medium.usable_over) return medium;
  }
  RCUDA_ERROR("the table of media has no medium that needs only a socket");
  std::abort();
}

const Medium& best_medium(Reach reach, int control_socket) {
  const Medium* best = nullptr;
  for (const Medium& medium : media()) {
    if (medium.traits.reach == reach && medium.usable(control_socket).ok()) best = &medium;
  }
  return best ? *best : plain_medium(reach);
}

std::string medium_names(std::optional<Reach> reach) {
  std::string names;
  const char* last = nullptr;
  for (const Medium& medium : media()) {
    if (reach && medium.traits.reach != *reach) continue;
    if (last) names += (names.empty() ? "" : ", ") + std::string(last);
    last = medium.name();
  }
  return names.empty() ? last : names + " or " + last;
}

Result<std::unique_ptr<Link>> make_link(const Medium& medium, Bootstrap bootstrap,
                                        const LinkOptions& options) {
  return medium.make(std::move(bootstrap), options);
}

}  // namespace rcuda::transport
