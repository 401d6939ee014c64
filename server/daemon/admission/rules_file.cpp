#include "server/daemon/admission/rules_file.h"

#include "common/identity/users.h"

namespace rcuda::server {

Result<Rules> read_rules(const Settings& settings) {
  if (settings.config_file.empty()) return Rules();
  return Rules::read(settings.config_file, {identity::user_id, identity::group_id});
}

}  // namespace rcuda::server
