#include "server/identity/owner.h"

namespace rcuda::server {
namespace {

// With its length, so that two texts of different parts cannot be the same.
std::string part(const char* what, const std::string& text) {
  return std::string(what) + " " + std::to_string(text.size()) + " " + text + ", ";
}

}  // namespace

std::string owner_of(const Identity& identity, const wire::Hello& hello) {
  if (identity.method == "insecure") {
    const std::string address = identity.from.substr(0, identity.from.rfind(':'));
    return part("address", address) + part("claimed", std::to_string(hello.uid)) +
           part("host", hello.host);
  }
  return (identity.uid ? part("uid", std::to_string(*identity.uid)) : part("user", identity.user)) +
         part("host", hello.host);
}

}  // namespace rcuda::server
