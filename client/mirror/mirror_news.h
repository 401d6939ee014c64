// Fetches the GPU's changes in small mirrors of page-locked memory. One query covers many mirrors,
// and its answer has only the bytes that the client lacks.
//
// Threads: any; each function says which locks its caller holds. Only CallsInFlight blocks.
#pragma once

#include <cstddef>
#include <vector>

#include <cuda.h>

#include "client/mirror/mirror_exchange.h"
#include "client/session/calls_in_flight.h"

namespace rcuda::client {

// The answer for one mirror.
struct MirrorNews {
  Mirror* mirror = nullptr;
  CUresult result = CUDA_SUCCESS;
  bool is_complete = false;  // false: all bytes have to be fetched
  wire::MirrorState state{};
  std::vector<Run> runs;         // the changed bytes
  std::vector<std::byte> bytes;  // of the runs, one after the other
};

// Whether the mirror is small and page-locked memory, and its worker supports the command. For
// other memory, the worker does not record what the client has.
bool may_have_news(const Mirror& mirror);
// Asks for the news of mirrors of one session and one context. `calls` fills in the answers. The
// caller holds pull_mutex.
void ask_for_news(const std::vector<MirrorNews*>& mirrors, CallsInFlight* calls);
// Writes the bytes into `fetched`, and fills the rest of each changed block with bytes that both
// sides have. Returns the blocks with changes. The caller holds mirrors_mutex.
std::vector<Run> place_news(const MirrorNews& news);

}  // namespace rcuda::client
