// The environment variables of rcuda, for warnings about misspelt variables.
//
// A server knows its own variables from its registry. Other programs do not check variables that
// begin with RCUDA_SERVER_. Variables of tests (RCUDA_TEST_) and of Slurm's integration
// (RCUDA_SLURM_) are never checked. Pure functions; any thread that may read the environment.
#pragma once

#include <string>
#include <vector>

#include "common/config/settings.h"

namespace rcuda::config {

// Returns one line for each variable of `environment` that begins with RCUDA_ and that no part of
// rcuda reads: its name, and the nearest name that exists. `server`: the registry of a server; null
// in other programs.
std::vector<std::string> unknown_variables(const char* const* environment,
                                           const Registry* server = nullptr);

// Returns the variables that every program accepts without a warning, without the prefix RCUDA_.
std::vector<std::string> program_variables();

}  // namespace rcuda::config
