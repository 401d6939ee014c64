// HostCopy: a copy of device memory in the host's memory, made by the GPUs' copy engines.
//
// The host memory is this process's own, in huge pages on the NUMA node near the GPU. It is
// page-locked once: the next copy uses the memory that keep() leaves. While the first copy copies a
// block, other threads prepare the pages of the next blocks. On an H200's host, four threads
// prepare 22 GB/s, page-locking handles 40 GB/s, and one stream copies 55 GB/s in either direction.
//
// Use it on one thread. Blocking: save() and restore(), until the bytes are copied; keep(), 0.02 s
// for each GB that it frees. Errors: kOutOfMemory if the host has no memory, otherwise the
// driver's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/status.h"

namespace rcuda::server {

class HostCopy {
 public:
  // A piece of device memory. `context`: a context of the memory's device.
  struct Piece {
    CUdeviceptr address = 0;
    uint64_t bytes = 0;
    CUcontext context = nullptr;
    int node = -1;  // the NUMA node near the device; -1: any
  };

  explicit HostCopy(const api::DriverTable& driver) : driver_(driver) {}
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  Status save(std::span<const Piece> pieces);
  // Copies the bytes back. The pieces have the same sizes and order as in save(), possibly other
  // addresses.
  Status restore(std::span<const Piece> pieces);
  // Unlocks and frees host memory until at most `bytes` bytes are left. `context`: any context, for
  // the driver's calls.
  void keep(uint64_t bytes, CUcontext context);
  uint64_t bytes() const;

 private:
  struct Block {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    bool is_locked = false;
  };
  enum class Way { kToHost, kToDevice };
  class Streams;

  Status map_blocks(std::span<const Piece> pieces, uint64_t bytes);
  Status copy(Way way, std::span<const Piece> pieces, const std::atomic<size_t>* populated);
  Status lock(Block& block, CUcontext context);
  void free_last(CUcontext context);

  const api::DriverTable& driver_;
  std::vector<Block> blocks_;
};

}  // namespace rcuda::server
