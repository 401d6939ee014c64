// Bytes of any size that a call of our own brings back: notation "blob" of api/table.
//
// A reply carries the size, the first piece and, if that is not all, a number under which the
// worker keeps the bytes until the client has read the last of them with BlobRead commands.
#pragma once

#include <cstddef>
#include <vector>

namespace rcuda::api {

using Blob = std::vector<std::byte>;

inline constexpr size_t kBlobPieceBytes = 48u << 10;
// What a client takes from a worker.
inline constexpr size_t kMaxBlobBytes = 1u << 30;

}  // namespace rcuda::api
