// Mirrors: memory of this worker of which the client has a copy. The client keeps the two equal
// (client/mirror/mirror.h).
//
// The client moves the bytes before launches and after waits. Around a host function the worker
// moves them, because the function must see the stream's results so far, and the stream must see
// the bytes that the function writes. This exchange is a Loan: before the host function, the bytes
// of all mirrors go to regions of the client, which merges them. Afterwards they come back, and the
// worker takes over only the bytes that the client changed.
// Threads: a Loan on the threads that run host functions (host_callbacks.h), covers() and any() on
// any thread, everything else on the executor thread. Blocking: remove() and patch(), while another
// thread copies the mirror's bytes; a Loan, during its transfers over the Link.
// Errors: the CUresults that a program gets. A Loan skips mirrors whose transfer failed. Without
// memory for copies of the mirrors' bytes, it closes the Link, which ends the session.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/answers.h"
#include "server/executor/answers/handler.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/mirrors/block_digests.h"
#include "server/executor/mirrors/known_bytes.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/completions.h"

namespace rcuda::server {

class Mirrors {
 public:
  // All outlive this object.
  Mirrors(const api::DriverTable& driver, transport::Link& link, SessionObjects& objects,
          Answers& answers, Completions& completions, const HostMemory& host_memory,
          DigestMemory& digest_memory)
      : driver_(driver),
        link_(link),
        objects_(objects),
        answers_(answers),
        completions_(completions),
        host_memory_(host_memory),
        digest_memory_(digest_memory) {
    answers.before_waits_end([this](WordSignal signal) { answer_before(signal); });
  }
  ~Mirrors();

  // Replies with a wire::MirrorReply.
  HandlerResult add(const wire::MirrorBody& body, const ReplyTarget& target);
  // The device must be idle, except for the fetch streams.
  CUresult remove(uint64_t address);
  // To be called before a context is destroyed or reset. Ends the mirrors of its memory. Other
  // mirrors may have their digests in this context; the next changes() makes these digests again,
  // in its own context.
  void forget_context(const ContextState& context);
  // To be called before memory of the client is unexposed, with the device idle. Ends the mirrors
  // there that the client has not removed.
  void forget_memory(uint64_t address, uint64_t bytes);
  // Whether one mirror contains all of [address, address + bytes).
  bool covers(uint64_t address, uint64_t bytes) const;
  bool any() const;
  // Sends the bytes to the client, and replies with a wire::MirrorState when they have arrived.
  HandlerResult fetch(uint64_t address, const ReplyTarget& target);
  // Fetches that the client requests together with a wait, so that wait and fetch take one round
  // trip. They are made when the wait's completion word is signalled. fetch_after() fetches in the
  // context that is current now, and replies with a wire::MirrorState and the bytes. news_after()
  // replies, for each mirror in `news`, with a wire::MirrorNewsHead and the bytes that the client
  // lacks. Both return CUDA_ERROR_OUT_OF_MEMORY if there are more requests than a client has reply
  // slots.
  HandlerResult fetch_after(const wire::MirrorFetchBehindBody& body, const ReplyTarget& target);
  HandlerResult news_after(WordSignal wait, std::vector<wire::MirrorKnown> news,
                           const ReplyTarget& target);
  // Makes the fetches whose word has been signalled. Returns whether there were any.
  bool fetch_after_waits();
  bool any_after_waits() const { return !asked_.empty(); }
  // Replies with a wire::MirrorState and the blocks that differ from the client's copy, when the
  // GPU has compared them.
  HandlerResult changes(uint64_t address, const ReplyTarget& target);
  // Records that the client has sent these bytes in the stream, or is about to fetch them in it.
  // They then count as unchanged.
  CUresult note(const wire::MirrorNoteBody& body);
  // Writes the marked bytes (common/wire/marked_bytes.h) to memory of the client. `digests`: of all
  // blocks that contain some of these bytes.
  CUresult patch(const wire::MirrorPatchBody& body, std::span<const std::byte> bytes,
                 const uint8_t* mask, std::span<const wire::BlockDigest> digests);
  // To be called after the client has sent bytes in the current context's fetch stream: records the
  // event that await() waits for.
  CUresult sent();
  // Makes the stream's later work wait for all bytes that precede the last sent() of each context.
  // The stream must not be in capture.
  CUresult await(wire::ObjectId stream);

  // Exists during a host function. The constructor sends the bytes of all mirrors to the client's
  // regions; the destructor takes over the bytes that the client has changed.
  class Loan {
   public:
    explicit Loan(Mirrors& mirrors);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    // See wire::MirrorLoan. 0: no bytes were sent.
    uint64_t number() const { return sent_.empty() ? 0 : number_; }

   private:
    struct Sent;
    void lend();
    void await_patches(const Sent& sent, uint64_t patches);
    void take_back(const Sent& sent);
    void take_piece(const Sent& sent, size_t at, size_t bytes, uint64_t patches);

    Mirrors& mirrors_;
    std::unique_lock<Mutex> one_at_a_time_;
    uint64_t number_ = 0;
    std::vector<Sent> sent_;
    std::vector<std::byte> piece_;  // allocated in advance, as the destructor must not fail
  };

 private:
  struct Mirror {
    uint64_t address = 0, bytes = 0, region = 0, fetch_offset = 0;
    wire::ObjectId context = 0;  // the mirror ends with this context; 0: with none
    // Used and destroyed by the executor thread only. A thread of the driver may release the last
    // reference to the mirror, so end() resets this member before that.
    std::unique_ptr<BlockDigests> digests;
    bool is_tracked = false;  // has digests, or had digests whose context has ended
    // Bytes have been put into the client's region. So the client has announced the region, and a
    // further put does not wait for that.
    std::atomic<bool> was_put{false};
    Mutex mutex;  // held while the memory is read or written, but not while a thread waits
    bool removed RCUDA_GUARDED_BY(mutex) = false;
    wire::MirrorState state RCUDA_GUARDED_BY(mutex){};
    // Null until the client first asks for news.
    std::unique_ptr<KnownBytes> known RCUDA_GUARDED_BY(mutex);
    CondVar patched;                                      // patch_commands has changed
    uint64_t patch_commands RCUDA_GUARDED_BY(mutex) = 0;  // calls of patch()
    bool is_lent RCUDA_GUARDED_BY(mutex) = false;
    struct Patch {
      uint64_t number, at;
      std::vector<uint8_t> marks;
    };
    std::deque<Patch> patches_while_lent RCUDA_GUARDED_BY(mutex);  // the last kMostPatches
  };
  struct Asked {  // a fetch that is made when `wait` has been signalled
    uint64_t address = 0;
    WordSignal wait;
    wire::ObjectId context = 0;
    ReplyTarget target;
    std::vector<wire::MirrorKnown> news;  // empty: all bytes of the mirror at `address`
  };
  HandlerResult add(Asked asked);
  template <typename Due>
  bool make_all(const Due& is_due);
  void make(const Asked& asked);
  void answer_before(WordSignal signal);
  // As fetch(), with the bytes in the reply. After an error nothing is replied.
  CUresult fetch_into_reply(uint64_t address, const ReplyTarget& target);
  void news(std::span<const wire::MirrorKnown> asked, const ReplyTarget& target);
  void end(Mirror& mirror);
  template <typename Ends>
  void end_if(const Ends& ends);
  std::shared_ptr<Mirror> find(uint64_t address) const;
  // Appends the part of news() for one mirror. `room`: for its pieces.
  void add_news(const wire::MirrorKnown& asked, size_t room, std::vector<std::byte>* body);
  struct Fetch;
  CUresult begin(std::shared_ptr<Fetch> fetch);
  void answer(const ReplyTarget& target, CUresult result, const wire::MirrorState& state,
              transport::Bytes bytes);
  bool read_may_block(const Fetch& fetch) const;
  // Copies the mirror's bytes and, unless they go into the reply, sends them. Any thread.
  void read(Fetch& fetch);
  // Calls read() in a host function of the stream.
  CUresult read_by_driver(const SessionStream& stream, std::shared_ptr<Fetch> fetch);
  // Whether this process's CPU can read and write the memory.
  bool is_on_host(const wire::MirrorBody& body) const;
  CUresult track(Mirror& mirror);
  bool send(Mirror& mirror, const void* from, uint64_t bytes, uint64_t offset);
  // Sends the bytes so that they arrive before any later answer.
  bool put_for_answer(Mirror& mirror, transport::Bytes bytes);

  const api::DriverTable& driver_;
  transport::Link& link_;
  SessionObjects& objects_;
  Answers& answers_;
  Completions& completions_;
  const HostMemory& host_memory_;
  DigestMemory& digest_memory_;
  std::vector<Asked> asked_;
  // Each Loan holds it. The client runs one host function at a time, so one Loan exists at a time.
  Mutex lent_;
  uint64_t loans_ = 0;  // the number of the last Loan; used with lent_ held
  mutable Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Mirror>> mirrors_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::server
