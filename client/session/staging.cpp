#include "client/session/staging.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "client/session/capture_answers.h"
#include "common/base/cpu_pause.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/base/usable_processors.h"

namespace rcuda::client {
namespace {

// Returns the chunk size of a copy. Each thread gets two chunks, so that no thread is idle. A chunk
// fills at most a slot. It has at least 256 KB, because each chunk costs a command. With few
// processors, over media that copy by CPU, it has at least 1 MB: there, the wake-ups for a command
// take processor time from the threads that move the bytes.
size_t chunk_bytes(const transport::MediumTraits& traits, size_t bytes) {
  static const bool has_few_processors = usable_processors() < 4;
  const size_t share = bytes / (2 * copy_threads());
  const size_t smallest = traits.copies_by_cpu && has_few_processors ? 1u << 20 : 256u << 10;
  if (share >= Staging::kSlotBytes) return Staging::kSlotBytes;
  return std::max(smallest, (share + 4095) & ~size_t{4095});
}

// The size of the first chunk of a copy into mapped slots. It is small, so that the worker wakes up
// and its DMA begins while the client copies the other chunks.
constexpr size_t kFirstBytes = 64u << 10;

// The last kNotLent bytes of the source of a copy to the device are not lent to the Link
// (Link::lend()); the Link copies them when it sends them. When to_device() returns, the worker
// does not have these bytes yet. If they were lent, take_back() would have to copy them, on the
// calling thread alone. The sending threads instead copy them in parallel, while the bytes are in
// their caches.
constexpr size_t kNotLent = 4u << 20;

// Returns the chunk size of a copy whose chunks the worker writes to their destination. These
// chunks may be larger than those of chunk_bytes(), because the Link divides each chunk among its
// bulk sockets.
size_t landed_chunk_bytes(const transport::MediumTraits& traits, size_t bytes) {
  return std::min<size_t>(std::max(chunk_bytes(traits, bytes), wire::part_bytes_of(bytes)),
                          Staging::kSlotBytes);
}

// Waits for one transfer of the Link. It spins first: a small transfer ends before a sleeping
// thread would wake up.
class LinkTransfer {
 public:
  explicit LinkTransfer(std::chrono::nanoseconds spin) : spin_(spin) {}

  transport::TransferDone done() {
    return [shared = shared_](const Status& status) {
      shared->outcome = status;
      shared->over.store(1, std::memory_order_release);
      shared->over.notify_one();
    };
  }
  const Status& wait() {
    const auto spin_end = std::chrono::steady_clock::now() + spin_;
    while (shared_->over.load(std::memory_order_acquire) == 0) {
      if (std::chrono::steady_clock::now() < spin_end) {
        cpu_pause();
      } else {
        shared_->over.wait(0, std::memory_order_acquire);
      }
    }
    return shared_->outcome;
  }

 private:
  struct Shared {
    std::atomic<int> over{0};
    Status outcome;
  };
  const std::chrono::nanoseconds spin_;
  // Shared, because the Link's thread may notify after the waiting thread has continued.
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace

Result<std::unique_ptr<Staging>> Staging::open(Session& session, const wire::ReadyEvent& ready) {
  std::unique_ptr<Staging> staging(new Staging(session));
  staging->has_gates_ = ready.gates != 0;
  staging->region_ = static_cast<transport::RegionId>(ready.staging_region);
  if (ready.staging_bytes < kSlotBytes || ready.staging_bytes > (1ull << 40)) {
    return Status(Code::kProtocol, "the worker announced a staging region of " +
                                       exact_bytes_text(ready.staging_bytes) +
                                       "; 2 MiB to 1 TiB are valid");
  }
  RCUDA_ASSIGN_OR_RETURN(void* mapping, session.link().map(staging->region_, ready.staging_bytes));
  staging->mapping_ = static_cast<std::byte*>(mapping);
  const uint64_t offered = ready.staging_bytes / kSlotBytes;
  const auto slots = static_cast<uint32_t>(std::min<uint64_t>(offered, kMostSlots));
  if (slots < offered) {
    RCUDA_INFO("%s: copies use only %s of the worker's staging region of %s (limit of this build)",
               session.name().c_str(), bytes_text(slots * kSlotBytes).c_str(),
               bytes_text(ready.staging_bytes).c_str());
  }
  MutexLock lock(staging->mutex_);
  for (uint32_t i = 0; i < slots; ++i) {
    // Enough words are free: the session has not used any yet.
    staging->ready_.push_back({uint64_t{i} * kSlotBytes, *session.words().acquire_spare()});
  }
  staging->slot_count_ = slots;
  return staging;
}

Staging::~Staging() {
  if (mapping_) (void)session_.link().unmap(region_);
}

bool Staging::is_ready(const Slot& slot) const {
  CUresult ignored;
  return session_.word_reached(slot.word, &ignored);
}

void Staging::collect() {
  std::erase_if(used_, [this](const Slot& slot) RCUDA_REQUIRES(mutex_) {
    const bool ready = is_ready(slot);
    if (ready) ready_.push_back(slot);
    return ready;
  });
}

bool Staging::has_room() {
  MutexLock lock(mutex_);
  collect();
  return 2 * ready_.size() >= slot_count_;
}

std::optional<Staging::Slot> Staging::take(const Timeline* user, bool only_ready) {
  const auto is_of_user = [user](const Slot& slot) { return slot.user == user; };
  MutexLock lock(mutex_);
  collect();
  const size_t most = std::max<size_t>(std::min(slot_count_ - slot_count_ / 4, slot_count_ - 1), 1);
  const auto of_user = std::count(in_hand_.begin(), in_hand_.end(), user) +
                       std::count_if(used_.begin(), used_.end(), is_of_user);
  Slot slot;
  if (static_cast<size_t>(of_user) < most && !ready_.empty()) {
    // Take the most recently used slot: its pages are mapped and may be in caches.
    slot = ready_.back();
    ready_.pop_back();
  } else {
    if (only_ready) return std::nullopt;
    const auto oldest = std::find_if(used_.begin(), used_.end(), is_of_user);
    if (oldest == used_.end()) return std::nullopt;
    slot = *oldest;
    used_.erase(oldest);
  }
  slot.user = user;
  in_hand_.push_back(user);
  return slot;
}

Staging::Slot Staging::take_any() {
  MutexLock lock(mutex_);
  freed_.wait(lock, [this]() RCUDA_REQUIRES(mutex_) { return !ready_.empty() || !used_.empty(); });
  Slot slot;
  if (!ready_.empty()) {
    slot = ready_.front();
    ready_.pop_front();
  } else {
    slot = used_.front();
    used_.erase(used_.begin());
  }
  in_hand_.push_back(slot.user);
  return slot;
}

Staging::Slot Staging::acquire(const Timeline* user) {
  std::optional<Slot> slot = take(user, false);
  if (!slot) {
    ++waiting_;
    const CUresult waited = session_.wait_for([&] {
      if (!slot) slot = take(user, false);
      return slot.has_value();
    });
    --waiting_;
    if (waited != CUDA_SUCCESS) slot = take_any();
  }
  if (!is_ready(*slot)) (void)session_.wait_word(slot->word, user);
  ++slot->word.sequence;
  return *slot;
}

std::optional<Staging::Slot> Staging::try_acquire(const Timeline* user) {
  std::optional<Slot> slot = take(user, true);
  if (slot) ++slot->word.sequence;
  return slot;
}

void Staging::release(const Slot& slot) {
  {
    MutexLock lock(mutex_);
    used_.push_back(slot);
    in_hand_.erase(std::find(in_hand_.begin(), in_hand_.end(), slot.user));
  }
  freed_.notify_one();
  if (waiting_ > 0) session_.link().interrupt();
}

CUresult Staging::fill(const Slot& slot, const void* source, size_t bytes) {
  if (mapping_) {
    std::memcpy(mapping_ + slot.offset, source, bytes);
    return CUDA_SUCCESS;
  }
  LinkTransfer transfer(session_.spin());
  session_.link().write(region_, slot.offset, source, bytes, transfer.done());
  const Status& outcome = transfer.wait();
  return outcome.ok() ? CUDA_SUCCESS : session_.lose(outcome);
}

CUresult Staging::drain(const Slot& slot, void* destination, size_t bytes) {
  if (mapping_) {
    std::memcpy(destination, mapping_ + slot.offset, bytes);
    return CUDA_SUCCESS;
  }
  LinkTransfer transfer(session_.spin());
  session_.link().read(region_, slot.offset, destination, bytes, transfer.done());
  const Status& outcome = transfer.wait();
  return outcome.ok() ? CUDA_SUCCESS : session_.lose(outcome);
}

namespace {

// Whether the side that has the bytes of a copy writes them to the other side without a request, as
// over sockets.
bool goes_unasked(const transport::MediumTraits& traits) {
  return traits.copies_by_cpu && traits.has_immediates;
}

// One part of a copy's destination, into which the worker writes.
struct Landed {
  std::atomic<bool> over{false};
  Status outcome;  // valid once `over` is true

  CUresult wait(Session& session) {
    const auto is_over = [this] { return over.load(std::memory_order_acquire); };
    const CUresult result = session.wait_for(is_over);
    return result == CUDA_SUCCESS && !outcome.ok() ? session.lose(outcome) : result;
  }
};

// The destination of a copy to the host, exposed so that the worker writes into it. is_open() is
// false for a copy of several parts, and over a medium for which goes_unasked() is false. The
// client then fetches the bytes.
class Landing {
 public:
  Landing(Session& session, std::span<const Staging::Part> parts) : session_(session) {
    if (parts.size() != 1 || !goes_unasked(session.traits())) return;
    const Result<transport::Region> exposed =
        session.link().expose(parts.front().to, parts.front().bytes);
    if (!exposed) return;  // the Link is lost; the copy's commands will fail
    begin_ = parts.front().to;
    region_ = exposed->id;
  }
  // After the destructor, no thread of the Link touches the memory.
  ~Landing() {
    if (!begin_) return;
    (void)session_.link().unexpose(region_);
    session_.arrivals().withdraw(region_);  // the bytes of refused commands never arrive
  }
  Landing(const Landing&) = delete;

  bool is_open() const { return begin_; }

  // Expects one part of the destination, and sets in `body` where the worker writes it. Returns
  // null if the caller must fetch the part itself.
  std::shared_ptr<Landed> expect(const std::byte* to, wire::CopyStagedBody* body) {
    if (!begin_) return nullptr;
    body->immediate = session_.shadows().take_immediates(1);
    body->region = static_cast<uint64_t>(region_);
    body->region_offset = static_cast<uint64_t>(to - begin_);
    auto landed = std::make_shared<Landed>();
    session_.arrivals().expect(body->immediate, region_, body->bytes,
                               [landed, &link = session_.link()](const Status& status) {
                                 landed->outcome = status;
                                 landed->over.store(true, std::memory_order_release);
                                 link.interrupt();
                               });
    return landed;
  }

 private:
  Session& session_;
  const std::byte* begin_ = nullptr;
  transport::RegionId region_{};
};

wire::CopyStagedBody staged_copy(const Staging::Slot& slot, CUdeviceptr device_address,
                                 size_t bytes, wire::ObjectId stream, bool to_device) {
  wire::CopyStagedBody body{};
  body.device_address = device_address;
  body.staging_offset = slot.offset;
  body.bytes = bytes;
  body.stream = stream;
  body.to_device = to_device;
  body.word = slot.word.index;
  body.sequence = slot.word.sequence;
  return body;
}

}  // namespace

bool Staging::fills_after_command(const Route& route) const {
  return has_gates_ && goes_unasked(session_.traits()) &&
         route.context == wire::primary_context_id(0);
}

CUresult Staging::to_device(const Route& route, CUdeviceptr destination, const void* source,
                            size_t bytes) {
  const size_t chunk = chunk_bytes(session_.traits(), bytes);
  const size_t first = std::min(bytes, mapping_ ? kFirstBytes : chunk);
  const size_t chunks = 1 + (bytes - first + chunk - 1) / chunk;
  std::atomic<int> first_error{CUDA_SUCCESS};
  // take_back() copies the lent bytes that the worker does not have yet. The sending threads have
  // copied the bytes that are not lent.
  const size_t lent = fills_after_command(route) ? bytes - std::min(bytes, kNotLent) : 0;
  if (lent != 0) session_.link().lend(source, lent);
  // awaits_answers() is about this thread. Its result applies to all threads that post chunks.
  const bool awaits = awaits_answers();
  run_parallel(chunks, [&](size_t index) {
    if (first_error.load() != CUDA_SUCCESS) return;
    std::optional<CaptureAnswers> answers;
    if (awaits) answers.emplace(true);
    const size_t begin = index == 0 ? 0 : first + (index - 1) * chunk;
    const size_t length = index == 0 ? first : std::min(chunk, bytes - begin);
    Slot slot = acquire(route.timeline);
    const std::byte* const from = static_cast<const std::byte*>(source) + begin;
    auto body = staged_copy(slot, destination + begin, length, stream_id(route), true);
    CUresult result = CUDA_SUCCESS;
    std::optional<LinkTransfer> filling;
    if (fills_after_command(route)) {
      filling.emplace(session_.spin());
      body.immediate = session_.shadows().take_immediates(1);
      session_.link().write_with_immediate(region_, slot.offset, from, length, body.immediate,
                                           transport::Company::kAwaited, filling->done());
    } else {
      result = fill(slot, from, length);
    }
    if (result == CUDA_SUCCESS) {
      pace(route);
      result = session_.post(route, body);
      if (filling && !filling->wait().ok()) result = session_.lose(filling->wait());
    } else {
      --slot.word.sequence;  // the worker will not write the word
    }
    note_failure(&first_error, result);
    release(slot);
  });
  if (lent != 0) session_.link().take_back(source, lent);
  return static_cast<CUresult>(first_error.load());
}

CUresult Staging::to_host(const Route& route, void* destination, CUdeviceptr source, size_t bytes) {
  const Part whole{static_cast<std::byte*>(destination), source, bytes};
  return to_host(route, std::span(&whole, 1));
}

CUresult Staging::to_host(const Route& route, std::span<const Part> parts) {
  size_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes;
  Landing landing(session_, parts);
  const size_t chunk = landing.is_open() ? landed_chunk_bytes(session_.traits(), bytes)
                                         : chunk_bytes(session_.traits(), bytes);
  std::vector<Part> chunks;
  for (const Part& part : parts) {
    for (size_t at = 0; at < part.bytes; at += chunk) {
      chunks.push_back({part.to + at, part.from + at, std::min(chunk, part.bytes - at)});
    }
  }
  // A lane is one task of run_parallel(). It copies every lanes-th chunk.
  const size_t lanes = std::min(chunks.size(), copy_threads());
  std::atomic<int> first_error{CUDA_SUCCESS};
  struct Pending {
    Slot slot;
    const Part& chunk;
    SentCommand sent;
    std::shared_ptr<Landed> landed;
  };
  std::vector<std::deque<Pending>> pending_of(lanes);
  // Releases the slots that an exception left in pending_of.
  struct Releases {
    Staging& staging;
    const std::vector<std::deque<Pending>>& pending_of;
    ~Releases() {
      for (const auto& pending : pending_of) {
        for (const Pending& left : pending) staging.release(left.slot);
      }
    }
  };
  const Releases releases{*this, pending_of};
  const auto ask = [&](size_t lane, size_t index, const Slot& slot) {
    Pending next{slot, chunks[index], {}, nullptr};
    pace(route);
    auto body = staged_copy(next.slot, next.chunk.from, next.chunk.bytes, stream_id(route), false);
    next.landed = landing.expect(next.chunk.to, &body);
    note_failure(&first_error, session_.post(route, body, transport::Wake::kNow, &next.sent));
    pending_of[lane].push_back(next);
  };
  // If each lane has one chunk, requests these chunks before the other threads wake up. Each lane
  // then needs one slot only, and the slots are taken in the order of the lanes, so no lane waits
  // for a slot of a later lane.
  for (size_t lane = 0; lane < lanes && chunks.size() == lanes; ++lane) {
    const std::optional<Slot> slot = try_acquire(route.timeline);
    if (!slot) break;
    ask(lane, lane, *slot);
  }
  // A lane with several chunks uses up to two slots: the worker fills one while the lane empties
  // the other.
  run_parallel(lanes, [&](size_t lane) {
    std::deque<Pending>& pending = pending_of[lane];
    size_t next = lane + pending.size() * lanes;
    while (true) {
      // The second slot is taken only if one is free: lanes that each hold one slot and wait for
      // another would deadlock.
      while (next < chunks.size() && pending.size() < 2 && first_error.load() == CUDA_SUCCESS) {
        const std::optional<Slot> slot = pending.empty()
                                             ? std::optional<Slot>(acquire(route.timeline))
                                             : try_acquire(route.timeline);
        if (!slot) break;
        ask(lane, next, *slot);
        next += lanes;
      }
      if (pending.empty()) break;
      const Pending done = pending.front();
      pending.pop_front();
      CUresult result = session_.wait_word(done.slot.word, route.timeline);
      if (result == CUDA_SUCCESS) {
        if (route.timeline) route.timeline->waited(done.sent.position);
        result = done.landed ? done.landed->wait(session_)
                             : drain(done.slot, done.chunk.to, done.chunk.bytes);
      }
      note_failure(&first_error, result);
      release(done.slot);
    }
  });
  return static_cast<CUresult>(first_error.load());
}

}  // namespace rcuda::client
