// What the GPU has changed in small mirrors of page-locked memory: one question for many mirrors,
// whose answer has only the bytes that the client lacks.
//
// Threads: any; each function says which locks its caller holds. Nothing blocks but CallsInFlight.
#pragma once

#include <cstddef>
#include <vector>

#include <cuda.h>

#include "client/channel/calls_in_flight.h"
#include "client/process/mirror_exchange.h"

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

// Whether the mirror is small and page-locked memory, and its worker has the command. Of other
// memory, the worker does not know what the client has.
bool may_have_news(const Mirror& mirror);
// Asks about mirrors of one session and one context. `calls` fills in the answers. pull_mutex is
// held.
void ask_for_news(const std::vector<MirrorNews*>& mirrors, CallsInFlight* calls);
// Puts the bytes into `fetched`, among those that both sides have. Returns the blocks with changes.
// mirrors_mutex is held.
std::vector<Run> place_news(const MirrorNews& news);

}  // namespace rcuda::client
