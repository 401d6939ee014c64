// Reads TOML files, and fills a Registry from one. Tables are flattened with '_': `[image_cache]
// bytes = "2G"` sets the key image_cache_bytes. Separate from settings.h, so that only programs
// that read files contain the parser. Blocks while it reads the file. Errors name file and line.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/settings.h"

namespace rcuda::config {

// A value or a table of a file. A table may be empty.
struct TomlItem {
  enum class Kind { kTable, kText, kNumber, kFlag, kList };
  std::vector<std::string> keys;  // {"image_cache", "bytes"}
  Kind kind{};
  std::string text;  // of a value: the text, a number, "true", "false", or a list: "a,b"
  size_t line = 0;
};

// Returns the items in the order of the lines. A value that has no Kind, such as a date, is an
// error.
Result<std::vector<TomlItem>> read_toml_file(const std::string& path);

// Sets the settings that a file contains. An unknown key is an error that names the nearest known
// key, or all known keys. Returns kDenied if other users can write the file, or if this process
// runs as root and root does not own the file. If this process does not run as root, its group may
// write the file. `others`: a top-level table that is not a part of the settings and is skipped.
Status load_toml_file(Registry& registry, const std::string& path, const char* others = "");

}  // namespace rcuda::config
