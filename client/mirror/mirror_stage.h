// MirrorStage: the stages of mirrored memory (mirror.h), and every transition between them.
//
//   New --exchange--> Current --failed fetch--> Stale --fetch--> Current
//   any of these --removal--> Ended
//
// The stage of a mirror changes only with mirrors_mutex held.
#pragma once

#include <cstdint>

#include "common/base/state_word.h"

namespace rcuda::client {

enum class MirrorStage : uint8_t {
  kNew,      // never exchanged: Mirror::known has no meaning
  kCurrent,  // Mirror::known has the bytes of the last exchange
  kStale,    // the last fetch failed; a push before the next fetch could undo writes of the GPU
  kEnded,    // Mirror::address may be unmapped
};
inline constexpr auto kLastMirrorStage = MirrorStage::kEnded;

enum class MirrorEvent : uint8_t {
  kExchange,     // push() has succeeded, or merge() has taken bytes over
  kFetch,        // a fetch after a wait has taken over everything that is new
  kFailedFetch,  // a fetch after a wait has failed
  kRemoval,      // unmirror(), unmirror_context(), or the end of a variable
};
inline constexpr auto kLastMirrorEvent = MirrorEvent::kRemoval;

inline constexpr Transition<MirrorStage, MirrorEvent> kMirrorTransitions[] = {
    {MirrorStage::kNew, MirrorEvent::kExchange, MirrorStage::kCurrent},
    {MirrorStage::kCurrent, MirrorEvent::kFailedFetch, MirrorStage::kStale},
    {MirrorStage::kStale, MirrorEvent::kFetch, MirrorStage::kCurrent},
    {MirrorStage::kNew, MirrorEvent::kRemoval, MirrorStage::kEnded},
    {MirrorStage::kCurrent, MirrorEvent::kRemoval, MirrorStage::kEnded},
    {MirrorStage::kStale, MirrorEvent::kRemoval, MirrorStage::kEnded},
    // The first fetch of a variable; kExchange follows if the fetch brought bytes.
    {MirrorStage::kNew, MirrorEvent::kFetch, MirrorStage::kNew},
    {MirrorStage::kNew, MirrorEvent::kFailedFetch, MirrorStage::kNew},
    {MirrorStage::kCurrent, MirrorEvent::kExchange, MirrorStage::kCurrent},
    {MirrorStage::kCurrent, MirrorEvent::kFetch, MirrorStage::kCurrent},
    // A host function exchanges only some of the bytes.
    {MirrorStage::kStale, MirrorEvent::kExchange, MirrorStage::kStale},
    {MirrorStage::kStale, MirrorEvent::kFailedFetch, MirrorStage::kStale},
    // Another thread's fetch was in progress when the memory was removed.
    {MirrorStage::kEnded, MirrorEvent::kFailedFetch, MirrorStage::kEnded},
};

constexpr bool has_exchanged(MirrorStage stage) {
  return stage == MirrorStage::kCurrent || stage == MirrorStage::kStale;
}

constexpr const char* to_string(MirrorStage stage) {
  constexpr const char* kNames[] = {"new", "current", "stale", "ended"};
  return kNames[static_cast<int>(stage)];
}

constexpr const char* to_string(MirrorEvent event) {
  constexpr const char* kNames[] = {"exchange", "fetch", "failed fetch", "removal"};
  return kNames[static_cast<int>(event)];
}

}  // namespace rcuda::client
