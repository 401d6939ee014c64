// Occupancy: how many blocks of a kernel one multiprocessor can hold at a time. The limits are
// those of an H200: 2048 threads, 32 blocks, 64 K registers, 228 KB of shared memory (1 KB per
// block is the system's). The interpreter has no such limits, but programs choose their grid sizes
// by the answer. Pure functions of a kernel and its settings; any thread.
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

// The value of CU_FUNC_ATTRIBUTE_NUM_REGS: the interpreter's estimate, but never so high that the
// kernel's largest block would not fit; a compiler would also limit it.
uint32_t registers_per_thread(const exec::Kernel& kernel);

// The most dynamic shared memory that a launch of the function may now request.
uint32_t max_dynamic_shared_bytes(const exec::Kernel& kernel, const FunctionSettings& settings);

// 0 if such a block cannot run at all.
uint32_t active_blocks_per_multiprocessor(Function& function, uint32_t threads,
                                          size_t dynamic_shared_bytes);

}  // namespace softgpu::driver
