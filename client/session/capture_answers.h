// Decides which posted commands the client waits for. A command may be refused because of a stream
// capture; the call that sent the command must then return the error (client/route/capture.h).
// Threads: any. A CaptureAnswers applies to the thread that makes it.
#pragma once

#include <cuda.h>

namespace rcuda::client {

// Sets how many captures are in progress. With 0, earlier refusals are forgotten.
void set_captures(int count);
bool any_capture();

// While a CaptureAnswers exists and a capture is in progress, the client waits for each command
// that the thread posts, because the command may join the capture or break its rules. `always`: the
// client waits even if no capture is in progress.
class CaptureAnswers {
 public:
  explicit CaptureAnswers(bool always = false);
  ~CaptureAnswers();
  CaptureAnswers(const CaptureAnswers&) = delete;
  CaptureAnswers& operator=(const CaptureAnswers&) = delete;

 private:
  const bool always_;
};

// Whether the client must wait for a posted command (see CaptureAnswers). Once a capture is
// invalidated, the client waits for every command until no capture is in progress, because the
// streams of the capture refuse all work.
bool awaits_answers();
// Called when a command was refused. The errors from CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to
// CUDA_ERROR_CAPTURED_EVENT mean that the capture is now invalid.
void note_refusal(CUresult result);

}  // namespace rcuda::client
