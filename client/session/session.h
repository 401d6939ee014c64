// Session: this process's connection to one worker, and through it to one server's GPUs.
//
// Owns the Link, the command ring's writing side, the reply slots, the completion words, the ids of
// what the client creates on that worker, and a thread that takes events (device output, host
// callbacks) from the worker. Opened by Process (process.h) in cuInit and kept until the process
// ends.
//
// Threads: everything may be called from any thread. Commands of all threads enter one ring in the
// order of their post() and call(), which is the order the worker carries them out in.
// Blocking: post() only while the ring is full; call() and wait_word() until the worker answered or
// the Link broke.
// Errors: CUresult throughout, because callers are entry points. A broken Link becomes
// kSessionLost, here and nowhere else, and stays; it is logged once with the reason.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "client/objects/object.h"
#include "client/session/device_list.h"
#include "client/session/event_thread.h"
#include "client/session/ids.h"
#include "client/session/marshal.h"
#include "client/session/quiet_contexts.h"
#include "client/session/trace.h"
#include "common/base/status.h"
#include "common/transport/link.h"
#include "common/wire/handshake.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"

namespace rcuda::client {

class Staging;

// What the application sees when a worker or its server is gone: "all CUDA-capable devices are busy
// or unavailable", and it stays.
inline constexpr CUresult kSessionLost = CUDA_ERROR_DEVICE_UNAVAILABLE;

struct SessionOptions {
  wire::Hello hello;                          // devices and medium are filled in by open()
  const transport::Medium* medium = nullptr;  // null: auto
  std::chrono::milliseconds connect_timeout{5'000};
  // How long a server may be silent after the Hello. One whose workers are still starting says so.
  std::chrono::milliseconds answer_timeout{5'000};
  std::chrono::milliseconds handshake_timeout{30'000};  // for each step behind the Welcome
  transport::LinkOptions link;
  bool synchronous = false;  // RCUDA_SYNC=1: every post() is a round trip
};

class Session {
 public:
  // Connects, shakes hands and makes the Link. The status names the server and the mend.
  static Result<std::unique_ptr<Session>> open(const ServerDevices& server,
                                               const SessionOptions& options);
  ~Session();

  const wire::Welcome& welcome() const { return welcome_; }
  const ServerDevices& server() const { return server_; }
  uint32_t index() const { return index_; }          // among the process's sessions, from 0
  const std::string& name() const { return name_; }  // "node1:8308 over shm", for messages
  const std::vector<uint32_t>& ordinals() const { return server_.ordinals; }
  transport::Link& link() { return *link_; }
  Staging& staging() { return *staging_; }
  Ids& ids() { return ids_; }

  // One command: `body` then `tail` follow the header. The result is an error latched by an earlier
  // posted command or asynchronous failure, else success. One of more than wire::kMaxCommandBytes
  // is CUDA_ERROR_INVALID_VALUE, and not sent.
  CUresult post(wire::ObjectId context, uint16_t opcode, std::span<const std::byte> body,
                std::span<const std::byte> tail = {}, transport::Wake wake = transport::Wake::kYes);
  // The same, and leaves errors of earlier ones to whoever asks for them.
  CUresult post_only(wire::ObjectId context, uint16_t opcode, std::span<const std::byte> body,
                     std::span<const std::byte> tail = {},
                     transport::Wake wake = transport::Wake::kYes);
  CUresult call(wire::ObjectId context, uint16_t opcode, std::span<const std::byte> body,
                std::span<const std::byte> tail, size_t reply_bytes, Reply* reply);

  // A call in two steps, so that several may be under way: begin() sends it, if a reply slot is
  // free or `patient`; each that returned true must be finished, in any order. `at_once`: finish()
  // follows directly. Otherwise a trace shows the command as posted and the wait apart from it,
  // since calls that overlap on one thread cannot be drawn.
  struct Call {
    uint32_t slot = 0, slot_bytes = 0;
    uint32_t call = 0;
    CUresult sent = CUDA_SUCCESS;
    std::optional<trace::CommandSpan> span;
  };
  bool begin(wire::ObjectId context, uint16_t opcode, std::span<const std::byte> body,
             std::span<const std::byte> tail, size_t reply_bytes, bool patient, Call* call,
             bool at_once = false);
  CUresult finish(Call& call, Reply* reply);

  // The asynchronous error waiting to be reported, which is then forgotten unless it is sticky
  // (the context is lost), or that the session is lost. Called by whatever may return one.
  CUresult take_error();

  // A completion word and the sequence last asked of it: sequences go on growing when the word
  // changes hands, so a late write of the worker can never be taken for an early one.
  struct Word {
    uint32_t index = 0;
    uint64_t sequence = 0;
  };
  // For a wait, which gives it back. Waits for one to become free in the unlikely case that all are
  // taken.
  Word acquire_word();
  // To keep until something happens that may never happen: some are left for those who wait.
  std::optional<Word> acquire_spare_word();
  void release_word(Word word);
  bool word_reached(uint32_t index, uint64_t sequence, CUresult* result) const;
  // Until the word's sequence reached `sequence`; its result, or kSessionLost. Prints what kernels
  // printed before that point.
  CUresult wait_word(uint32_t index, uint64_t sequence);
  // Posts a command that carries a completion word, `body.word` and `body.sequence`, which are set
  // here, and waits for it. As synchronize(), for the point in the stream that the command names.
  template <typename Body>
  CUresult post_and_wait(wire::ObjectId context, wire::Custom opcode, wire::ObjectId stream,
                         Body body) {
    Word word = acquire_word();
    body.word = word.index;
    body.sequence = ++word.sequence;
    return post_and_wait(context, opcode, stream, std::as_bytes(std::span(&body, 1)), word);
  }
  // Grows whenever a caller is about to be told that something is done. What was unfinished before
  // may be finished since, and its own word may come later than what told the caller.
  uint64_t learned() const { return learned_.load(std::memory_order_acquire); }
  void learn() { learned_.fetch_add(1, std::memory_order_acq_rel); }
  // Everything posted so far on the stream (or in the context) is done; prints what kernels
  // printed.
  CUresult synchronize(wire::ObjectId context, wire::ObjectId stream);
  CUresult synchronize_context(wire::ObjectId context);
  uint64_t commands();  // that have been sent
  // Whether a synchronisation of the context or its default stream would find nothing to wait for.
  bool is_quiet(QuietContexts::Scope scope, wire::ObjectId context);
  // What was in it when there had been `before` commands() is done.
  void waited_for(QuietContexts::Scope scope, wire::ObjectId context, uint64_t before);

  // Every object by its id: the worker may name one that the client minted (a graph's own stream)
  // or one of its own (a captured graph's nodes), whose object is made when it is first named.
  void remember(Object* object);
  Object* adopted(wire::Kind kind, wire::ObjectId id, wire::ObjectId context, uint32_t device);
  template <typename T>
  T* adopted(wire::ObjectId id, wire::ObjectId context, uint32_t device) {
    return static_cast<T*>(adopted(T::kKind, id, context, device));
  }
  void forget(wire::Kind kind, wire::ObjectId id);

  // Held while what tells of the progress of streams and events is changed (progress.h), and while
  // a stream's queue is looked at (pace.h): seldom, and perhaps until a full command ring has room.
  // In this order: pace, watch.
  std::mutex& pace_mutex() { return pace_mutex_; }
  std::mutex& watch_mutex() { return watch_mutex_; }
  // Held while an image is sent: who sends the same one next is told that it is there.
  std::mutex& image_mutex() { return image_mutex_; }
  // Held while a reference to an allocation's handle is taken or given back, so that the worker
  // sees these commands in the order of the count (client/entry/shareable.cpp).
  std::mutex& references_mutex() { return references_mutex_; }
  // client/memory/peer_copy.cpp's; null until it makes one.
  CUstream& passing_stream() { return passing_stream_; }

  EventThread& events() { return *events_; }
  bool lost() const { return !link_->status().ok(); }
  // A transfer failed, and with it the session: says so and closes the Link. Gives kSessionLost.
  CUresult lose(const Status& why);
  // What the session's medium can do: those of link().traits(), kept here.
  const transport::MediumTraits& traits() const { return traits_; }
  // How long to spin for what the worker is about to do before sleeping.
  std::chrono::nanoseconds spin() const { return spin_; }

  // See Link::abandon().
  void abandon() noexcept;
  // Tells the worker that the end is intended. No call may follow.
  void end();

 private:
  friend class Reply;
  Session() = default;

  // As far as a Link that stands.
  Status connect(const ServerDevices& server, const SessionOptions& options);
  bool acquire_slot(size_t reply_bytes, bool patient, Call* call);
  void release_slot(uint32_t offset);
  // `number`: of the command among all of the session, from 1.
  CUresult send(const wire::CommandHeader& header, std::span<const std::byte> body,
                std::span<const std::byte> tail, transport::Wake wake, uint64_t* number);
  CUresult wait_for_reply(const Call& call, Reply* reply);
  template <typename Ready>
  CUresult wait_until(const Ready& ready);
  CUresult session_lost();
  CUresult report_loss(const Status& why);
  void trace();
  void await_trace();
  CUresult post_and_wait(wire::ObjectId context, wire::Custom opcode, wire::ObjectId stream,
                         std::span<const std::byte> body, Word word);
  const std::atomic<uint64_t>& client_word(uint64_t offset) const;

  std::string name_;
  ServerDevices server_;
  uint32_t index_ = 0;
  wire::Welcome welcome_;
  bool synchronous_ = false;
  transport::MediumTraits traits_;
  uint32_t trace_ = 0;  // this session's number in the trace
  std::chrono::nanoseconds spin_{0};
  std::unique_ptr<transport::Link> link_;
  std::mutex order_mutex_;  // what enters the ring under it is in the order the worker sees
  uint64_t commands_ = 0;   // that have entered it
  QuietContexts quiet_;     // guarded by order_mutex_
  std::unique_ptr<wire::RingWriter> commands_ring_;
  std::unique_ptr<EventThread> events_;
  std::unique_ptr<Staging> staging_;
  Ids ids_;

  std::mutex pace_mutex_, watch_mutex_;
  std::mutex image_mutex_;
  std::mutex references_mutex_;
  CUstream passing_stream_ = nullptr;
  std::atomic<uint32_t> next_call_{1};
  std::atomic<uint64_t> learned_{1};
  std::atomic<uint64_t> reported_error_{0};  // the error word's value that was already reported
  std::atomic<bool> loss_logged_{false};

  std::mutex slots_mutex_;
  std::vector<uint32_t> small_slots_, large_slots_;  // free ones, by offset
  std::mutex objects_mutex_;
  std::unordered_map<uint64_t, Object*> objects_;  // by kind and id
  std::mutex words_mutex_;
  std::vector<Word> free_words_;
};

// The calling thread's number, from 1, in order of first use.
uint32_t thread_number();

}  // namespace rcuda::client
