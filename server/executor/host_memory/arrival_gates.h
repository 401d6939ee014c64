// ArrivalGates: makes streams wait for bytes of the client without a host function.
//
// With a host function that waits for bytes, the stream goes on 60 to 130 us after their arrival
// (H100): the driver starts the function only when the stream reaches it, and the GPU must learn of
// its return. At a gate the GPU itself polls a word of page-locked memory (cuStreamWaitValue32).
// The thread that stores the bytes writes this word. The value of a word only increases. So a word
// can serve the next copy as soon as all bytes of the previous copy are here, even if the previous
// copy's stream has not reached the gate.
//
// The words are page-locked in the primary context of the session's first device. A reset of this
// context unpins them for a moment. So only streams of this context, which end with it, wait at
// gates.
//
// Threads: take() and hold() on the executor thread, gates on any thread. Nothing blocks. Errors:
// those of the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class ArrivalGates : public std::enable_shared_from_this<ArrivalGates> {
 public:
  // The gate of one copy, whose bytes come in parts. The destructor opens the gate completely, so
  // that no stream waits at it any more. The owner must destroy the gate even if the copy fails.
  class Gate {
   public:
    Gate(std::shared_ptr<ArrivalGates> gates, uint32_t place, uint32_t before, uint32_t parts);
    ~Gate();
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
    // Opens the gate for streams that wait for the first `parts` parts or fewer. `parts` must not
    // be less than in the last call.
    void open(uint32_t parts);

   private:
    friend class ArrivalGates;
    const std::shared_ptr<ArrivalGates> gates_;
    const uint32_t place_;   // index of the word in words_
    const uint32_t before_;  // the word's value in take()
    const uint32_t parts_;
    uint32_t opened_ = 0;  // `parts` of the last open()
  };

  // `words`: page-locked memory that the GPUs can read; outlives the streams' work. Each word
  // serves one gate at a time. `driver`: used by hold() only.
  ArrivalGates(const api::DriverTable& driver, std::span<std::byte> words);

  size_t size() const { return size_; }

  // Returns null if the stream cannot wait at a gate, or if no gate is free.
  std::unique_ptr<Gate> take(const SessionStream& stream, uint32_t parts);
  // Makes the stream wait at the gate: its next work begins when the first `parts` parts are here.
  CUresult hold(const SessionStream& stream, const Gate& gate, uint32_t parts);

 private:
  const api::DriverTable& driver_;
  uint32_t* const words_;
  size_t size_ = 0;
  Mutex mutex_;
  std::vector<uint32_t> free_ RCUDA_GUARDED_BY(mutex_);  // indexes into words_
};

}  // namespace rcuda::server
