// TrustedUsers: the setting RCUDA_TRUST_USER, and the users whose servers a client uses. A server
// receives the client's data and decides what its calls return, so a client does not use the
// servers of arbitrary users. docs/security.md describes the rule.
//
// Threads: as other settings (common/config/settings.h). Blocking: set(), and check_trust() if it
// refuses the server: both look up users in the user database, which may be on the network.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/config/settings.h"

namespace rcuda::wire {

class TrustedUsers : public config::SettingBase {
 public:
  explicit TrustedUsers(config::Registry& registry)
      : SettingBase(registry, "RCUDA_TRUST_USER",
                    "users, other than root and the program's own user, whose servers the "
                    "program may use") {}

  const std::vector<uid_t>& get() const { return users_; }
  std::string text() const override;
  std::string accepted() const override {
    return "names or numbers of users of this machine, separated by commas";
  }

 protected:
  bool parse(std::string_view text) override;

 private:
  std::vector<uid_t> users_;
};

// Accepts the user `server` if it is `client` itself, root, or in `named`. Otherwise returns
// kDenied with the remedy. The rule also holds if the client is root. `what`: the server's name,
// for the error.
Status check_trust(const std::string& what, uid_t server, uid_t client,
                   const std::vector<uid_t>& named);

}  // namespace rcuda::wire
