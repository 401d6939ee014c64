// Bytes of any size that one of rcuda's own calls returns: notation "blob" of api/table.
//
// A reply carries the size and the first piece. If bytes remain, it also carries a number. The
// worker keeps the bytes under this number until the client has read the last byte with BlobRead
// commands.
#pragma once

#include <cstddef>
#include <vector>

namespace rcuda::api {

using Blob = std::vector<std::byte>;

inline constexpr size_t kBlobPieceBytes = 48u << 10;
// The largest blob that a client accepts from a worker.
inline constexpr size_t kMaxBlobBytes = 1u << 30;

}  // namespace rcuda::api
