// libmunge.so.2, loaded when MUNGE is first used. librcuda.so is not linked against it, because
// librcuda.so also runs on machines that lack the library.
//
// Declares the part of libmunge's own header (munge.h of libmunge-dev) that munge.cpp needs.
// tests/unit/common/identity/munge_test.cpp compares these declarations with that header.
#pragma once

#include <memory>

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::identity::munge {

enum class Option : int {
  kTtl = 4,             // int, seconds
  kSocket = 8,          // const char*
  kUidRestriction = 9,  // uid_t
};

enum class Error : int {
  kSuccess = 0,
  kNoMemory = 5,
  kSocket = 6,
  kTimeout = 7,
  kBadCredential = 8,
  kBadVersion = 9,
  kBadCipher = 10,
  kBadMac = 11,
  kBadZip = 12,
  kBadRealm = 13,
  kInvalid = 14,
  kExpired = 15,
  kRewound = 16,
  kReplayed = 17,
  kUnauthorized = 18,
};

inline constexpr uid_t kAnyUid = static_cast<uid_t>(-1);

struct Context;  // munge_ctx

struct Library {
  Context* (*create)();
  void (*destroy)(Context*);
  const char* (*error_of)(Context*);  // null if the context has no error
  Error (*get)(Context*, int option, ...);
  Error (*set)(Context*, int option, ...);
  const char* (*text_of)(Error);
  // The credential and the payload belong to the caller; release them with free().
  Error (*encode)(char** credential, Context*, const void* payload, int bytes);
  Error (*decode)(const char* credential, Context*, void** payload, int* bytes, uid_t*, gid_t*);
};

// Returns libmunge, which is loaded once per process and never unloaded. kUnavailable if it is not
// installed. Any thread.
const Result<Library>& library();

}  // namespace rcuda::identity::munge
