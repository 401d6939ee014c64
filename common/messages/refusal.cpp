#include "common/messages/refusal.h"

#include <algorithm>

#include "common/messages/handshake.h"

namespace rcuda::wire {

Status refusal_error(const std::vector<std::byte>& body, const std::string& what, Code code,
                     std::initializer_list<Code> kept) {
  const Result<Refusal> refusal = decode<Refusal>(body);
  if (!refusal) return refusal.status();
  const auto given = static_cast<Code>(refusal->code);
  const bool keeps = std::find(kept.begin(), kept.end(), given) != kept.end();
  return Status(keeps ? given : code, what + ": " + refusal->reason);
}

}  // namespace rcuda::wire
