// Finds the name that a user probably meant. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rcuda {

// Returns the name that is most like the word: a few letters are wrong, missing, swapped or too
// many, or the word begins with the name, or the name with the word. Returns an empty text if no
// name is similar.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

// "; did you mean NAME?", or an empty text.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace rcuda
