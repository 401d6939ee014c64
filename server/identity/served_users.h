// ServedUsers: a set of users and groups: a server's own user, root, and the users and groups that
// a setting names. RCUDA_SERVER_USERS names the users that the server serves,
// RCUDA_SERVER_OPERATORS its operators.
//
// A plain value; any thread. Blocking: read() and text(), for the name service. Errors: kNotFound
// for a name that this machine does not know, kUnavailable if the name service failed.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::server {

class ServedUsers {
 public:
  // `list`: names or numbers separated by commas; "@gpu" for the members of a group, "*" for
  // everybody.
  static Result<ServedUsers> read(const std::string& list,
                                  const char* setting = "RCUDA_SERVER_USERS");
  void add(const ServedUsers& more);
  // `group`: the primary group, which need not be among the supplementary `groups`.
  bool contains(uid_t user, gid_t group, const std::vector<gid_t>& groups) const;
  bool serves_everybody() const { return everybody_; }
  // Whether the list itself names root. (read() adds root in any case.)
  bool names_root() const { return names_root_; }
  // Returns the group if the server serves only root, its own user and the members of one group.
  std::optional<gid_t> only_group() const;
  // "root (uid 0), ada (uid 1000), group gpu (gid 44)"; "every user". Asks the name service.
  std::string text() const;

 private:
  bool everybody_ = false;
  bool names_root_ = false;
  std::set<uid_t> users_;
  std::set<gid_t> groups_;
};

}  // namespace rcuda::server
