#include "server/executor/mirrors/block_digests.h"

#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kDigestBytes = sizeof(wire::BlockDigest);
constexpr unsigned kThreads = 256, kWarp = 32, kMostGroups = 2048;

// A warp computes the digest of a block as wire::block_digest() does. It may read bytes after the
// end of the range, up to the next multiple of 16: they are in the range's last page.
constexpr char kKernel[] = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry rcuda_block_digests(
  .param .u64 memory,        // the range; null: as if it were all zero
  .param .u64 bytes,
  .param .u64 block_bytes,
  .param .u64 first,         // block
  .param .u64 count,         // of blocks
  .param .u64 digests,       // two words for each block of the range
  .param .u64 flags)         // a byte for each: becomes 1 if it differs from its digest, else 0.
                             // Null: computes the digests
{
  .reg .pred %more, %other, %zero, %compares;
  .reg .b16 %flag;
  .reg .b32 %lane, %warp, %warps, %group, %groups, %mask, %low, %high;
  .reg .b64 %memory, %bytes, %block_bytes, %first, %count, %digests, %flags;
  .reg .b64 %index, %step, %block, %at, %end, %begin, %a, %b, %w0, %w1, %place, %x, %y, %old;

  ld.param.u64 %memory, [memory];
  ld.param.u64 %bytes, [bytes];
  ld.param.u64 %block_bytes, [block_bytes];
  ld.param.u64 %first, [first];
  ld.param.u64 %count, [count];
  ld.param.u64 %digests, [digests];
  ld.param.u64 %flags, [flags];
  setp.eq.u64 %zero, %memory, 0;
  cvta.to.global.u64 %memory, %memory;
  cvta.to.global.u64 %digests, %digests;
  setp.ne.u64 %compares, %flags, 0;
  @%compares cvta.to.global.u64 %flags, %flags;

  mov.u32 %lane, %tid.x;
  shr.u32 %warp, %lane, 5;
  and.b32 %lane, %lane, 31;
  mov.u32 %warps, %ntid.x;
  shr.u32 %warps, %warps, 5;
  mov.u32 %group, %ctaid.x;
  mov.u32 %groups, %nctaid.x;
  mul.wide.u32 %step, %groups, %warps;
  mad.lo.u32 %warp, %group, %warps, %warp;
  cvt.u64.u32 %index, %warp;

next_block:
  setp.ge.u64 %more, %index, %count;
  @%more bra end;
  add.u64 %block, %first, %index;
  mul.lo.u64 %begin, %block, %block_bytes;
  add.u64 %end, %begin, %block_bytes;
  min.u64 %end, %end, %bytes;
  mul.wide.u32 %at, %lane, 16;
  add.u64 %at, %at, %begin;
  mov.u64 %a, 0;
  mov.u64 %b, 0;

next_words:
  setp.ge.u64 %more, %at, %end;
  @%more bra sum;
  add.u64 %x, %memory, %at;
  mov.u64 %w0, 0;
  mov.u64 %w1, 0;
  @!%zero ld.global.v2.u64 {%w0, %w1}, [%x];
  mul.lo.u64 %place, %at, 0x9e3779b97f4a7c15;
)"
#define RCUDA_MIX(SUM, COMBINE, WORD, FIRST, SECOND)                                      \
  COMBINE " %x, " WORD ", %place;\n  mul.lo.u64 %x, %x, " FIRST                           \
          ";\n  shr.u64 %y, %x, 32;\n  xor.b64 %x, %x, %y;\n  mul.lo.u64 %x, %x, " SECOND \
          ";\n  shr.u64 %y, %x, 29;\n  xor.b64 %x, %x, %y;\n  add.u64 " SUM ", " SUM ", %x;\n"
#define RCUDA_MIX_BOTH(WORD)                                                   \
  RCUDA_MIX("%a", "xor.b64", WORD, "0xbf58476d1ce4e5b9", "0x94d049bb133111eb") \
  RCUDA_MIX("%b", "add.u64", WORD, "0xff51afd7ed558ccd", "0xc4ceb9fe1a85ec53")
    RCUDA_MIX_BOTH("%w0") "not.b64 %place, %place;\n" RCUDA_MIX_BOTH("%w1")
#undef RCUDA_MIX_BOTH
#undef RCUDA_MIX
        R"(
  add.u64 %at, %at, 512;
  bra next_words;

sum:
  mov.u32 %mask, 16;
next_lanes:
  mov.b64 {%low, %high}, %a;
  shfl.sync.bfly.b32 %low, %low, %mask, 31, 0xffffffff;
  shfl.sync.bfly.b32 %high, %high, %mask, 31, 0xffffffff;
  mov.b64 %x, {%low, %high};
  add.u64 %a, %a, %x;
  mov.b64 {%low, %high}, %b;
  shfl.sync.bfly.b32 %low, %low, %mask, 31, 0xffffffff;
  shfl.sync.bfly.b32 %high, %high, %mask, 31, 0xffffffff;
  mov.b64 %x, {%low, %high};
  add.u64 %b, %b, %x;
  shr.u32 %mask, %mask, 1;
  setp.ne.u32 %more, %mask, 0;
  @%more bra next_lanes;

  setp.ne.u32 %other, %lane, 0;
  @%other bra advance;
  shl.b64 %x, %block, 4;
  add.u64 %x, %digests, %x;
  @!%compares bra store;
  ld.global.u64 %old, [%x];
  setp.ne.u64 %other, %old, %a;
  ld.global.u64 %old, [%x+8];
  setp.ne.or.u64 %other, %old, %b, %other;
  selp.b16 %flag, 1, 0, %other;
  add.u64 %y, %flags, %block;
  st.global.u8 [%y], %flag;
  bra advance;
store:
  st.global.v2.u64 [%x], {%a, %b};

advance:
  add.u64 %index, %index, %step;
  bra next_block;
end:
  ret;
}
)";

// Returns the kernel of the context, which must be current. The first call loads it.
CUresult kernel_in(const api::DriverTable& driver, ContextState& context, CUfunction* kernel) {
  if (!context.block_digests) {
    CUmodule module = nullptr;
    RCUDA_RETURN_IF_CUDA_ERROR(driver.cuModuleLoadData(&module, kKernel));
    RCUDA_RETURN_IF_CUDA_ERROR(
        driver.cuModuleGetFunction(&context.block_digests, module, "rcuda_block_digests"));
  }
  *kernel = context.block_digests;
  return CUDA_SUCCESS;
}

}  // namespace

BlockDigests::BlockDigests(const api::DriverTable& driver, DigestMemory& all, ContextState& context,
                           uint64_t address, uint64_t bytes)
    : driver_(driver),
      all_(all),
      context_(context),
      address_(address),
      bytes_(bytes),
      block_bytes_(kLeastBlockBytes) {
  while ((bytes + block_bytes_ - 1) / block_bytes_ > kMostBlocks) block_bytes_ *= 2;
  block_count_ = (bytes + block_bytes_ - 1) / block_bytes_;
}

BlockDigests::~BlockDigests() {
  if (!memory_) return;
  // A wait of another client thread may have queued a comparison in the fetch stream.
  const bool is_unused =
      !context_.fetch_stream || driver_.cuStreamQuery(context_.fetch_stream) == CUDA_SUCCESS;
  all_.give(context_.id, memory_, memory_bytes(), is_unused);
}

uint64_t BlockDigests::memory_bytes() const { return block_count_ * (kDigestBytes + 1); }

std::unique_ptr<BlockDigests> BlockDigests::make(const api::DriverTable& driver,
                                                 DigestMemory& memory, ContextState& context,
                                                 uint64_t address, uint64_t bytes) {
  CUfunction kernel;
  CUresult result = kernel_in(driver, context, &kernel);
  std::unique_ptr<BlockDigests> made(new BlockDigests(driver, memory, context, address, bytes));
  const uint64_t needed = made->memory_bytes();
  if (result == CUDA_SUCCESS) made->memory_ = memory.take(context.id, needed, &result);
  if (result != CUDA_SUCCESS) {
    RCUDA_WARN(
        "cannot mirror %s of memory, because the worker cannot detect which blocks the GPU "
        "changes: CUDA error %d",
        exact_bytes_text(bytes).c_str(), static_cast<int>(result));
    return nullptr;
  }
  std::memset(made->memory_, 0xff, needed);
  made->flags_ = static_cast<uint8_t*>(made->memory_) + made->block_count_ * kDigestBytes;
  return made;
}

CUresult BlockDigests::note_zeros(const SessionStream& stream) {
  return launch(stream, 0, 0, block_count_, false);
}

CUresult BlockDigests::note(const SessionStream& stream, uint64_t offset, uint64_t bytes) {
  if (bytes == 0 || offset >= bytes_ || bytes > bytes_ - offset) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t first = (offset + block_bytes_ - 1) / block_bytes_;
  const uint64_t end = offset + bytes == bytes_ ? block_count_ : (offset + bytes) / block_bytes_;
  // If only a part of a block lies in the range, the GPU may have changed the rest of the block.
  if (offset % block_bytes_ != 0) {
    RCUDA_RETURN_IF_CUDA_ERROR(forget(stream, offset / block_bytes_));
  }
  if (end < block_count_ && (offset + bytes) % block_bytes_ != 0) {
    RCUDA_RETURN_IF_CUDA_ERROR(forget(stream, end));
  }
  if (first >= end) return CUDA_SUCCESS;
  return launch(stream, address_, first, end - first, false);
}

void BlockDigests::set(uint64_t offset, std::span<const wire::BlockDigest> digests) {
  auto* const all = static_cast<wire::BlockDigest*>(memory_);
  offset -= offset % kLeastBlockBytes;
  for (const wire::BlockDigest& digest : digests) {
    if (offset >= bytes_) return;
    all[offset / block_bytes_] =
        block_bytes_ == kLeastBlockBytes ? digest : wire::BlockDigest::none();
    offset += kLeastBlockBytes;
  }
}

// Sets a digest that no block has.
CUresult BlockDigests::forget(const SessionStream& stream, uint64_t block) {
  const auto digests = reinterpret_cast<CUdeviceptr>(memory_);
  return driver_.cuMemsetD32Async(digests + block * kDigestBytes, 0xffffffff,
                                  kDigestBytes / sizeof(uint32_t), stream.handle);
}

CUresult BlockDigests::compare(const SessionStream& stream) {
  return launch(stream, address_, 0, block_count_, true);
}

uint64_t BlockDigests::next_changed(uint64_t block) const {
  if (block >= block_count_) return block_count_;
  const auto* const found = static_cast<const uint8_t*>(
      std::memchr(flags_ + block, 1, static_cast<size_t>(block_count_ - block)));
  return found ? static_cast<uint64_t>(found - flags_) : block_count_;
}

CUresult BlockDigests::launch(const SessionStream& stream, uint64_t address, uint64_t first,
                              uint64_t count, bool compares) {
  CUfunction kernel;
  RCUDA_RETURN_IF_CUDA_ERROR(kernel_in(driver_, *stream.context, &kernel));
  auto digests = reinterpret_cast<CUdeviceptr>(memory_);
  CUdeviceptr flags = compares ? digests + block_count_ * kDigestBytes : 0;
  uint64_t bytes = bytes_, block_bytes = block_bytes_;
  void* parameters[] = {&address, &bytes, &block_bytes, &first, &count, &digests, &flags};
  constexpr uint64_t kBlocksInGroup = kThreads / kWarp;
  const uint64_t groups =
      std::min<uint64_t>((count + kBlocksInGroup - 1) / kBlocksInGroup, kMostGroups);
  return driver_.cuLaunchKernel(kernel, static_cast<unsigned>(groups), 1, 1, kThreads, 1, 1, 0,
                                stream.handle, parameters, nullptr);
}

}  // namespace rcuda::server
