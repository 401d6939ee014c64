#include "server/executor/memory/mirrors.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "common/base/log.h"
#include "common/wire/marked_bytes.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kMostBytes = 1ull << 40;
// Of memory that is taken back at a time after a host function.
constexpr size_t kPieceBytes = 1 << 20;

// Moves bytes between this process and a region of the client, and waits for the transfer.
bool move(transport::Link& link, bool to_client, uint64_t region, uint64_t offset, void* local,
          uint64_t bytes) {
  struct Outcome {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false, ok = false;
  };
  auto outcome = std::make_shared<Outcome>();
  auto done = [outcome](const Status& status) {
    std::lock_guard lock(outcome->mutex);
    outcome->over = true;
    outcome->ok = status.ok();
    outcome->changed.notify_all();
  };
  const auto id = static_cast<transport::RegionId>(region);
  if (to_client) {
    link.write(id, offset, local, bytes, std::move(done));
  } else {
    link.read(id, offset, local, bytes, std::move(done));
  }
  std::unique_lock lock(outcome->mutex);
  outcome->changed.wait(lock, [&] { return outcome->over; });
  return outcome->ok;
}

}  // namespace

struct Mirrors::Loan::Sent {
  std::shared_ptr<Mirror> mirror;
  std::vector<std::byte> bytes;  // those of the mirror, then a wire::MirrorLoan
};

Mirrors::~Mirrors() = default;

bool Mirrors::is_on_host(const wire::MirrorBody& body) const {
  if (host_memory_.find(body.address, body.bytes)) return true;
  const auto ask = driver_.cuPointerGetAttribute;
  const uint64_t end = body.address + body.bytes;
  for (uint64_t at = body.address; at < end;) {
    unsigned managed = 0;
    CUdeviceptr first = 0;
    size_t bytes = 0;
    if (!ask || ask(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at) != CUDA_SUCCESS || !managed ||
        ask(&first, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) != CUDA_SUCCESS ||
        ask(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at) != CUDA_SUCCESS || first + bytes <= at) {
      return false;
    }
    at = first + bytes;
  }
  return true;
}

CUresult Mirrors::track(Mirror& mirror) {
  SessionStream stream;
  const CUresult result = objects_.use_stream(wire::kFetchStream, &stream);
  if (result != CUDA_SUCCESS) return result;
  mirror.digests =
      BlockDigests::make(driver_, meter_, *stream.context, mirror.address, mirror.bytes);
  if (!mirror.digests) return CUDA_ERROR_NOT_SUPPORTED;
  const bool is_new = !std::exchange(mirror.is_tracked, true);
  // Managed memory is new here, and has zeros on both sides. The client's own memory is sent first.
  const bool has_zeros = is_new && !host_memory_.find(mirror.address, mirror.bytes);
  return has_zeros ? mirror.digests->note_zeros(stream) : CUDA_SUCCESS;
}

HandlerResult Mirrors::add(const wire::MirrorBody& body, const ReplyTarget& target) {
  if (body.bytes == 0 || body.bytes > kMostBytes || body.address + body.bytes < body.address ||
      !is_on_host(body)) {
    return {CUDA_ERROR_INVALID_VALUE, false, false};
  }
  auto mirror = std::make_shared<Mirror>();
  mirror->address = body.address;
  mirror->bytes = body.bytes;
  mirror->region = body.region;
  mirror->fetch_offset = body.fetch_offset;
  if (body.outlives_context == 0 && !host_memory_.find(body.address, body.bytes)) {
    mirror->context = objects_.current_context() ? objects_.current_context()->id : 0;
  }
  {
    std::lock_guard lock(mutex_);
    const auto after = mirrors_.upper_bound(body.address + body.bytes - 1);
    if (after != mirrors_.begin()) {
      const Mirror& last = *std::prev(after)->second;
      if (last.address + last.bytes > body.address) return {CUDA_ERROR_INVALID_VALUE, false, false};
    }
    mirrors_.emplace(body.address, mirror);
  }
  wire::MirrorReply reply{};
  // Smaller mirrors are fetched in one round trip, bytes included.
  if (body.bytes > transport::kMaxRegionPut && body.address % BlockDigests::kLeastBlockBytes == 0 &&
      track(*mirror) == CUDA_SUCCESS) {
    reply.block_bytes = mirror->digests->block_bytes();
  }
  answers_.reply(target, CUDA_SUCCESS, std::as_bytes(std::span(&reply, 1)));
  return kDeferred;
}

CUresult Mirrors::remove(uint64_t address) {
  std::shared_ptr<Mirror> mirror;
  {
    std::lock_guard lock(mutex_);
    auto found = mirrors_.find(address);
    if (found == mirrors_.end()) return CUDA_ERROR_INVALID_VALUE;
    mirror = std::move(found->second);
    mirrors_.erase(found);
  }
  end(*mirror);
  return CUDA_SUCCESS;
}

void Mirrors::end(Mirror& mirror) {
  mirror.digests.reset();
  std::lock_guard lock(mirror.mutex);
  mirror.removed = true;
}

template <typename Ends>
void Mirrors::end_if(const Ends& ends) {
  std::vector<std::shared_ptr<Mirror>> ended;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [address, mirror] : mirrors_) {
      if (ends(*mirror)) ended.push_back(mirror);
    }
    for (const auto& mirror : ended) mirrors_.erase(mirror->address);
  }
  for (const auto& mirror : ended) end(*mirror);
}

void Mirrors::forget_context(const ContextState& context) {
  end_if([&](Mirror& mirror) {
    if (mirror.digests && mirror.digests->context() == context.id) mirror.digests.reset();
    return mirror.context == context.id;
  });
}

void Mirrors::forget_memory(uint64_t address, uint64_t bytes) {
  end_if([&](const Mirror& mirror) {
    return mirror.address < address + bytes && address < mirror.address + mirror.bytes;
  });
}

bool Mirrors::covers(uint64_t address, uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  auto after = mirrors_.upper_bound(address);
  if (after == mirrors_.begin()) return false;
  const Mirror& mirror = *std::prev(after)->second;
  const uint64_t offset = address - mirror.address;
  return offset <= mirror.bytes && bytes <= mirror.bytes - offset;
}

std::shared_ptr<Mirrors::Mirror> Mirrors::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  const auto found = mirrors_.find(address);
  return found == mirrors_.end() ? nullptr : found->second;
}

struct Mirrors::Fetch {
  std::shared_ptr<Mirror> mirror;
  ReplyTarget target;
  bool into_reply = false;
  bool ok = false;
  wire::MirrorState state{};
  std::vector<std::byte> bytes{};
};

HandlerResult Mirrors::fetch(uint64_t address, const ReplyTarget& target) {
  const CUresult result = begin(std::make_shared<Fetch>(Fetch{find(address), target}));
  return result == CUDA_SUCCESS ? kDeferred : HandlerResult{result, false, false};
}

CUresult Mirrors::fetch_into_reply(uint64_t address, const ReplyTarget& target) {
  return begin(std::make_shared<Fetch>(Fetch{find(address), target, true}));
}

void Mirrors::read(Fetch& fetch) {
  Mirror& mirror = *fetch.mirror;
  {
    std::lock_guard lock(mirror.mutex);
    if (mirror.removed) return;
    const auto* const from = reinterpret_cast<const std::byte*>(mirror.address);
    fetch.bytes.assign(from, from + mirror.bytes);
    fetch.state = mirror.state;
  }
  fetch.ok = fetch.into_reply || put_for_answer(mirror, fetch.bytes);
  if (fetch.into_reply) return;
  mirror.was_put = mirror.was_put || fetch.ok;
  fetch.bytes.clear();
}

// Whether read() may wait for the client: for the answer to a transfer, or until the client has
// announced the region.
bool Mirrors::read_may_block(const Fetch& fetch) const {
  return !fetch.into_reply && !(link_.traits().has_region_puts && fetch.mirror->was_put &&
                                fetch.mirror->bytes <= transport::kMaxRegionPut);
}

// Reads the memory when the fetch stream gets here without an error, and replies. The executor
// thread does so, as it learns of that sooner than a thread of the driver (40 us on an H100).
CUresult Mirrors::begin(std::shared_ptr<Fetch> fetch) {
  if (!fetch->mirror) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t in_reply = fetch->into_reply ? fetch->mirror->bytes : 0;
  if (sizeof(wire::MirrorState) + in_reply > fetch->target.capacity()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SessionStream stream;
  if (CUresult result = objects_.use_stream(wire::kFetchStream, &stream); result != CUDA_SUCCESS) {
    return result;
  }
  const bool by_driver = read_may_block(*fetch);
  if (by_driver) {
    if (CUresult result = read_by_driver(stream, fetch); result != CUDA_SUCCESS) return result;
  }
  completions_.add(stream, [this, by_driver, fetch](CUresult result) {
    if (result == CUDA_SUCCESS && !by_driver) read(*fetch);
    if (result == CUDA_SUCCESS && !fetch->ok) result = CUDA_ERROR_INVALID_VALUE;
    answer(fetch->target, result, fetch->state, fetch->bytes);
  });
  return CUDA_SUCCESS;
}

void Mirrors::answer(const ReplyTarget& target, CUresult result, const wire::MirrorState& state,
                     transport::Bytes bytes) {
  if (result != CUDA_SUCCESS) return answers_.reply(target, result, {});
  std::vector<std::byte> body(sizeof state);
  std::memcpy(body.data(), &state, sizeof state);
  body.insert(body.end(), bytes.begin(), bytes.end());
  answers_.reply(target, result, body);
}

CUresult Mirrors::read_by_driver(const SessionStream& stream, std::shared_ptr<Fetch> fetch) {
  if (!driver_.cuLaunchHostFunc) return CUDA_ERROR_NOT_SUPPORTED;
  using Argument = std::pair<Mirrors*, std::shared_ptr<Fetch>>;
  const auto run = [](void* argument) {
    const std::unique_ptr<Argument> owner(static_cast<Argument*>(argument));
    try {
      owner->first->read(*owner->second);
    } catch (const std::bad_alloc&) {  // the fetch fails
    }
  };
  auto owner = std::make_unique<Argument>(this, std::move(fetch));
  const CUresult queued = driver_.cuLaunchHostFunc(stream.handle, run, owner.get());
  if (queued == CUDA_SUCCESS) (void)owner.release();
  return queued;
}

namespace {

// The runs of changed blocks, at most `most` of them: runs with small gaps are joined until they
// are few enough.
std::vector<wire::MirrorRun> changed_runs(const BlockDigests& digests, size_t most) {
  std::vector<wire::MirrorRun> runs;
  for (uint64_t gap = 1;; gap *= 2) {
    runs.clear();
    for (uint64_t block = digests.next_changed(0); block < digests.block_count();
         block = digests.next_changed(block + 1)) {
      if (!runs.empty() && block - (runs.back().first + runs.back().count) < gap) {
        runs.back().count = block + 1 - runs.back().first;
      } else {
        runs.push_back({block, 1});
      }
    }
    if (runs.size() <= most) return runs;
  }
}

}  // namespace

HandlerResult Mirrors::changes(uint64_t address, std::span<const wire::MirrorRun> asked,
                               const ReplyTarget& target) {
  const auto failed = [](CUresult result) { return HandlerResult{result, false, false}; };
  std::shared_ptr<Mirror> mirror = find(address);
  if (!mirror || !mirror->is_tracked || target.capacity() < 2 * sizeof(wire::MirrorRun)) {
    return failed(CUDA_ERROR_INVALID_VALUE);
  }
  SessionStream stream;
  CUresult result = objects_.use_stream(wire::kFetchStream, &stream);
  if (result == CUDA_SUCCESS && !mirror->digests) result = track(*mirror);
  if (result == CUDA_SUCCESS) result = mirror->digests->compare(stream, asked);
  if (result != CUDA_SUCCESS) return failed(result);
  completions_.add(stream, [this, mirror, target](CUresult done) {
    std::vector<wire::MirrorRun> runs;
    if (!mirror->digests) done = CUDA_ERROR_INVALID_VALUE;  // it has ended meanwhile
    if (done == CUDA_SUCCESS) {
      runs = changed_runs(*mirror->digests, target.capacity() / sizeof(wire::MirrorRun) - 1);
    }
    std::unique_lock lock(mirror->mutex);
    const wire::MirrorState state = mirror->state;
    lock.unlock();
    answer(target, done, state, std::as_bytes(std::span(runs)));
  });
  return kDeferred;
}

CUresult Mirrors::note(const wire::MirrorNoteBody& body) {
  if (body.bytes > UINT64_MAX - body.offset) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Mirror> mirror = find(body.address);
  if (!mirror) return CUDA_SUCCESS;  // another thread has freed the memory
  if (!mirror->is_tracked) return CUDA_ERROR_INVALID_VALUE;
  if (!mirror->digests) return CUDA_SUCCESS;  // all blocks count as changed at the next question
  SessionStream stream;
  const CUresult result = objects_.use_stream(body.stream, &stream);
  return result == CUDA_SUCCESS ? mirror->digests->note(stream, body.offset, body.bytes) : result;
}

CUresult Mirrors::patch(const wire::MirrorPatchBody& body, std::span<const std::byte> bytes,
                        const uint8_t* mask, std::span<const wire::BlockDigest> digests) {
  const std::shared_ptr<Mirror> mirror = find(body.address);
  if (!mirror) return CUDA_SUCCESS;  // another thread has freed the memory
  if (body.offset > mirror->bytes || bytes.size() > mirror->bytes - body.offset ||
      !host_memory_.find(body.address + body.offset, bytes.size())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  {
    std::lock_guard lock(mirror->mutex);
    wire::write_marked(reinterpret_cast<std::byte*>(body.address + body.offset), bytes.data(),
                       bytes.size(), mask);
    if (body.goes_on == 0) mirror->state.patches = body.number;
  }
  if (mirror->digests) mirror->digests->set(body.offset, digests);
  return CUDA_SUCCESS;
}

CUresult Mirrors::sent() {
  SessionStream stream;
  CUresult result = objects_.use_stream(wire::kFetchStream, &stream);
  if (result != CUDA_SUCCESS) return result;
  CUevent& event = stream.context->mirrors_sent;
  if (!event) {
    result = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  }
  return result == CUDA_SUCCESS ? driver_.cuEventRecord(event, stream.handle) : result;
}

CUresult Mirrors::await(wire::ObjectId id) {
  SessionStream stream;
  CUresult result = objects_.use_stream(id, &stream);
  objects_.for_each_context([&](const ContextState& context) {
    if (result == CUDA_SUCCESS && context.mirrors_sent) {
      result = driver_.cuStreamWaitEvent(stream.handle, context.mirrors_sent, 0);
    }
  });
  return result;
}

bool Mirrors::send(Mirror& mirror, const void* from, uint64_t bytes, uint64_t offset) {
  return move(link_, true, mirror.region, offset, const_cast<void*>(from), bytes);
}

bool Mirrors::put_for_answer(Mirror& mirror, transport::Bytes bytes) {
  if (bytes.size() <= transport::kMaxRegionPut) {
    // A put need not be acknowledged: the answer comes behind it.
    const Status put = link_.put_region(static_cast<transport::RegionId>(mirror.region),
                                        mirror.fetch_offset, bytes);
    if (put.code() != Code::kUnsupported) return put.ok();
  }
  return send(mirror, bytes.data(), bytes.size(), mirror.fetch_offset);
}

Mirrors::Loan::Loan(Mirrors& mirrors) : mirrors_(mirrors) {
  try {
    lend();
  } catch (const std::bad_alloc&) {
    // The function must not see older bytes than the stream has left.
    RCUDA_ERROR(
        "no memory for a copy of the managed and mapped memory that a host function may use: the "
        "session ends. Use less of such memory, or raise the limit of the worker's memory");
    mirrors_.link_.close();
  }
}

void Mirrors::Loan::lend() {
  std::vector<std::shared_ptr<Mirror>> all;
  const auto collect = [&] {
    std::lock_guard lock(mirrors_.mutex_);
    for (const auto& [address, mirror] : mirrors_.mirrors_) all.push_back(mirror);
  };
  collect();
  if (all.empty()) return;
  one_at_a_time_ = std::unique_lock(mirrors_.lent_);
  number_ = ++mirrors_.loans_;
  piece_.resize(kPieceBytes);
  for (auto& mirror : all) {
    Sent sent{mirror, {}};
    {
      // A private copy: the GPU may be writing to the memory, but the bytes that are sent now and
      // compared later must be the same.
      std::lock_guard lock(mirror->mutex);
      if (mirror->removed) continue;
      sent.bytes.reserve(wire::MirrorLoan::region_bytes(mirror->bytes));
      const auto* from = reinterpret_cast<const std::byte*>(mirror->address);
      sent.bytes.assign(from, from + mirror->bytes);
      sent.bytes.resize(wire::MirrorLoan::region_bytes(mirror->bytes));
      const wire::MirrorLoan behind{number_, mirror->state.patches};
      std::memcpy(&sent.bytes[wire::MirrorLoan::offset(mirror->bytes)], &behind, sizeof behind);
    }
    if (mirrors_.send(*mirror, sent.bytes.data(), sent.bytes.size(), 0)) {
      sent_.push_back(std::move(sent));
    }
  }
}

// Takes over the bytes of [at, at + bytes) that the client has changed.
void Mirrors::Loan::take_back(const Sent& sent, size_t at, size_t bytes) {
  std::lock_guard lock(sent.mirror->mutex);
  if (sent.mirror->removed) return;
  const std::byte* const before = sent.bytes.data() + at;
  auto* const to = reinterpret_cast<std::byte*>(sent.mirror->address) + at;
  for (size_t i = 0; i < bytes;) {
    // Skips unchanged bytes in large steps, because most are unchanged.
    constexpr size_t kStep = 64;
    const size_t step = std::min(kStep, bytes - i);
    if (std::memcmp(&piece_[i], before + i, step) == 0) {
      i += step;
      continue;
    }
    for (const size_t end = i + step; i < end; ++i) {
      if (piece_[i] != before[i]) to[i] = piece_[i];
    }
  }
}

Mirrors::Loan::~Loan() {
  for (const Sent& sent : sent_) {
    const size_t all = sent.mirror->bytes;
    for (size_t at = 0; at < all; at += piece_.size()) {
      const size_t bytes = std::min(piece_.size(), all - at);
      if (!move(mirrors_.link_, false, sent.mirror->region, at, piece_.data(), bytes)) break;
      take_back(sent, at, bytes);
    }
    std::lock_guard lock(sent.mirror->mutex);
    sent.mirror->state.loan = number_;
  }
}

}  // namespace rcuda::server
