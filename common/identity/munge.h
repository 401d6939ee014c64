// MUNGE: a user of one machine proves their identity to a process of another machine. Both machines
// run munged with the same key.
//
// munged asks the kernel for the caller's uid and gid and puts them into a credential, with a
// payload. munged of another machine checks the credential and returns uid, gid and payload once;
// it refuses the credential as replayed afterwards. A credential names its maker, not its receiver,
// so the payload must bind the credential to the connection (a nonce of the server, the TLS
// exporter's value).
// Threads: any. Blocking: one exchange with munged over its local socket, about 0.1 ms; several
// seconds if munged hangs or has ended without removing its socket. Do not call from a poll loop.
// SIGPIPE is never raised. Errors name the remedy: kUnavailable if this machine has no MUNGE,
// kDenied if MUNGE refuses, kProtocol if the peer's text is not a credential.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::identity::munge {

inline constexpr size_t kMostPayloadBytes = 4096;
inline constexpr size_t kMostCredentialBytes = 16 << 10;

struct Settings {
  std::string socket;                 // path of munged's socket; empty: libmunge's default
  std::chrono::seconds lifetime{60};  // of a credential; must exceed the clocks' difference
};

struct Credential {
  uid_t uid;
  gid_t gid;
  std::vector<std::byte> payload;
};

// Whether the library is installed and munged's socket is there. Even then, munged may not answer.
bool available(const Settings& settings = {});

// Only processes of the user `only_for` can decode the credential; without `only_for`, processes of
// every user can.
Result<std::string> encode(std::span<const std::byte> payload, std::optional<uid_t> only_for,
                           const Settings& settings = {});
// `credential` may be any text of a peer.
Result<Credential> decode(const std::string& credential, const Settings& settings = {});

}  // namespace rcuda::identity::munge
