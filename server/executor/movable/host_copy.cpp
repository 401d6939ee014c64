#include "server/executor/movable/host_copy.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/populate.h"
#include "common/base/start_thread.h"
#include "common/base/units.h"
#include "server/executor/objects/context_guard.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kBlockBytes = 256u << 20;
constexpr uint64_t kHugePage = 2u << 20;

uint64_t sum_of(std::span<const HostCopy::Piece> pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), uint64_t{0},
                         [](uint64_t sum, const auto& piece) { return sum + piece.bytes; });
}

// Maps memory that is aligned to huge pages. The kernel takes the memory from `node` if this node
// has free memory.
std::byte* map_memory(uint64_t bytes, int node) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED; only libnuma has a header for it
  void* const mapped = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const uint64_t before = -reinterpret_cast<uint64_t>(begin) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  if (before < kHugePage) ::munmap(begin + before + bytes, kHugePage - before);
  std::byte* const data = begin + before;
  (void)::madvise(data, bytes, MADV_HUGEPAGE);
  if (node >= 0 && node < 64) {
    const unsigned long nodes = 1ul << node;
    (void)::syscall(SYS_mbind, data, bytes, kPreferred, &nodes, 8 * sizeof nodes, 0);
  }
  return data;
}

}  // namespace

// One stream for each context. The destructor waits for all of them.
class HostCopy::Streams {
 public:
  explicit Streams(const api::DriverTable& driver) : driver_(driver) {}
  ~Streams() { (void)finish(); }

  CUresult find(CUcontext context, CUstream* stream) {
    const auto known = streams_.find(context);
    if (known != streams_.end()) {
      *stream = known->second;
      return CUDA_SUCCESS;
    }
    const CUresult result = driver_.cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) streams_[context] = *stream;
    return result;
  }
  CUresult finish() {
    CUresult first = CUDA_SUCCESS;
    for (const auto& [context, stream] : streams_) {
      const ContextGuard inside(driver_, context);
      const CUresult result = inside.ok() ? driver_.cuStreamSynchronize(stream) : inside.result();
      if (first == CUDA_SUCCESS) first = result;
      if (inside.ok()) driver_.cuStreamDestroy_v2(stream);
    }
    streams_.clear();
    return first;
  }

 private:
  const api::DriverTable& driver_;
  std::map<CUcontext, CUstream> streams_;
};

// Leaves page-locked blocks mapped. The driver unlocks them at the end of the process.
HostCopy::~HostCopy() {
  for (const Block& block : blocks_) {
    if (!block.is_locked) ::munmap(block.data, block.bytes);
  }
}

uint64_t HostCopy::bytes() const {
  return std::accumulate(blocks_.begin(), blocks_.end(), uint64_t{0},
                         [](uint64_t sum, const Block& block) { return sum + block.bytes; });
}

// Maps the blocks that are missing for `total` bytes.
Status HostCopy::map_blocks(std::span<const Piece> pieces, uint64_t total) {
  auto piece = pieces.begin();
  uint64_t end_of_piece = piece == pieces.end() ? 0 : piece->bytes;
  for (uint64_t there = bytes(); there < total; there = bytes()) {
    while (end_of_piece <= there) end_of_piece += (++piece)->bytes;
    const uint64_t bytes = std::min(kBlockBytes, (total - there + kHugePage - 1) & -kHugePage);
    std::byte* const data = map_memory(bytes, piece->node);
    if (!data) {
      return {Code::kOutOfMemory, "the worker cannot map " + bytes_text(total) +
                                      " of the host's memory for the copy of its GPU memory"};
    }
    blocks_.push_back({data, bytes, false});
  }
  return {};
}

Status HostCopy::lock(Block& block, CUcontext context) {
  if (block.is_locked) return {};
  const ContextGuard inside(driver_, context);
  const CUresult result = inside.ok() ? driver_.cuMemHostRegister_v2(block.data, block.bytes,
                                                                     CU_MEMHOSTREGISTER_PORTABLE)
                                      : inside.result();
  block.is_locked = result == CUDA_SUCCESS;
  if (block.is_locked) return {};
  return Status::from_cuda(result, "page-locking memory for the copy of GPU memory");
}

// `populated`: the number of blocks whose pages exist; null: all.
Status HostCopy::copy(Way way, std::span<const Piece> pieces,
                      const std::atomic<size_t>* populated) {
  Streams streams(driver_);
  size_t block = 0;
  uint64_t in_block = 0;
  for (const Piece& piece : pieces) {
    const ContextGuard inside(driver_, piece.context);
    CUstream stream = nullptr;
    CUresult result = inside.ok() ? streams.find(piece.context, &stream) : inside.result();
    for (uint64_t done = 0; done < piece.bytes && result == CUDA_SUCCESS;) {
      if (in_block == blocks_[block].bytes) {
        ++block;
        in_block = 0;
      }
      for (size_t made = 0; populated && (made = populated->load()) <= block;) {
        populated->wait(made);
      }
      RCUDA_RETURN_IF_ERROR(lock(blocks_[block], piece.context));
      const uint64_t bytes = std::min(piece.bytes - done, blocks_[block].bytes - in_block);
      std::byte* const host = blocks_[block].data + in_block;
      result = way == Way::kToHost
                   ? driver_.cuMemcpyDtoHAsync_v2(host, piece.address + done, bytes, stream)
                   : driver_.cuMemcpyHtoDAsync_v2(piece.address + done, host, bytes, stream);
      done += bytes;
      in_block += bytes;
    }
    if (result != CUDA_SUCCESS) return Status::from_cuda(result, "copying GPU memory");
  }
  const CUresult result = streams.finish();
  return result == CUDA_SUCCESS ? Status() : Status::from_cuda(result, "copying GPU memory");
}

Status HostCopy::save(std::span<const Piece> pieces) {
  const size_t old = blocks_.size();
  RCUDA_RETURN_IF_ERROR(map_blocks(pieces, sum_of(pieces)));
  std::atomic<size_t> populated{old};
  std::thread populating;
  const auto populate = [this, old, &populated] {
    for (size_t i = old; i < blocks_.size(); ++i) {
      populate_pages(blocks_[i].data, blocks_[i].bytes);
      populated.store(i + 1);
      populated.notify_one();
    }
  };
  if (old == blocks_.size() || !start_thread(&populating, populate).ok()) populate();
  const Status status = copy(Way::kToHost, pieces, &populated);
  if (populating.joinable()) populating.join();
  return status;
}

Status HostCopy::restore(std::span<const Piece> pieces) {
  return copy(Way::kToDevice, pieces, nullptr);
}

void HostCopy::free_last(CUcontext context) {
  const Block block = blocks_.back();
  blocks_.pop_back();
  if (block.is_locked) {
    const ContextGuard inside(driver_, context);
    // If the memory stays page-locked, it stays mapped: otherwise other memory could get these
    // addresses, and the driver would refuse to page-lock it.
    if (!inside.ok() || driver_.cuMemHostUnregister(block.data) != CUDA_SUCCESS) return;
  }
  ::munmap(block.data, block.bytes);
}

void HostCopy::keep(uint64_t keep_bytes, CUcontext context) {
  for (uint64_t there = bytes(); there > keep_bytes; there = bytes()) free_last(context);
}

}  // namespace rcuda::server
