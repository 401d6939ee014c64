// How two engines prove to each other that the same client introduced them.
//
// The client of a session gives each worker the same 32-byte token, over its authenticated session.
// Each engine sends a random nonce. The proof is
//   HMAC-SHA256(token, "rcuda-p2p" || role || own nonce || peer's nonce)
// with role 1 for the side that connected and 0 for the side that accepted, so a proof cannot be
// reflected. Before an engine has checked the peer's proof, it offers no memory to the peer and
// accepts only Challenge and Proof. Pure functions, except make_nonce(); any thread.
#pragma once

#include <array>
#include <cstddef>

#include "common/base/status.h"

namespace rcuda::p2p {

using SessionToken = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

Result<Nonce> make_nonce();
Proof make_proof(const SessionToken& token, bool connected, const Nonce& own, const Nonce& peer);
// Compares in constant time.
bool proof_holds(const Proof& expected, const Proof& received);

}  // namespace rcuda::p2p
