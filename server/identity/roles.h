// Roles: the rights that a token gives its holder. A token has one or more roles. For example, a
// tool that only observes servers gets a token that cannot start sessions. docs/security.md has the
// table.
//
// Plain values; any thread. Nothing blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace rcuda::server {

enum class Role : uint8_t {
  kSession = 1,   // sessions of the token's user, and requests about these
  kObserver = 2,  // queries about all sessions and GPUs
  kOperator = 4,  // these queries, and all rights of operators: leases, any session, drain, reload
};

class Roles {
 public:
  Roles(Role role) : bits_(static_cast<uint8_t>(role)) {}

  // "session", "observer", "operator", or several of them separated by commas.
  static Result<Roles> parse(std::string_view text);
  std::string text() const;  // in the format of parse(), always in the same order

  bool has(Role role) const { return (bits_ & static_cast<uint8_t>(role)) != 0; }
  void add(Role role) { bits_ |= static_cast<uint8_t>(role); }
  bool operator==(const Roles&) const = default;

 private:
  uint8_t bits_;
};

}  // namespace rcuda::server
