// The entries of a fatbin container, as nvcc 13 writes them.
//
// Reading entries needs no decompressor; unpack.h decompresses them. All reads stay inside the
// given bytes: containers come from clients, which are not trusted. Any thread; results point into
// the bytes. Errors: kInvalidArgument.
//
// A container is {u32 magic; u16 version 1; u16 header size; u64 size after the header}, then its
// entries back to back. An entry is a header of 64 bytes or more (names and options follow the
// first 64), then the payload, padded to 8 bytes.
#pragma once

#include "common/image/image.h"

namespace rcuda::image {

enum class EntryKind : uint16_t {
  kPtx = 1,
  kElf = 2,
  kNvvm = 8
};  // other values exist and are returned unchanged
enum class Compression : uint8_t { kNone, kLz4, kZstd };

struct Entry {
  EntryKind kind{};
  uint32_t sm = 0;               // 75, 90, 120
  bool arch_specific = false;    // sm_90a: runs on this architecture only
  bool family_specific = false;  // sm_100f: runs on its family
  uint16_t version_major = 0;    // of the PTX language, or of the ELF code
  uint16_t version_minor = 0;
  uint64_t flags = 0;
  Compression compression = Compression::kNone;
  Bytes payload;            // as stored; uncompressed PTX may end in NULs
  uint64_t size_bytes = 0;  // after decompression
};

// The container at the start of `bytes`, without the bytes after it.
Result<Bytes> container_extent(Bytes bytes);

Result<std::vector<Entry>> entries(Bytes container);

}  // namespace rcuda::image
