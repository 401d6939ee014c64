// Occupancy: how many blocks of a kernel one multiprocessor holds at a time, by the limits of an
// H200 (2048 threads, 32 blocks, 64 K registers, 228 KB of shared memory of which each block takes
// 1 KB for the system). The interpreter knows no such limits; programs size their grids by the
// answer. Pure functions of a kernel and its settings; any thread.
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

// What CU_FUNC_ATTRIBUTE_NUM_REGS says: the interpreter's estimate, but never so many that the
// kernel's largest block would not fit, as a compiler would see to.
uint32_t registers_per_thread(const exec::Kernel& kernel);

// The most dynamic shared memory a launch of the function may ask for now.
uint32_t max_dynamic_shared_bytes(const exec::Kernel& kernel, const FunctionSettings& settings);

// 0 when such a block cannot run at all.
uint32_t active_blocks_per_multiprocessor(Function& function, uint32_t threads,
                                          size_t dynamic_shared_bytes);

}  // namespace softgpu::driver
