// Finds misspelt commands of rcuda-smi. Otherwise such a word would name a server.
#pragma once

#include <string_view>

namespace rcuda::smi {

// Returns the command that the word is a misspelling of: one letter is missing, superfluous or
// wrong, or two neighbours are exchanged; in words of five letters and more, two such mistakes.
// Null for other words, and for a command itself.
const char* find_misspelt(std::string_view word);

}  // namespace rcuda::smi
