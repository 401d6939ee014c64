// Fills a Registry from a TOML file. Tables are flattened with '_': `[image_cache] bytes = "2G"`
// sets the key image_cache_bytes. Separate from settings.h, so that only programs that read files
// contain the parser. Blocks while it reads the file. Errors name file and line.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/config/settings.h"

namespace rcuda::config {

Status load_toml_file(Registry& registry, const std::string& path);

}  // namespace rcuda::config
