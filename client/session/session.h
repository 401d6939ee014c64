// Session: this process's connection to one worker, and through it to one server's GPUs.
//
// Owns the Link and its Channel, the completion words, the timelines, the staging region, the ids
// of the objects that the client creates on that worker, and the threads that take events (output
// of kernels, host functions) from the worker. Process (client/process/process.h) opens the session
// in the first call that needs a server, usually cuInit, and keeps it until the process ends.
//
// Threads: every function may be called from any thread. Commands of all threads enter one ring in
// the order of post() and call(). The worker executes them in this order, with three exceptions. It
// postpones a call if the driver would wait in it for an idle device. Waits for events may overtake
// launches and copies (server/worker/waits_ahead.h). Calls of NCCL that may wait for other ranks
// run on threads of their own while later commands run (server/executor/nccl/nccl.h).
// Blocking: post() blocks while the ring is full. With RCUDA_SYNC or during a capture it may also
// block until the worker has answered. call() and wait_word() block until the worker has answered
// or the Link is broken.
// Files: session_connect.cpp begins and ends sessions; session.cpp has the rest; wait.h has waits.
// Errors: CUresult after open(), because callers are entry points. In the states Lost and Ended
// (session_state.h), calls that need the worker return kSessionLost. A loss is logged once, with
// the reason.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cuda.h>

#include "client/pool/device_list.h"
#include "client/session/address_windows.h"
#include "client/session/completion_words.h"
#include "client/session/ids.h"
#include "client/session/image_book.h"
#include "client/session/lacking_commands.h"
#include "client/session/mirror_sync.h"
#include "client/session/reply.h"
#include "client/session/route.h"
#include "client/session/session_state.h"
#include "client/session/shadow_regions.h"
#include "client/session/timeline_host.h"
#include "client/session/timelines.h"
#include "client/session/worker_events.h"
#include "client/trace/trace.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/messages/handshake.h"
#include "common/reach/identify.h"
#include "common/transport/arrivals.h"
#include "common/transport/link.h"
#include "common/wire/channel.h"
#include "common/wire/command.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

class ReachedPlaces;
class Staging;

// The place of a command among all commands of its session, and in its timeline.
struct SentCommand {
  uint64_t number = 0;    // in the session, from 1; 0: the command was not sent
  uint64_t position = 0;  // in the route's timeline
  bool is_sent() const { return number != 0; }
};

struct CallOptions {
  size_t reply_bytes = 0;  // capacity for the reply's body
  bool patient = true;     // whether begin() may wait for a reply slot
  // The caller calls finish() directly after begin(). Otherwise a trace shows the command as posted
  // and the wait separately, because slices that overlap on one thread cannot be drawn.
  bool at_once = false;
  transport::Wake wake = transport::Wake::kNow;
};

// Returns the Hello of this process, without devices. Fails only if the system has no random bytes.
Result<wire::Hello> make_hello();

struct SessionOptions {
  wire::Hello hello;                          // open() sets devices, medium, waiting time, lease
  const transport::Medium* medium = nullptr;  // null: auto
  std::chrono::milliseconds connect_timeout{5'000};
  // How long a server may be silent after the Hello. While it starts a worker, it sends kQueued
  // every second.
  std::chrono::milliseconds answer_timeout{5'000};
  std::chrono::milliseconds handshake_timeout{30'000};  // for each step after the Welcome
  transport::LinkOptions link;
  bool synchronous = false;                        // RCUDA_SYNC=1: every post() is a round trip
  std::chrono::milliseconds wake_wait{0};          // RCUDA_WAKE_WAIT; 0: without a limit
  const wire::Credentials* credentials = nullptr;  // null: the defaults; outlives open()
  // The end of RCUDA_WAIT, for all sessions of the program. Not set: open() does not wait.
  std::optional<std::chrono::steady_clock::time_point> wait_until;
  // Called about once a second while open() waits for the program's turn; may be null.
  std::function<void()> while_waiting;
};

class Session final : public TimelineHost {
 public:
  // Connects, shakes hands and makes the Link. An error names the server and the remedy. While the
  // server cannot be reached or takes no sessions, tries again until SessionOptions::wait_until
  // (retries.h). Does not try again once the server has assigned a worker.
  static Result<std::unique_ptr<Session>> open(const ServerDevices& server,
                                               const SessionOptions& options);
  ~Session();

  const wire::Welcome& welcome() const { return welcome_; }
  const ServerDevices& server() const { return server_; }
  bool encrypted() const { return encrypted_; }
  // RCUDA_SECURITY=tls: only media that encrypt are chosen, also between servers.
  bool must_encrypt() const { return must_encrypt_; }
  // The session ends when a connection stays lost for this time (RCUDA_RECONNECT). Also applies to
  // connections between servers.
  uint32_t reconnect_ms() const { return reconnect_ms_; }
  uint64_t serial() const { return serial_; }        // unique among all sessions, also ended ones
  uint32_t index() const { return index_; }          // among the process's sessions, from 0
  const std::string& name() const { return name_; }  // "node1:8308 over shm", for messages
  const std::vector<uint32_t>& ordinals() const { return server_.ordinals; }
  transport::Link& link() { return *link_; }
  Staging& staging() { return *staging_; }
  ShadowRegions& shadows() { return shadows_; }
  // Records the worker's writes with immediates. If the session is lost, an expected write never
  // ends, so callers wait with wait_for(), which then returns kSessionLost.
  transport::Arrivals& arrivals() { return arrivals_; }
  Ids& ids() { return ids_; }
  const LackingCommands& lacking() const { return lacking_; }
  // The device addresses of this session. AddressWindows::open() gives access to the pages that the
  // application itself reads or writes.
  AddressWindows& windows() { return windows_; }
  // Whether the worker may return this range as memory of its device. If not, makes the session
  // lost, and logs the server and `what`, for example "managed memory".
  bool accepts(uint64_t address, uint64_t bytes, const char* what);

  // Sends one command. With RCUDA_SYNC or while awaits_answers() is true (capture_answers.h),
  // post() waits for the worker's answer and returns the worker's error. Any other error means that
  // the command was not sent: kSessionLost, CUDA_ERROR_INVALID_VALUE if it exceeds
  // wire::kMaxCommandBytes, CUDA_ERROR_NOT_SUPPORTED if it is one of lacking(), or
  // CUDA_ERROR_OUT_OF_MEMORY if the session stays parked for RCUDA_WAKE_WAIT. Errors of earlier
  // commands are left to take_error(). *sent: the place of the command, if it was sent.
  CUresult post(const Route& route, const wire::Command& command,
                transport::Wake wake = transport::Wake::kYes, SentCommand* sent = nullptr);
  bool is_parked() const { return channel_->park_word() != 0; }
  // If the session is parked, wakes it and waits until it is awake. Returns kSessionLost if the
  // session ends.
  CUresult wake();
  // As wake(), but waits at most for RCUDA_WAKE_WAIT, and then returns CUDA_ERROR_OUT_OF_MEMORY.
  // Without RCUDA_WAKE_WAIT it does nothing: commands wait in the ring. post() and call() call it
  // for commands whose refusal has no side effects. Callers that do something before their command,
  // such as sending its bytes, call await_room() first.
  CUresult await_room();
  // Whether post() of this opcode returns the command's own result. Otherwise an error that the
  // command causes in the worker is asynchronous.
  bool answers(uint16_t opcode) const;
  // Sends one command, waits for its reply and returns the worker's result. If the driver executes
  // the command only when the device is idle (waits_for_device of the command table), the call
  // counts as a wait: afterwards the host sees what the GPU wrote (mirror_sync.h).
  CUresult call(const Route& route, const wire::Command& command, size_t reply_bytes, Reply* reply,
                SentCommand* sent = nullptr);
  // Like call() above, for a command whose reply has no body.
  CUresult call(const Route& route, const wire::Command& command, SentCommand* sent = nullptr) {
    Reply reply;
    return call(route, command, 0, &reply, sent);
  }
  // Returns a route for commands that go to no stream. `context`: 0 if the command needs no
  // context.
  Route in_context(wire::ObjectId context) { return {this, context, 0}; }

  // A call in two steps, so that several calls can be in flight. begin() sends the command. If no
  // reply slot is free, a `patient` begin() waits for one. A begin() that is not patient returns
  // false and sends nothing if at most a quarter of the slots is free. These slots are for other
  // threads: calls in flight may wait for the application, which may continue only after other
  // threads get answers. After true, the caller must call finish(); the order of several finish()
  // calls does not matter.
  struct PendingCall {
    wire::ReplySlot slot;
    SentCommand sent;
    CUresult result = CUDA_SUCCESS;  // of sending the command
    std::optional<trace::CommandSpan> span;
  };
  bool begin(const Route& route, const wire::Command& command, const CallOptions& options,
             PendingCall* call);
  CUresult finish(PendingCall& call, Reply* reply);
  // Waits until the call's reply has arrived or the session is lost, or until the deadline. Returns
  // whether finish() can return without a wait.
  bool await(const PendingCall& call, std::chrono::steady_clock::time_point deadline);

  // Returns the pending asynchronous error, or kSessionLost. An error is reported once, unless it
  // is sticky (the context is lost). Every call that may return an asynchronous error calls this.
  CUresult take_error();

  // ---- completion words and timelines (timeline_host.h)
  CompletionWords& words() override { return words_; }
  bool word_reached(const Word& word, CUresult* result) const override;
  CUresult wait_word(const Word& word, const Timeline* of = nullptr) override;
  uint64_t post_mark(Timeline& timeline, const Word& word) override;
  void note_wait() override { timelines_.add_wait(); }
  bool lost() override { return is_over(state()); }
  uint64_t commands() { return channel_->commands(); }  // number of commands sent
  Timelines& timelines() { return timelines_; }
  MirrorSync& mirrors() { return mirrors_; }
  ReachedPlaces& reached_places() { return *reached_places_; }
  // Blocks until `ready` returns true, or returns kSessionLost. `ready` is called again whenever
  // the worker has written something, and after Link::interrupt().
  CUresult wait_for(const std::function<bool()>& ready);

  // Held while an image is sent, so that the next thread with the same image need not send the
  // image again.
  Mutex& image_mutex() RCUDA_RETURN_CAPABILITY(image_mutex_) { return image_mutex_; }
  ImageBook& images() RCUDA_REQUIRES(image_mutex_) { return images_; }
  // Held while a reference to an allocation's handle is taken or released, so that the worker gets
  // these commands in the order in which the count changes (client/entry/shareable.cpp).
  Mutex& references_mutex() RCUDA_RETURN_CAPABILITY(references_mutex_) { return references_mutex_; }

  WorkerEvents& events() { return *events_; }
  // Returns the state. Checks the Link first: if the Link has broken, the session becomes lost.
  SessionState state();
  // Makes the session lost, unless it has ended: logs the reason and closes the Link. Returns
  // kSessionLost.
  CUresult lose(const Status& why);
  // The traits of the session's medium: a copy of link().traits().
  const transport::MediumTraits& traits() const { return traits_; }
  // Returns how long a waiting thread spins before it sleeps.
  std::chrono::nanoseconds spin() const { return channel_->spin(); }

  // Called in a forked child: see Link::abandon().
  void abandon() noexcept;
  // Sends a command, so that the server does not end the session as idle.
  void keep_alive();
  // Ends the session on purpose and informs the worker. Later calls fail.
  void end();

 private:
  Session();

  // One attempt of open(): calls reach(), keep_welcome() and link_up().
  Status connect(const ServerDevices& server, const SessionOptions& options, uint32_t wait_ms);
  struct Approach;
  static Result<Approach> reach(const ServerDevices& server, const SessionOptions& options,
                                const wire::Credentials& credentials);
  Status keep_welcome(wire::Welcome welcome, const std::vector<wire::AddressWindow>& taken);
  Status link_up(Approach approach, const SessionOptions& options);
  // Starts the services of a connected session: events, staging, GPU-written words, trace.
  static Result<std::unique_ptr<Session>> begin(std::unique_ptr<Session> session,
                                                const SessionOptions& options);
  CUresult send(wire::CommandHeader header, Timeline* timeline, const wire::Command& command,
                transport::Wake wake, SentCommand* sent);
  CUresult await_wake(uint64_t park_word, std::chrono::steady_clock::time_point limit);
  CUresult wait_for_reply(const PendingCall& call, Reply* reply);
  template <typename Ready>
  CUresult wait_until(const Ready& ready);
  void trace();
  void await_trace();

  const uint64_t serial_;
  StateWord<kSessionTransitions> state_;
  Mutex loss_mutex_;  // held while a loss is logged
  std::string name_;
  ServerDevices server_;
  uint32_t index_ = 0;
  wire::Welcome welcome_;
  LackingCommands lacking_;
  AddressWindows windows_;
  bool has_worker_ = false;  // the server has assigned a worker
  bool encrypted_ = false;   // the connection to the server
  bool must_encrypt_ = false;
  uint32_t reconnect_ms_ = 0;
  bool synchronous_ = false;
  std::chrono::milliseconds wake_wait_{0};
  std::atomic<uint64_t> woken_{0};  // the park word for which Wake was sent
  std::atomic<bool> told_no_room_{false};
  transport::MediumTraits traits_;
  uint32_t trace_ = 0;            // this session's number in the trace
  transport::Arrivals arrivals_;  // like shadows_, outlives the Link, whose threads use both
  ShadowRegions shadows_;
  std::unique_ptr<transport::Link> link_;
  std::optional<wire::Channel> channel_;
  std::unique_ptr<WorkerEvents> events_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<ReachedPlaces> reached_places_;
  Ids ids_;

  Mutex image_mutex_;
  ImageBook images_ RCUDA_GUARDED_BY(image_mutex_);
  Mutex references_mutex_;
  std::atomic<uint64_t> reported_error_{0};  // the error word's value when last reported

  CompletionWords words_{wire::ClientWindow::kCompletionCount};
  Timelines timelines_;
  MirrorSync mirrors_{*this, timelines_};
};

}  // namespace rcuda::client
