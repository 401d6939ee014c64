// Finds the name that a user probably meant. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rcuda {

// Returns the name that is most similar to the word. Similar: a few letters are wrong, missing,
// extra or swapped, or one of the two texts begins with the other. Returns an empty text if no name
// is similar.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

// Returns "; did you mean NAME?" for an error message, or an empty text if no name is similar.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace rcuda
