// The door to the PTX front end: text in, Module out.
//
// Called by the driver for every PTX image an application loads, on whatever thread loads it; calls
// share nothing. The Module owns the text. Nothing blocks. Time and memory are linear in the size
// of the text whatever it contains: it may come from an untrusted client. Errors: kInvalidArgument
// naming the line and the offending token; kOutOfMemory. Not checked here: whether an instruction
// exists and fits its operands (exec/ decodes it), whether module-scope symbols exist (exec/ links
// them).
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "softgpu/ptx/module.h"

namespace softgpu::ptx {

// `text` ends at its first NUL, as text from a fatbin entry is padded with them.
rcuda::Result<std::unique_ptr<Module>> parse(std::string text);

}  // namespace softgpu::ptx
