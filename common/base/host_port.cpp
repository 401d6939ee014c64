#include "common/base/host_port.h"

#include <algorithm>

#include "common/base/parse_number.h"

namespace rcuda {

bool parse_host_port(std::string_view text, std::string_view marks, std::string* host,
                     uint16_t* port) {
  const bool has_bracket = text.starts_with('[');
  if (has_bracket) text.remove_prefix(1);
  const size_t end =
      has_bracket ? text.find(']') : std::min(text.find_first_of(marks), text.size());
  if (end == text.npos) return false;
  *host = text.substr(0, end);
  if (host->empty() || host->find_first_of("[]") != host->npos) return false;
  text.remove_prefix(has_bracket ? end + 1 : end);
  if (text.empty()) return true;
  if (marks.find(text.front()) == marks.npos) return false;
  return parse_number(text.substr(1), port) && *port != 0;
}

}  // namespace rcuda
