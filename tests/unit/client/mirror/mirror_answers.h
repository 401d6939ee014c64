// The answers of a worker to commands about mirrored memory, for puppets.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "common/wire/protocol.h"
#include "tests/support/puppet_server.h"

namespace rcuda::client {

// An answer to MirrorFetch, MirrorFetchBehind or MirrorChanges: the state, then `bytes`.
inline test::PuppetServer::Answer answer_with(const wire::MirrorState& state,
                                              std::span<const std::byte> bytes = {}) {
  test::PuppetServer::Answer answer;
  answer.body.resize(sizeof state + bytes.size());
  std::memcpy(answer.body.data(), &state, sizeof state);
  if (!bytes.empty()) std::memcpy(&answer.body[sizeof state], bytes.data(), bytes.size());
  return answer;
}

// An answer to MirrorNews after which the client must fetch all bytes of each mirror.
inline test::PuppetServer::Answer no_news(const test::PuppetServer::Command& command) {
  test::PuppetServer::Answer answer;
  for (uint64_t i = 0; i < command.as<wire::MirrorNewsBody>().count; ++i) {
    const wire::MirrorNewsHead head{{}, 0, 1};
    const auto* const bytes = reinterpret_cast<const std::byte*>(&head);
    answer.body.insert(answer.body.end(), bytes, bytes + sizeof head);
  }
  return answer;
}

}  // namespace rcuda::client
