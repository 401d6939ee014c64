// Fills a Registry from a TOML file. Tables are flattened with '_': `[image_cache] bytes = "2G"` is
// the key image_cache_bytes. Kept apart from settings.h so that only programs that read files carry
// the parser. Blocks for reading the file; errors name file and line.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/config/settings.h"

namespace rcuda::config {

Status load_toml_file(Registry& registry, const std::string& path);

}  // namespace rcuda::config
