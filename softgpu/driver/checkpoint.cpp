#include "softgpu/driver/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "softgpu/driver/arena.h"
#include "softgpu/driver/call_gate.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/vmm.h"

namespace softgpu::driver::checkpoint {
namespace {

constexpr auto kPause = std::chrono::microseconds(100);
constexpr int kSharesMemoryFrom = 13030;  // driver 610

// Bytes of a device's file, in anonymous memory.
struct Saved {
  uint64_t offset = 0;
  size_t bytes = 0;
  void* copy = nullptr;
};

// A mapping of a device's file.
struct Mapping {
  uint64_t address = 0;
  size_t bytes = 0;
  uint64_t offset = 0;
  int file = -1;
  std::vector<Saved> saved;
};

std::atomic<CUprocessState> now{CU_PROCESS_STATE_RUNNING};
std::vector<Mapping> taken;  // removed by checkpoint(); restore() makes them again
GpuMap places;               // from a device's own number to the GPU that now has its memory

template <typename Visit>
void for_each_context(Visit visit) {
  for (int i = 0; i < device_count(); ++i) {
    if (Device* device = device_at(i)) visit(device->primary());
  }
  handle_table<Context>().for_each(visit);
}

bool is_idle() {
  bool idle = true;
  for_each_context([&](Context& context) {
    if (idle && context.alive() && !context.is_green()) idle = context.streams().idle();
  });
  return idle;
}

bool is_supported(bool in_group) {
  if (configuration().mps != 0) return false;
  const bool may_import = in_group && configuration().driver_version >= kSharesMemoryFrom;
  return !memory_registry().any([may_import](const Allocation& allocation) {
    return allocation.kind == MemoryKind::kManaged ||
           (allocation.kind == MemoryKind::kImported && !may_import);
  });
}

// Exportable physical memory has its own file. Returns the file with this inode. Returns -1 if no
// such file exists, or if its memory was exported.
int file_of_unexported(uint64_t inode) {
  int file = -1;
  (void)memory_registry().any([&](const Allocation& allocation) {
    PhysicalMemory* const physical = allocation.physical.get();
    const bool is_it = physical && physical->own_file && physical->inode == inode;
    if (is_it && !physical->exported) file = physical->file();
    return is_it;
  });
  return file;
}

// Returns the mappings of device memory from the kernel's list, because any part of a file may be
// mapped.
std::vector<Mapping> find_mappings() {
  std::vector<Mapping> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:softgpu-device-") == line.npos) continue;
    uint64_t begin = 0, end = 0, offset = 0, inode = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64, &begin,
                    &end, &offset, &inode) != 4) {
      continue;
    }
    const int arena = arena_file_of(inode);
    const int file = arena >= 0 ? arena : file_of_unexported(inode);
    if (file >= 0) found.push_back({begin, end - begin, offset, file, {}});
  }
  return found;
}

void drop(std::vector<Saved>& saved) {
  for (const Saved& piece : saved) ::munmap(piece.copy, piece.bytes);
  saved.clear();
}

// Copies the pages that have content. False if memory for the copy is lacking, or a read fails.
bool save(Mapping& mapping) {
  const auto end = static_cast<off_t>(mapping.offset + mapping.bytes);
  for (auto at = static_cast<off_t>(mapping.offset); at < end;) {
    const off_t begin = ::lseek(mapping.file, at, SEEK_DATA);
    if (begin < 0 || begin >= end) break;
    const off_t hole = ::lseek(mapping.file, begin, SEEK_HOLE);
    const off_t until = hole < 0 ? end : std::min(hole, end);
    const auto bytes = static_cast<size_t>(until - begin);
    void* const copy =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return false;
    mapping.saved.push_back({static_cast<uint64_t>(begin), bytes, copy});
    for (size_t done = 0; done < bytes;) {
      const ssize_t got = ::pread(mapping.file, static_cast<std::byte*>(copy) + done, bytes - done,
                                  begin + static_cast<off_t>(done));
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
    }
    at = until;
  }
  return true;
}

bool take_away(const Mapping& mapping) {
  void* const address = reinterpret_cast<void*>(mapping.address);
  if (::mmap(address, mapping.bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return false;
  }
  return ::fallocate(mapping.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(mapping.offset), static_cast<off_t>(mapping.bytes)) == 0;
}

bool bring_back(Mapping& mapping) {
  for (const Saved& piece : mapping.saved) {
    for (size_t done = 0; done < piece.bytes;) {
      const ssize_t put = ::pwrite(mapping.file, static_cast<const std::byte*>(piece.copy) + done,
                                   piece.bytes - done, static_cast<off_t>(piece.offset + done));
      if (put <= 0) return false;
      done += static_cast<size_t>(put);
    }
  }
  return ::mmap(reinterpret_cast<void*>(mapping.address), mapping.bytes, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_NORESERVE | MAP_FIXED, mapping.file,
                static_cast<off_t>(mapping.offset)) != MAP_FAILED;
}

// Moves the memory of this process's devices to other GPUs.
CUresult move(const GpuMap& gpus) {
  std::map<std::string, std::string> renamed;
  std::set<int> targets;
  GpuMap moved;
  for (const auto& [from, to] : gpus) {
    renamed[device_file_name(from)] = device_file_name(to);
    targets.insert(to);
  }
  for (int i = 0; i < device_count(); ++i) {
    const int number = device_at(i)->number();
    const auto place = places.find(number);
    const auto to = gpus.find(place == places.end() ? number : place->second);
    if (to == gpus.end()) return CUDA_ERROR_INVALID_VALUE;
    moved[number] = to->second;
  }
  if (targets.size() != gpus.size()) return CUDA_ERROR_INVALID_VALUE;
  if (!rename_arena_files(renamed)) return CUDA_ERROR_OUT_OF_MEMORY;
  places = std::move(moved);
  return CUDA_SUCCESS;
}

// leave_devices() removes the memory of this process from the accounts of the first `count`
// devices. come_back_to_devices() adds it again to all accounts; false, with nothing added, if a
// device lacks free memory.
void leave_devices(int count) {
  for (int i = 0; i < count; ++i) device_at(i)->leave();
}

bool come_back_to_devices() {
  for (int i = 0; i < device_count(); ++i) {
    Device& device = *device_at(i);
    const auto place = places.find(device.number());
    if (device.come_back(place == places.end() ? device.number() : place->second)) continue;
    leave_devices(i);
    return false;
  }
  return true;
}

CUresult fail(const char* what) {
  RCUDA_ERROR("%s of this process failed: %s", what, std::strerror(errno));
  now = CU_PROCESS_STATE_FAILED;
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace

CUprocessState state() { return now; }

CUresult lock(std::chrono::milliseconds timeout) {
  if (now != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
  const auto deadline = timeout.count() == 0 ? std::chrono::steady_clock::time_point::max()
                                             : std::chrono::steady_clock::now() + timeout;
  if (!gate::close(deadline)) return CUDA_ERROR_NOT_READY;
  while (!is_idle()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      gate::open();
      return CUDA_ERROR_NOT_READY;
    }
    std::this_thread::sleep_for(kPause);
  }
  now = CU_PROCESS_STATE_LOCKED;
  return CUDA_SUCCESS;
}

CUresult checkpoint(bool in_group) {
  if (now != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  if (!is_supported(in_group)) return CUDA_ERROR_NOT_SUPPORTED;
  std::vector<Mapping> mappings = find_mappings();
  for (Mapping& mapping : mappings) {
    if (save(mapping)) continue;
    for (Mapping& other : mappings) drop(other.saved);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  taken = std::move(mappings);
  for (const Mapping& mapping : taken) {
    if (!take_away(mapping)) return fail("the checkpoint");
  }
  leave_devices(device_count());
  now = CU_PROCESS_STATE_CHECKPOINTED;
  return CUDA_SUCCESS;
}

CUresult restore(const GpuMap& gpus) {
  if (now != CU_PROCESS_STATE_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
  if (!gpus.empty()) {
    if (const CUresult moved = move(gpus); moved != CUDA_SUCCESS) return moved;
  }
  if (!come_back_to_devices()) return CUDA_ERROR_OUT_OF_MEMORY;
  for (Mapping& mapping : taken) {
    if (!bring_back(mapping)) return fail("the restore");
    drop(mapping.saved);
  }
  taken.clear();
  now = CU_PROCESS_STATE_LOCKED;
  return CUDA_SUCCESS;
}

CUresult unlock() {
  if (now != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  now = CU_PROCESS_STATE_RUNNING;
  gate::open();
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver::checkpoint
