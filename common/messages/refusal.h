// Converts a Refusal of the other side to an error.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace rcuda::wire {

// Returns an error with the text "what: the reason". `body`: of the Refusal; kProtocol if it is
// malformed. The error has the Refusal's code if `kept` contains that code, and otherwise `code`.
Status refusal_error(const std::vector<std::byte>& body, const std::string& what, Code code,
                     std::initializer_list<Code> kept = {});

}  // namespace rcuda::wire
