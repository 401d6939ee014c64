#include "server/executor/mirrors/mirrors.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "common/wire/marked_bytes.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kMostBytes = 1ull << 40;
// The most bytes of one transfer: of a large fetch, or of a Loan's bytes back from the client.
constexpr size_t kPieceBytes = 1 << 20;
// The most patches of a mirror that are kept during a Loan. The client may send patches after the
// end of the host function, and they may arrive before the Loan takes back the function's bytes.
constexpr size_t kMostPatches = 256;

}  // namespace

struct Mirrors::Loan::Sent {
  std::shared_ptr<Mirror> mirror;
  std::vector<std::byte> bytes;  // of the mirror, followed by a wire::MirrorLoan
};

Mirrors::~Mirrors() { answers_.before_waits_end({}); }

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
      BlockDigests::make(driver_, digest_memory_, *stream.context, mirror.address, mirror.bytes);
  if (!mirror.digests) return CUDA_ERROR_NOT_SUPPORTED;
  const bool is_new = !std::exchange(mirror.is_tracked, true);
  // Managed memory has just been allocated and has zeros on both sides. Memory of the client is
  // sent before its first use.
  const bool has_zeros = is_new && !host_memory_.find(mirror.address, mirror.bytes);
  return has_zeros ? mirror.digests->note_zeros(stream) : CUDA_SUCCESS;
}

HandlerResult Mirrors::add(const wire::MirrorBody& body, const ReplyTarget& target) {
  if (body.bytes == 0 || body.bytes > kMostBytes || body.address + body.bytes < body.address ||
      !is_on_host(body)) {
    return CUDA_ERROR_INVALID_VALUE;
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
    MutexLock lock(mutex_);
    const auto after = mirrors_.upper_bound(body.address + body.bytes - 1);
    if (after != mirrors_.begin()) {
      const Mirror& last = *std::prev(after)->second;
      if (last.address + last.bytes > body.address) return CUDA_ERROR_INVALID_VALUE;
    }
    mirrors_.emplace(body.address, mirror);
  }
  wire::MirrorReply reply{};
  // Smaller mirrors have no digests: one round trip fetches all their bytes.
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
    MutexLock lock(mutex_);
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
  MutexLock lock(mirror.mutex);
  mirror.removed = true;
  mirror.patched.notify_all();
}

template <typename Ends>
void Mirrors::end_if(const Ends& ends) {
  std::vector<std::shared_ptr<Mirror>> ended;
  {
    MutexLock lock(mutex_);
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
  digest_memory_.forget_context(context.id);
}

void Mirrors::forget_memory(uint64_t address, uint64_t bytes) {
  end_if([&](const Mirror& mirror) {
    return mirror.address < address + bytes && address < mirror.address + mirror.bytes;
  });
}

bool Mirrors::any() const {
  MutexLock lock(mutex_);
  return !mirrors_.empty();
}

bool Mirrors::covers(uint64_t address, uint64_t bytes) const {
  MutexLock lock(mutex_);
  auto after = mirrors_.upper_bound(address);
  if (after == mirrors_.begin()) return false;
  const Mirror& mirror = *std::prev(after)->second;
  const uint64_t offset = address - mirror.address;
  return offset <= mirror.bytes && bytes <= mirror.bytes - offset;
}

std::shared_ptr<Mirrors::Mirror> Mirrors::find(uint64_t address) const {
  MutexLock lock(mutex_);
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
  RCUDA_RETURN_IF_CUDA_ERROR(begin(std::make_shared<Fetch>(Fetch{find(address), target})));
  return kDeferred;
}

CUresult Mirrors::fetch_into_reply(uint64_t address, const ReplyTarget& target) {
  return begin(std::make_shared<Fetch>(Fetch{find(address), target, true}));
}

void Mirrors::read(Fetch& fetch) {
  Mirror& mirror = *fetch.mirror;
  const auto copy = [&](uint64_t at, uint64_t bytes) {
    const auto* const from = reinterpret_cast<const std::byte*>(mirror.address + at);
    MutexLock lock(mirror.mutex);
    if (at == 0) fetch.state = mirror.state;
    if (mirror.removed) return false;
    fetch.bytes.assign(from, from + bytes);
    if (mirror.known && bytes == mirror.bytes) {
      fetch.state.answer = mirror.known->sent_all(fetch.bytes);
    }
    return true;
  };
  if (fetch.into_reply) {
    fetch.ok = copy(0, mirror.bytes);
  } else if (mirror.bytes <= transport::kMaxRegionPut) {
    fetch.ok = copy(0, mirror.bytes) && put_for_answer(mirror, fetch.bytes);
    mirror.was_put = mirror.was_put || fetch.ok;
  } else {
    fetch.ok = true;
    for (uint64_t at = 0; at < mirror.bytes && fetch.ok; at += kPieceBytes) {
      fetch.ok = copy(at, std::min<uint64_t>(kPieceBytes, mirror.bytes - at)) &&
                 send(mirror, fetch.bytes.data(), fetch.bytes.size(), mirror.fetch_offset + at);
    }
  }
  if (!fetch.into_reply) fetch.bytes.clear();
}

// Whether read() may wait for the client: until a transfer has been acknowledged, or until the
// client has announced the region.
bool Mirrors::read_may_block(const Fetch& fetch) const {
  return !fetch.into_reply && !(link_.traits().has_region_puts && fetch.mirror->was_put &&
                                fetch.mirror->bytes <= transport::kMaxRegionPut);
}

// Reads the memory when the fetch stream has reached this point without an error, and replies. The
// executor thread makes a read that cannot block: it starts 40 us sooner there than in a host
// function (H100).
CUresult Mirrors::begin(std::shared_ptr<Fetch> fetch) {
  if (!fetch->mirror) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t in_reply = fetch->into_reply ? fetch->mirror->bytes : 0;
  if (sizeof(wire::MirrorState) + in_reply > fetch->target.capacity()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SessionStream stream;
  RCUDA_RETURN_IF_CUDA_ERROR(objects_.use_stream(wire::kFetchStream, &stream));
  const bool by_driver = read_may_block(*fetch);
  if (by_driver) {
    RCUDA_RETURN_IF_CUDA_ERROR(read_by_driver(stream, fetch));
  }
  completions_.add(stream, [this, by_driver, fetch](CUresult result) {
    if (result == CUDA_SUCCESS && !by_driver) read(*fetch);
    if (result == CUDA_SUCCESS && !fetch->ok) result = CUDA_ERROR_INVALID_VALUE;
    // After an error the bytes of `fetch` are not used, because a thread of the driver may still be
    // writing to them.
    if (result != CUDA_SUCCESS) return answers_.reply(fetch->target, result, {});
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

// Needs no stream: the client asks only for its own mapped memory, and patch() writes this memory
// immediately.
void Mirrors::news(std::span<const wire::MirrorKnown> asked, const ReplyTarget& target) {
  if (asked.size() * sizeof(wire::MirrorNewsHead) > target.capacity()) {
    return answers_.reply(target, CUDA_ERROR_INVALID_VALUE, {});
  }
  std::vector<std::byte> body;
  size_t room = target.capacity() - asked.size() * sizeof(wire::MirrorNewsHead);
  for (const wire::MirrorKnown& known : asked) {
    const size_t before = body.size();
    add_news(known, room, &body);
    room -= body.size() - before - sizeof(wire::MirrorNewsHead);
  }
  answers_.reply(target, CUDA_SUCCESS, body);
}

void Mirrors::add_news(const wire::MirrorKnown& asked, size_t room, std::vector<std::byte>* body) {
  wire::MirrorNewsHead head{{}, 0, 1};
  const size_t at = body->size();
  body->resize(at + sizeof head);
  const std::shared_ptr<Mirror> mirror = find(asked.address);
  if (mirror && mirror->bytes <= transport::kMaxRegionPut) {
    MutexLock lock(mirror->mutex);
    if (!mirror->known) mirror->known = std::make_unique<KnownBytes>();
    const std::span now(reinterpret_cast<const std::byte*>(mirror->address), mirror->bytes);
    KnownBytes::News news;
    if (!mirror->removed && mirror->known->add_news(asked.answer, now, room, body, &news)) {
      head = {mirror->state, news.pieces, 0};
      head.state.answer = news.answer;
    }
  }
  std::memcpy(body->data() + at, &head, sizeof head);
}

namespace {

// Returns at most `most` runs of changed blocks. Runs with small gaps are joined until they are few
// enough.
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

HandlerResult Mirrors::changes(uint64_t address, const ReplyTarget& target) {
  std::shared_ptr<Mirror> mirror = find(address);
  if (!mirror || !mirror->is_tracked || target.capacity() < 2 * sizeof(wire::MirrorRun)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SessionStream stream;
  RCUDA_RETURN_IF_CUDA_ERROR(objects_.use_stream(wire::kFetchStream, &stream));
  if (!mirror->digests) RCUDA_RETURN_IF_CUDA_ERROR(track(*mirror));
  RCUDA_RETURN_IF_CUDA_ERROR(mirror->digests->compare(stream));
  completions_.add(stream, [this, mirror, target](CUresult done) {
    std::vector<wire::MirrorRun> runs;
    if (!mirror->digests) done = CUDA_ERROR_INVALID_VALUE;  // the mirror has ended meanwhile
    if (done == CUDA_SUCCESS) {
      runs = changed_runs(*mirror->digests, target.capacity() / sizeof(wire::MirrorRun) - 1);
    }
    MutexLock lock(mirror->mutex);
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
  if (!mirror->digests) return CUDA_SUCCESS;  // all blocks count as changed in the next changes()
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
    MutexLock lock(mirror->mutex);
    wire::write_marked(reinterpret_cast<std::byte*>(body.address + body.offset), bytes.data(),
                       bytes.size(), mask);
    if (mirror->known) mirror->known->patched(body.offset, bytes, mask);
    if (mirror->is_lent) {
      if (mirror->patches_while_lent.size() == kMostPatches) mirror->patches_while_lent.pop_front();
      mirror->patches_while_lent.push_back(
          {body.number, body.offset, {mask, mask + wire::mask_bytes(bytes.size())}});
    }
    ++mirror->patch_commands;
    if (body.goes_on == 0) mirror->state.patches = body.number;
  }
  mirror->patched.notify_all();
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
  return move_now(link_, true, static_cast<transport::RegionId>(mirror.region), offset,
                  const_cast<void*>(from), bytes)
      .ok();
}

bool Mirrors::put_for_answer(Mirror& mirror, transport::Bytes bytes) {
  // A put needs no acknowledgement: the answer arrives after it.
  const Status put =
      link_.put_region(static_cast<transport::RegionId>(mirror.region), mirror.fetch_offset, bytes);
  if (put.code() != Code::kUnsupported) return put.ok();
  return send(mirror, bytes.data(), bytes.size(), mirror.fetch_offset);
}

Mirrors::Loan::Loan(Mirrors& mirrors) : mirrors_(mirrors) {
  try {
    lend();
  } catch (const std::bad_alloc&) {
    // Without the exchange, the host function would see older bytes than the stream's results so
    // far. So the session ends.
    RCUDA_ERROR(
        "the worker has no memory for a copy of the managed and mapped memory that a host function "
        "may use: the session ends. Use less of such memory, or raise the worker's memory limit");
    mirrors_.link_.close();
  }
}

void Mirrors::Loan::lend() {
  std::vector<std::shared_ptr<Mirror>> all;
  const auto collect = [&] {
    MutexLock lock(mirrors_.mutex_);
    for (const auto& [address, mirror] : mirrors_.mirrors_) all.push_back(mirror);
  };
  collect();
  if (all.empty()) return;
  one_at_a_time_ = std::unique_lock(mirrors_.lent_);
  number_ = ++mirrors_.loans_;
  piece_.resize(kPieceBytes + 2 * sizeof(wire::MirrorLoan));
  for (auto& mirror : all) {
    Sent sent{mirror, {}};
    {
      // Sends a private copy: the GPU may be writing to the memory, but take_piece() must compare
      // with the bytes that were sent.
      MutexLock lock(mirror->mutex);
      if (mirror->removed) continue;
      sent.bytes.reserve(wire::MirrorLoan::region_bytes(mirror->bytes));
      const auto* from = reinterpret_cast<const std::byte*>(mirror->address);
      sent.bytes.assign(from, from + mirror->bytes);
      sent.bytes.resize(wire::MirrorLoan::region_bytes(mirror->bytes));
      mirror->is_lent = true;
      if (mirror->known) mirror->known->forget();
      const wire::MirrorLoan behind{number_, mirror->state.patches};
      std::memcpy(&sent.bytes[wire::MirrorLoan::offset(mirror->bytes)], &behind, sizeof behind);
    }
    if (mirrors_.send(*mirror, sent.bytes.data(), sent.bytes.size(), 0)) {
      sent_.push_back(std::move(sent));
    }
  }
}

namespace {

// Clears each mark of [at, at + bytes) that is also set in `others`, which begin at `others_at`.
void unmark(const std::vector<uint8_t>& others, uint64_t others_at, uint64_t at, uint64_t bytes,
            uint8_t* mask) {
  const uint64_t begin = std::max(at, others_at);
  const uint64_t end = std::min(at + bytes, others_at + 8 * others.size());
  for (uint64_t place = begin; place < end; place += 8) {
    mask[(place - at) / 8] &= static_cast<uint8_t>(~others[(place - others_at) / 8]);
  }
}

}  // namespace

// Takes over the bytes of [at, at + bytes) that the client has changed. Leaves out the bytes of
// patches with numbers above `patches`: the client sent these patches later, so their bytes are
// newer.
void Mirrors::Loan::take_piece(const Sent& sent, size_t at, size_t bytes, uint64_t patches) {
  constexpr size_t kBlock = BlockDigests::kLeastBlockBytes;
  Mirror& mirror = *sent.mirror;
  MutexLock lock(mirror.mutex);
  if (mirror.removed) return;
  for (size_t begin = 0; begin < bytes; begin += kBlock) {
    const size_t length = std::min(kBlock, bytes - begin);
    const std::byte* const before = sent.bytes.data() + at + begin;
    if (std::memcmp(&piece_[begin], before, length) == 0) continue;
    uint8_t mask[wire::mask_bytes(kBlock)];
    wire::mark_differences(&piece_[begin], before, length, mask);
    for (const Mirror::Patch& patch : mirror.patches_while_lent) {
      if (patch.number > patches) unmark(patch.marks, patch.at, at + begin, length, mask);
    }
    wire::write_marked(reinterpret_cast<std::byte*>(mirror.address + at + begin), &piece_[begin],
                       length, mask);
  }
}

// Waits until the mirror has all patches up to the number `patches`. Gives up after 100 ms without
// a patch, because the executor thread, which receives the patches, may be in a call of the driver
// that waits for this host function. While the connection is lost, the 100 ms do not begin.
void Mirrors::Loan::await_patches(const Sent& sent, uint64_t patches) {
  constexpr auto kLook = std::chrono::milliseconds(10);
  constexpr int kMostQuietLooks = 10;
  const transport::Link& link = mirrors_.link_;
  Mirror& mirror = *sent.mirror;
  MutexLock lock(mirror.mutex);
  const auto have_arrived = [&]() RCUDA_REQUIRES(mirror.mutex) {
    return mirror.removed || mirror.state.patches >= patches;
  };
  for (int quiet = 0; quiet < kMostQuietLooks; ++quiet) {
    const uint64_t before = mirror.patch_commands;
    if (mirror.patched.wait_for(lock, kLook, have_arrived)) return;
    const bool waits_for_connection = !link.is_connected() && link.status().ok();
    if (mirror.patch_commands != before || waits_for_connection) quiet = -1;
  }
}

void Mirrors::Loan::take_back(const Sent& sent) {
  Mirror& mirror = *sent.mirror;
  const size_t all = mirror.bytes, last = (all - 1) / kPieceBytes * kPieceBytes;
  const auto get = [&](size_t at, size_t bytes) {
    return move_now(mirrors_.link_, false, static_cast<transport::RegionId>(mirror.region), at,
                    piece_.data(), bytes)
        .ok();
  };
  // Gets the last piece first, together with the MirrorLoan after it. The client has written into
  // the MirrorLoan how many patches it had sent when it returned the bytes.
  if (!get(last, wire::MirrorLoan::region_bytes(all) - last)) return;
  wire::MirrorLoan left{};
  std::memcpy(&left, &piece_[wire::MirrorLoan::offset(all) - last], sizeof left);
  await_patches(sent, left.patches);
  take_piece(sent, last, all - last, left.patches);
  for (size_t at = last; at != 0;) {
    at -= kPieceBytes;
    if (!get(at, kPieceBytes)) return;
    take_piece(sent, at, kPieceBytes, left.patches);
  }
}

Mirrors::Loan::~Loan() {
  for (const Sent& sent : sent_) {
    take_back(sent);
    MutexLock lock(sent.mirror->mutex);
    sent.mirror->state.loan = number_;
    sent.mirror->is_lent = false;
    if (sent.mirror->known) sent.mirror->known->forget();
    sent.mirror->patches_while_lent.clear();
  }
}

}  // namespace rcuda::server
