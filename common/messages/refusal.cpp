#include "common/messages/refusal.h"

#include <algorithm>

#include "common/messages/handshake.h"

namespace rcuda::wire {

Status refusal_error(const std::vector<std::byte>& body, const std::string& what, Code code,
                     std::initializer_list<Code> kept) {
  RCUDA_ASSIGN_OR_RETURN(const Refusal refusal, decode<Refusal>(body));
  const auto given = static_cast<Code>(refusal.code);
  const bool keeps = std::find(kept.begin(), kept.end(), given) != kept.end();
  return Status(keeps ? given : code, what + ": " + refusal.reason);
}

}  // namespace rcuda::wire
