// A libmunge without munged. It replaces common/identity/munge_library.cpp in the fuzzers, and
// accepts each credential that the fuzzer has minted once. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rcuda::fuzz {

std::string mint_credential(uid_t user, std::vector<std::byte> payload);
void forget_credentials();

}  // namespace rcuda::fuzz
