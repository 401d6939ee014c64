// A loaded program: PTX units linked, placed in a device's memory and decoded, ready to launch.
//
// Purpose: the only interface between the driver (softgpu/driver) and the interpreter. The driver
// parses PTX with ptx::parse(), loads programs, looks up kernels and globals, and runs launches.
//
// Threads: any thread may call load(). Afterwards a Program is immutable, except the memory of its
// globals, so any number of launches may run at once. run() blocks its caller until the grid has
// finished, and distributes blocks over a process-wide worker pool.
//
// Errors: load() returns kOutOfMemory, kInvalidArgument for units that contradict each other or
// exceed a limit, or kNotFound for unresolved symbols. The driver turns the last two into
// CUDA_ERROR_INVALID_PTX. An unsupported form is logged by name when the module is loaded and
// recorded in Kernel::unsupported; a launch of such a kernel gives a Fault.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cuda.h>

#include "common/base/status.h"
#include "softgpu/exec/memory_map.h"
#include "softgpu/ptx/module.h"

namespace softgpu::texture {
struct Snapshot;
}

namespace softgpu::exec {

struct KernelParameter {
  uint32_t offset_bytes;
  uint32_t size_bytes;
};

struct Kernel {
  std::string name;
  std::vector<KernelParameter> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t local_bytes = 0;  // per thread
  uint32_t const_bytes = 0;
  uint32_t max_threads_per_block = 1024;   // the product of .maxntid, if present
  uint32_t required_block[3] = {0, 0, 0};  // .reqntid; zeros where absent
  uint32_t registers = 0;                  // estimate, at most 255
  uint32_t ptx_version = 0;  // CU_FUNC_ATTRIBUTE_PTX_VERSION: the target of the PTX, e.g. 75
  std::string unsupported;  // empty, or the first unsupported form ("wgmma.mma_async... at line 7")
  const void* code = nullptr;  // owned by the Program
};

struct Global {
  std::string name;
  CUdeviceptr address = 0;
  size_t size_bytes = 0;
  bool managed = false;
  ptx::Reference reference = ptx::Reference::kNone;
};

// Memory for a program's globals and constants, from the device on which the program is loaded. The
// memory must be readable and writable through the MemoryMap that launches use.
struct DeviceAllocator {
  // Aligned to at least 256 bytes. 0: out of memory.
  std::function<CUdeviceptr(size_t bytes, bool managed)> allocate;
  std::function<void(CUdeviceptr)> release;
};

class Program {
 public:
  virtual ~Program() = default;
  virtual const Kernel* find_kernel(const std::string& name) const = 0;  // nullptr: no such kernel
  virtual const Global* find_global(const std::string& name) const = 0;
  virtual const std::vector<const Kernel*>& kernels() const = 0;  // in order of definition
};

// Links `units` (one, or several for an -rdc=true program), allocates and initialises globals, and
// decodes every function. Consumes the units.
rcuda::Result<std::unique_ptr<Program>> load(std::vector<std::unique_ptr<ptx::Module>> units,
                                             const DeviceAllocator& allocator);

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

// What a running grid needs from its device. Several worker threads may call the callbacks at the
// same time.
struct Environment {
  MemoryMap* memory = nullptr;  // every global access is checked against it
  // Text of printf and assert. Called once for each thread's printf or failed assertion.
  std::function<void(std::string_view text, bool is_stderr)> print;
  // Device-side malloc and free. heap_allocate returns 0 if the heap (CU_LIMIT_MALLOC_HEAP_SIZE) is
  // exhausted, heap_release false for an address that is not from malloc.
  std::function<CUdeviceptr(size_t bytes)> heap_allocate;
  std::function<bool(CUdeviceptr)> heap_release;
  std::function<void(CUgraphConditionalHandle, unsigned value)> set_conditional;
  std::shared_ptr<const texture::Snapshot> textures;  // may be nullptr: there are none
  uint32_t multiprocessors = 132;
};

struct Launch {
  const Kernel* kernel = nullptr;
  Dim3 grid, block;
  uint32_t dynamic_shared_bytes = 0;
  std::span<const std::byte> parameters;  // kernel->parameter_bytes long; run() copies them
  bool cooperative = false;               // all blocks are co-resident; grid-wide barriers work
  uint64_t grid_id = 0;
};

// Why a grid ended early. Every later call of the context returns `code`
// (CUDA_ERROR_ILLEGAL_ADDRESS, _MISALIGNED_ADDRESS, _ASSERT, _LAUNCH_FAILED for trap,
// _ILLEGAL_INSTRUCTION, _INVALID_ADDRESS_SPACE, ...). `message` is for the log and names kernel,
// block, thread, address and PTX line.
struct Fault {
  CUresult code = CUDA_SUCCESS;
  std::string message;
};

// Runs a grid to its end. The result's code is CUDA_SUCCESS if every thread returned. `stop` may be
// null. When `*stop` becomes true (the context is being destroyed), the grid ends early with
// CUDA_ERROR_LAUNCH_FAILED.
Fault run(const Launch& launch, const Environment& environment,
          const std::atomic<bool>* stop = nullptr);

// Sets the number of threads that run blocks, for all grids of the process; 0 (default): one per
// core. Call it before the first run().
void set_worker_count(unsigned count);

// Totals since the process started, for benchmarks.
struct Counters {
  uint64_t warp_instructions = 0;
  uint64_t thread_instructions = 0;
};
Counters counters();

}  // namespace softgpu::exec
