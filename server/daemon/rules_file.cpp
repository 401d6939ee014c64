#include "server/daemon/rules_file.h"

#include "server/auth/users.h"

namespace rcuda::server {

Result<Rules> read_rules(const Settings& settings) {
  if (settings.config_file.empty()) return Rules();
  return Rules::read(settings.config_file, {user_id, group_id});
}

}  // namespace rcuda::server
