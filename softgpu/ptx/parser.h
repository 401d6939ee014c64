// The entry to the PTX front end: takes text, returns a Module.
//
// The driver calls it for every PTX image that an application loads, on the loading thread; calls
// share nothing. The Module owns the text. Nothing blocks. Time and memory are linear in the size
// of the text, whatever it contains: it may come from an untrusted client. Errors:
// kInvalidArgument, which names the line and the offending token; kOutOfMemory. Not checked here:
// whether an instruction exists and fits its operands (exec/ decodes it), and whether symbols of
// module scope exist (exec/ links them).
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "softgpu/ptx/module.h"

namespace softgpu::ptx {

// `text` ends at its first NUL, because text from a fatbin entry is padded with NULs.
rcuda::Result<std::unique_ptr<Module>> parse(std::string text);

}  // namespace softgpu::ptx
