#include "server/identity/roles.h"

#include <algorithm>
#include <array>
#include <optional>

#include "common/base/list_text.h"

namespace rcuda::server {
namespace {

struct Name {
  std::string_view text;
  Role role;
};
constexpr std::array kNames{Name{"session", Role::kSession}, Name{"observer", Role::kObserver},
                            Name{"operator", Role::kOperator}};

}  // namespace

Result<Roles> Roles::parse(std::string_view text) {
  std::optional<Roles> roles;
  while (true) {
    const std::string_view word = text.substr(0, text.find(','));
    const auto* const name = std::find_if(kNames.begin(), kNames.end(),
                                          [&](const Name& known) { return known.text == word; });
    if (name == kNames.end()) {
      return Status(Code::kInvalidArgument, "\"" + std::string(word) +
                                                "\" is not a role: the roles are session, observer "
                                                "and operator");
    }
    if (!roles) roles = Roles(name->role);
    roles->add(name->role);
    if (word.size() == text.size()) return *roles;
    text.remove_prefix(word.size() + 1);
  }
}

std::string Roles::text() const {
  std::string all;
  for (const Name& name : kNames) {
    if (has(name.role)) append_item(&all, name.text, ",");
  }
  return all;
}

}  // namespace rcuda::server
