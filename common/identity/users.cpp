#include "common/identity/users.h"

#include <cerrno>
#include <vector>

#include <grp.h>
#include <pwd.h>

#include "common/base/parse_number.h"

namespace rcuda::identity {
namespace {

constexpr uid_t kNoUid = static_cast<uid_t>(-1);

// Calls getpwnam_r, getpwuid_r, getgrnam_r or getgrgid_r with a large enough buffer. Returns the
// function's error number, 0 for none; `found` is null if there is no such user or group.
template <typename Function, typename Key, typename Entry>
int look_up(Function function, Key key, Entry* entry, std::vector<char>* room, Entry** found) {
  for (room->resize(1024);; room->resize(room->size() * 4)) {
    const int error = function(key, entry, room->data(), room->size(), found);
    if (error != ERANGE || room->size() > (1u << 20)) return error;
  }
}

bool parse_uid(const std::string& text, uid_t* uid) {
  return parse_number(text, uid) && *uid != kNoUid && std::to_string(*uid) == text;
}

}  // namespace

std::string user_name(uid_t uid) {
  passwd entry;
  passwd* found = nullptr;
  std::vector<char> room;
  if (look_up(::getpwuid_r, uid, &entry, &room, &found) == 0 && found != nullptr) {
    return found->pw_name;
  }
  return std::to_string(uid);
}

std::string user_and_number(uid_t uid) {
  const std::string number = std::to_string(uid), name = user_name(uid);
  return name == number ? "uid " + number : name + " (uid " + number + ")";
}

Result<uid_t> user_id(const std::string& name) {
  passwd entry;
  passwd* found = nullptr;
  std::vector<char> room;
  const int error = look_up(::getpwnam_r, name.c_str(), &entry, &room, &found);
  if (found != nullptr) return found->pw_uid;
  if (uid_t uid = 0; parse_uid(name, &uid)) return uid;
  // Some user databases report a missing user by one of these errors (getpwnam(3)).
  if (error == 0 || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM) {
    return Status(Code::kNotFound, "this machine has no user \"" + name + "\"");
  }
  return Status::from_errno(error, "cannot look up the user \"" + name + "\"");
}

Result<gid_t> group_id(const std::string& name) {
  gid_t number = 0;
  if (parse_number(name, &number)) return number;
  group entry;
  group* found = nullptr;
  std::vector<char> room;
  const int error = look_up(::getgrnam_r, name.c_str(), &entry, &room, &found);
  if (found) return found->gr_gid;
  if (error != 0) return Status::from_errno(error, "cannot look up the group \"" + name + "\"");
  return Status(Code::kNotFound, "this machine has no group \"" + name + "\"");
}

std::string group_name(gid_t gid) {
  group entry;
  group* found = nullptr;
  std::vector<char> room;
  (void)look_up(::getgrgid_r, gid, &entry, &room, &found);
  return found ? found->gr_name : std::to_string(gid);
}

}  // namespace rcuda::identity
