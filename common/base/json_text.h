// Text in JSON. A pure function; any thread.
#pragma once

#include <string>
#include <string_view>

namespace rcuda {

// JSON's form of a text, with its quotation marks, in one line. Characters that are not printable
// (printable.h) are escaped: JSON is shown on terminals. Bytes that are not UTF-8 become "?".
std::string json_text(std::string_view text);

}  // namespace rcuda
