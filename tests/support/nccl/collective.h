// The collectives: their shapes, and their results for the inputs of all ranks.
#pragma once

#include <string>
#include <vector>

#include "tests/support/nccl/nccl_api.h"
#include "tests/support/nccl/wire.h"

namespace testnccl {

enum class Collective : int {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAlltoAll,
  kGather,
  kScatter,
};

// All ranks must make the same call. `op` is ncclNumOps for every PreMulSum: the ranks have applied
// its factors themselves. `root` and `op` are 0 if the collective does not have them.
struct Call {
  Collective what;
  ncclDataType_t type;
  int op;
  int root;
  uint64_t count;

  bool operator==(const Call&) const = default;
};

// How the two buffers of a rank may overlap.
enum class InPlace { kNever, kSame, kPartOfReceived, kPartOfSent };

struct Shape {
  const char* name;
  bool reduces;
  bool has_root;
  bool sends_parts, only_root_sends;        // the sent bytes have a part for each rank
  bool receives_parts, only_root_receives;  // the received bytes have a part of each rank
  InPlace in_place;
};

const Shape& shape_of(Collective what);

// Bytes of an element, 0 if there is no such type.
size_t size_of(ncclDataType_t type);

// Bytes that `rank` of `ranks` sends and receives.
size_t bytes_sent(const Call& call, int rank, int ranks);
size_t bytes_received(const Call& call, int rank, int ranks);

// "AllReduce of 100 float32 (sum)".
std::string describe(const Call& call);

// The inputs must have bytes_sent() bytes each. Returns the ranks' results.
std::vector<Bytes> compute(const Call& call, const std::vector<Bytes>& inputs);

// Multiplies each element by the element at `scalar`.
void scale(ncclDataType_t type, Bytes& elements, const void* scalar);

}  // namespace testnccl
