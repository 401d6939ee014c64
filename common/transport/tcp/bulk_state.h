// The states of a BulkStream (bulk_stream.h) and of this side's pieces, and every transition
// between them.
//
// A write begins in kSending, or in kAnswered if it gets no answer (with an immediate, or in
// order); a read begins in kAsking. A message of the peer without a row in the table of pieces
// violates the protocol.
#pragma once

#include <cstdint>

#include "common/base/state_word.h"

namespace rcuda::transport {

enum class StreamState : uint8_t {
  kMade,     // no thread runs
  kRunning,  // pieces are sent and received
  kFailed,   // nothing more is sent; the receiving thread reports why
  kStopped,  // nothing more is sent; waits for the threads that may use the memory of pieces
  kEnded,    // no thread uses that memory, and all pieces are complete
};
inline constexpr auto kLastStreamState = StreamState::kEnded;

enum class StreamEvent : uint8_t {
  kStart,    // the receiving thread has started
  kFailure,  // a thread cannot send or receive, or cannot be started
  kStop,     // BulkStream::stop(), in any thread
  kLeft,     // the last thread that may use the memory of pieces has left
};

inline constexpr Transition<StreamState, StreamEvent> kStreamTransitions[] = {
    {StreamState::kMade, StreamEvent::kStart, StreamState::kRunning},
    {StreamState::kMade, StreamEvent::kStop, StreamState::kEnded},
    {StreamState::kRunning, StreamEvent::kFailure, StreamState::kFailed},
    {StreamState::kRunning, StreamEvent::kStop, StreamState::kStopped},
    {StreamState::kFailed, StreamEvent::kStop, StreamState::kStopped},
    {StreamState::kStopped, StreamEvent::kLeft, StreamState::kEnded},
    // A further failure or stop changes nothing.
    {StreamState::kFailed, StreamEvent::kFailure, StreamState::kFailed},
    {StreamState::kStopped, StreamEvent::kFailure, StreamState::kStopped},
    {StreamState::kStopped, StreamEvent::kStop, StreamState::kStopped},
    {StreamState::kEnded, StreamEvent::kStop, StreamState::kEnded},
};

// Whether stop() was called: new pieces are refused.
constexpr bool is_stopped(StreamState state) { return state >= StreamState::kStopped; }

enum class PieceState : uint8_t {
  kAsking,    // a request for bytes is being sent
  kAsked,     // waits for the bytes
  kSending,   // the message is being sent; also waits for the outcome
  kSent,      // waits for the outcome
  kAnswered,  // the message is being sent; its outcome is known or will not come
  kOver,      // the memory belongs to the caller again
};
inline constexpr auto kLastPieceState = PieceState::kOver;

enum class PieceEvent : uint8_t {
  kSent,     // this side no longer uses the caller's memory to send
  kData,     // a message kData (BulkHeader) begins to arrive
  kDone,     // a message kDone without an error has arrived
  kRefusal,  // a message kDone with an error has arrived
};
inline constexpr auto kLastPieceEvent = PieceEvent::kRefusal;

inline constexpr Transition<PieceState, PieceEvent> kPieceTransitions[] = {
    {PieceState::kAsking, PieceEvent::kSent, PieceState::kAsked},
    {PieceState::kAsking, PieceEvent::kData, PieceState::kSending},
    {PieceState::kAsking, PieceEvent::kRefusal, PieceState::kAnswered},
    {PieceState::kAsked, PieceEvent::kData, PieceState::kSent},
    {PieceState::kAsked, PieceEvent::kRefusal, PieceState::kOver},
    {PieceState::kSending, PieceEvent::kSent, PieceState::kSent},
    {PieceState::kSending, PieceEvent::kDone, PieceState::kAnswered},
    {PieceState::kSending, PieceEvent::kRefusal, PieceState::kAnswered},
    {PieceState::kSent, PieceEvent::kDone, PieceState::kOver},
    {PieceState::kSent, PieceEvent::kRefusal, PieceState::kOver},
    // The outcome may come before the last send() has returned. The caller gets the memory back
    // only after both: a peer that reports too early must not make this side read freed memory.
    {PieceState::kAnswered, PieceEvent::kSent, PieceState::kOver},
};

constexpr const char* to_string(StreamState state) {
  constexpr const char* kNames[] = {"made", "running", "failed", "stopped", "ended"};
  return kNames[static_cast<int>(state)];
}

constexpr const char* to_string(StreamEvent event) {
  constexpr const char* kNames[] = {"start", "failure", "stop", "the last thread's end"};
  return kNames[static_cast<int>(event)];
}

constexpr const char* to_string(PieceState state) {
  constexpr const char* kNames[] = {"asking", "asked", "sending", "sent", "answered", "over"};
  return kNames[static_cast<int>(state)];
}

}  // namespace rcuda::transport
