#include "common/reach/trusted_users.h"

#include <algorithm>
#include <utility>

#include "common/base/list_text.h"
#include "common/identity/users.h"

namespace rcuda::wire {

bool TrustedUsers::parse(std::string_view text) {
  std::vector<uid_t> users;
  // Uses no string stream, because that would register an exit handler in the program.
  for (size_t at = 0; !text.empty() && at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string word(text.substr(at, comma - at));
    at = comma + 1;
    const size_t first = word.find_first_not_of(' ');
    if (first == std::string::npos) return false;
    const Result<uid_t> user =
        identity::user_id(word.substr(first, word.find_last_not_of(' ') + 1 - first));
    if (!user.ok()) return false;
    users.push_back(*user);
  }
  users_ = std::move(users);
  return true;
}

std::string TrustedUsers::text() const { return comma_list(users_); }

Status check_trust(const std::string& what, uid_t server, uid_t client,
                   const std::vector<uid_t>& named) {
  if (server == client || server == 0) return {};
  if (std::find(named.begin(), named.end(), server) != named.end()) return {};
  return Status(Code::kDenied,
                what + " runs as " + identity::user_and_number(server) + ", and a program of " +
                    identity::user_and_number(client) +
                    (client == 0 ? " uses only servers of root"
                                 : " uses only servers of its own user and of root") +
                    ": run the program as the server's user, start a server of your own "
                    "(rcuda-server --port PORT), or, if you trust the server's user, set "
                    "RCUDA_TRUST_USER=" +
                    std::to_string(server));
}

}  // namespace rcuda::wire
