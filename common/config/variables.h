// The environment variables of rcuda, for warnings about misspelt variables.
//
// Variables of servers begin with RCUDA_SERVER_, and are known from the server's registry; other
// programs do not check them. Variables of tests (RCUDA_TEST_) and of Slurm's integration
// (RCUDA_SLURM_) are not checked. Pure functions; any thread that may read the environment.
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
