// Occupancy: how many blocks of a kernel one multiprocessor can hold at a time. The limits are
// those of an H200: 2048 threads, 32 blocks, 64 K registers, 228 KB of shared memory (of which the
// system uses 1 KB per block). The interpreter has no such limits, but programs choose their grid
// sizes by these numbers. Pure functions of a kernel and its settings; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softgpu::exec {
struct Kernel;
}

namespace softgpu::driver {

class Function;
struct FunctionSettings;

inline constexpr uint32_t kMaxThreadsPerBlock = 1024;
inline constexpr uint32_t kDefaultSharedBytes = 48 * 1024;  // static and dynamic, without opt-in
inline constexpr uint32_t kMaxSharedBytesPerBlock = 227 * 1024;  // with opt-in

// The value of CU_FUNC_ATTRIBUTE_NUM_REGS: the interpreter's estimate. Like a compiler, limits it
// so that the kernel's largest block fits into a multiprocessor.
uint32_t registers_per_thread(const exec::Kernel& kernel);

// The most dynamic shared memory that a launch of the function may now request.
uint32_t max_dynamic_shared_bytes(const exec::Kernel& kernel, const FunctionSettings& settings);

// The number of blocks of `threads` threads that one multiprocessor can hold at a time.
uint32_t active_blocks_per_multiprocessor(Function& function, uint32_t threads,
                                          size_t dynamic_shared_bytes);

}  // namespace softgpu::driver
