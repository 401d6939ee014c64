// A libmunge without munged: links in the place of common/identity/munge_library.cpp and accepts
// the credentials that the fuzzer has minted, each once. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rcuda::fuzz {

std::string mint_credential(uid_t user, std::vector<std::byte> payload);
void forget_credentials();

}  // namespace rcuda::fuzz
