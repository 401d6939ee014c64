// Channel: the client's end of a session's protocol (protocol.h). It sends commands to the worker,
// and takes replies, completion words and the error word out of this side's window. It does not
// know streams or contexts: the caller writes the context's id into the header.
//
// Threads: any. The commands of all threads enter one ring, in the order of send().
// Blocking: send() while the ring is full, a patient acquire_slot() while all slots are in use, and
// wait() until the worker has answered. send() and wait() return kTimeout after `patience`. Other
// errors: those of the Link, and kProtocol for a malformed reply. The Link's owner decides how to
// handle them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/cancellation_off.h"
#include "common/base/cpu_pause.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/link.h"
#include "common/wire/command.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"

namespace rcuda::wire {

class Channel;

// A completion word, and the sequence number that it has when a certain request is done.
struct Word {
  uint32_t index = 0;
  uint64_t sequence = 0;
};

// A slot in the client's window, which is reserved for the reply of one call.
struct ReplySlot {
  uint32_t call = 0;
  uint32_t offset = 0, bytes = 0;  // in this side's window

  // Writes into a command's header that the reply goes to this slot.
  void name_in(CommandHeader* header) const {
    header->call = call;
    header->reply_slot = offset;
    header->reply_bytes = bytes;
  }
};

// A reply, without its header. Keeps its slot until it is destroyed.
class Reply {
 public:
  Reply() = default;
  explicit Reply(std::span<const std::byte> body) : body_(body) {}  // without a slot
  ~Reply();
  Reply(Reply&& other) noexcept
      : channel_(std::exchange(other.channel_, nullptr)), slot_(other.slot_), body_(other.body_) {}
  Reply& operator=(Reply&& other) noexcept {
    std::swap(channel_, other.channel_);
    std::swap(slot_, other.slot_);
    std::swap(body_, other.body_);
    return *this;
  }
  bool has_slot() const { return channel_; }
  std::span<const std::byte> body() const { return body_; }

 private:
  friend class Channel;
  Channel* channel_ = nullptr;
  ReplySlot slot_;
  std::span<const std::byte> body_;
};

class Channel {
 public:
  static constexpr std::chrono::milliseconds kForever = std::chrono::milliseconds::max();
  // The most bytes of one reply, without its header.
  static constexpr size_t kMostReplyBytes =
      ClientWindow::kLargeReplyBytes - sizeof(ReplyHeader) - sizeof(uint64_t);

  // `link` outlives the channel; its windows are large enough. `spin`: how long a waiting thread
  // spins before it sleeps.
  Channel(transport::Link& link, std::chrono::nanoseconds spin,
          std::chrono::milliseconds patience = kForever);

  transport::Link& link() { return link_; }
  std::chrono::nanoseconds spin() const { return spin_; }

  // Sends one command, with the header's context, thread and reply slot. Calls `ordered` with the
  // command's number, from 1, while it holds the lock that orders commands.
  template <typename Ordered>
  Status send(const CommandHeader& header, const Command& command, transport::Wake wake,
              const Ordered& ordered) {
    const Head head(header, command);
    std::optional<CancellationOff> off;  // a put over a network may block in a system call
    if (is_network_) off.emplace();
    MutexLock lock(order_mutex_);
    ordered(++commands_);
    return ring_.append(head.bytes(), command.tail, wake, deadline());
  }
  Status send(const CommandHeader& header, const Command& command,
              transport::Wake wake = transport::Wake::kYes) {
    return send(header, command, wake, [](uint64_t) {});
  }
  uint64_t commands();  // the number of commands sent so far

  // Takes a slot for a reply of `reply_bytes`, not counting its header, and a number for the call.
  // If `patient`, waits while all slots are in use; otherwise returns false if at most a quarter of
  // them is free.
  bool acquire_slot(size_t reply_bytes, bool patient, ReplySlot* slot);
  void release_slot(const ReplySlot& slot);
  // Whether the worker has written the reply. If so, take_reply() hands the slot over to *reply,
  // and *result receives the worker's result.
  bool has_reply(const ReplySlot& slot) const;
  Status take_reply(const ReplySlot& slot, uint32_t* result, Reply* reply);

  // Whether the word has reached its sequence: the worker has written it, or the GPU has written
  // the GPU-written word with the same index. *result receives the worker's result; 0 if only the
  // GPU has written.
  bool word_reached(const Word& word, uint32_t* result) const;
  // Maps the region of GPU-written words (ReadyEvent::marks_region). Call it before the first
  // command.
  Status map_marks(const ReadyEvent& ready);
  // Whether the GPU may write a word for the command. Such a command takes two places in the
  // driver's queue of its stream.
  bool is_marked(const Command& command) const;

  // Returns ClientWindow::kErrorWord, a CompletionWord: the number and result of the last error of
  // posted commands or asynchronous work; 0: none.
  uint64_t error_word() const { return word_at(ClientWindow::kErrorWord); }

  // Returns ClientWindow::kParkWord.
  uint64_t park_word() const { return word_at(ClientWindow::kParkWord); }

  // Waits until `ready` returns true. `ready` is called again whenever the worker has written
  // something, and after Link::interrupt().
  template <typename Ready>
  Status wait(const Ready& ready) {
    return wait_until(ready, deadline());
  }
  // As wait(), but returns kTimeout at `end`.
  template <typename Ready>
  Status wait_until(const Ready& ready, std::chrono::steady_clock::time_point end) {
    // An answer that needs no GPU work arrives within this time. After this time, a waiting thread
    // yields its core to others.
    constexpr auto kAnswer = std::chrono::microseconds(50);
    const Clock::time_point begin = Clock::now();
    for (Clock::duration waited{0}; waited < spin_; waited = Clock::now() - begin) {
      for (int i = 0; i < 64; ++i) {
        if (ready()) return {};
        cpu_pause();
      }
      if (waited > kAnswer) std::this_thread::yield();
    }
    return sleep_until(ready, end);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Header and body are sent as one piece. Bodies are small; tails (bytes to copy, parameters) are
  // not copied here.
  class Head {
   public:
    Head(CommandHeader header, const Command& command);
    std::span<const std::byte> bytes() const { return bytes_; }

   private:
    std::byte small_[sizeof(CommandHeader) + 1024];
    std::vector<std::byte> large_;
    std::span<const std::byte> bytes_;
  };

  template <typename Ready>
  Status sleep_until(const Ready& ready, Clock::time_point end) {
    constexpr auto kLongest = std::chrono::hours(24);
    while (true) {
      const Status status = link_.wait(ready, std::min(end, Clock::now() + kLongest));
      if (status.ok() || ready()) return {};
      if (status.code() != Code::kTimeout || Clock::now() >= end) return status;
    }
  }
  Clock::time_point deadline() const {
    return patience_ == kForever ? Clock::time_point::max() : Clock::now() + patience_;
  }
  uint64_t word_at(uint64_t offset) const {
    const auto& word = *reinterpret_cast<const std::atomic<uint64_t>*>(window_ + offset);
    return word.load(std::memory_order_acquire);  // bytes put before the word are visible, too
  }

  transport::Link& link_;
  const std::byte* const window_;
  const std::chrono::nanoseconds spin_;
  const std::chrono::milliseconds patience_;
  const bool is_network_;

  Mutex order_mutex_;
  uint64_t commands_ RCUDA_GUARDED_BY(order_mutex_) = 0;
  RingWriter ring_ RCUDA_GUARDED_BY(order_mutex_);

  std::atomic<uint32_t> next_call_{1};
  Mutex slots_mutex_;
  // Offsets of the free slots.
  std::vector<uint32_t> small_slots_ RCUDA_GUARDED_BY(slots_mutex_);
  std::vector<uint32_t> large_slots_ RCUDA_GUARDED_BY(slots_mutex_);

  std::span<const uint64_t> marks_;  // may be empty
};

}  // namespace rcuda::wire
