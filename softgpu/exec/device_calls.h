// Functions that device code calls and the driver provides: vprintf, malloc, free, __assertfail,
// cudaGraphSetConditional.
#pragma once

#include "softgpu/exec/code.h"
#include "softgpu/exec/lanes.h"

namespace softgpu::exec {

class Block;
class Warp;

// Executes the call for the lanes in x.mask. Sets x.faulted if the call ended the grid.
void device_call(Block& block, Warp& warp, const CallSite& site, Lanes& x);

}  // namespace softgpu::exec
