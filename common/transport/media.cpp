#include "common/transport/media.h"

#include <cstdlib>

#include "common/base/list_text.h"
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
  RCUDA_ERROR(
      "internal error: no medium for %s works with every socket; the process aborts. Please report "
      "this error",
      reach == Reach::kNetwork ? "the network" : "this machine");
  std::abort();
}

Status Medium::suits(int control_socket, const std::string& encrypts_because) const {
  if (traits.moves_in_clear && !encrypts_because.empty()) {
    return {Code::kUnsupported, std::string(name()) + " does not encrypt, and " + encrypts_because};
  }
  if (fit_host) RCUDA_RETURN_IF_ERROR(fit_host());
  return usable(control_socket);
}

Choice best_medium(Reach reach, int control_socket, const std::string& encrypts_because) {
  Choice choice{&plain_medium(reach), {}};
  for (const Medium& medium : media()) {
    if (medium.traits.reach != reach) continue;
    const Status suits = medium.suits(control_socket, encrypts_because);
    if (suits.ok()) {
      choice = {&medium, {}};
    } else {
      append_item(&choice.why, suits.context(), "; ");
    }
  }
  return choice;
}

std::string medium_names(std::optional<Reach> reach) {
  std::string names;
  const char* last = nullptr;
  for (const Medium& medium : media()) {
    if (reach && medium.traits.reach != *reach) continue;
    if (last) append_item(&names, last);
    last = medium.name();
  }
  return names.empty() ? last : names + " or " + last;
}

Result<std::unique_ptr<Link>> make_link(const Medium& medium, Bootstrap bootstrap,
                                        const LinkOptions& options) {
  return medium.make(std::move(bootstrap), options);
}

}  // namespace rcuda::transport
