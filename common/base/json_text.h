// Text in JSON. A pure function; any thread.
#pragma once

#include <string>
#include <string_view>

namespace rcuda {

// Returns the text as a JSON string on one line, with its quotation marks. Characters that are not
// printable (printable.h) are escaped, because users print JSON on terminals. Bytes that are not
// UTF-8 become "?".
std::string json_text(std::string_view text);

}  // namespace rcuda
