#include "server/executor/host_memory/shadow_copy.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <utility>

#include "common/base/mutex.h"
#include "server/executor/streams/capture.h"

namespace rcuda::server {
namespace {

std::vector<ShadowCopies::Piece> chunks_of(uint64_t address, uint64_t bytes) {
  const uint64_t chunk = wire::part_bytes_of(bytes);
  std::vector<ShadowCopies::Piece> chunks;
  for (uint64_t at = 0; at < bytes; at += chunk) {
    chunks.push_back({address + at, std::min(chunk, bytes - at)});
  }
  return chunks;
}

}  // namespace

// Host functions start the items and wait for them; threads of the Link complete them.
class ShadowCopies::Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  struct Item {
    Piece piece;
    transport::RegionId region;
    uint64_t offset;
    // The client writes the piece with it, into this region of the worker; 0: this side moves it.
    uint32_t immediate = 0;
    transport::RegionId shadow_region = transport::RegionId::kNone;
    bool busy = false;
    bool has_ended = false;
  };

  Transfer(ShadowCopies& copies, bool to_client, std::vector<Item> items)
      : link_(copies.link_),
        answers_(copies.answers_),
        arrivals_(copies.arrivals_),
        puts_(copies.puts_),
        to_client_(to_client),
        items_(std::move(items)) {}

  size_t size() const { return items_.size(); }

  // The client writes all items.
  void expect_from(uint32_t immediate) {
    for (size_t i = 0; i < items_.size(); ++i) {
      items_[i].immediate = wire::immediate_of(immediate, i);
    }
  }

  // A gate that opens item by item as they end. Each of them is started once, after this.
  void open_with(std::unique_ptr<ArrivalGates::Gate> gate) { gate_ = std::move(gate); }
  const ArrivalGates::Gate* gate() const { return gate_.get(); }  // may be null

  void start(size_t index) {
    Item& item = items_[index];
    const auto* const bytes = reinterpret_cast<const std::byte*>(item.piece.address);
    if (to_client_ && puts_->put(item.region, item.offset, {bytes, item.piece.bytes})) return;
    {
      MutexLock lock(mutex_);
      item.busy = true;
    }
    auto done = [self = shared_from_this(), index](const Status& status) {
      if (!status.ok()) {
        self->answers_.latch(not_moved(status));
        self->has_moved_ = false;
      }
      MutexLock lock(self->mutex_);
      self->ended_locked(index);
    };
    void* const local = reinterpret_cast<void*>(item.piece.address);
    if (to_client_) {
      link_.write(item.region, item.offset, local, item.piece.bytes, std::move(done));
    } else if (item.immediate != 0) {
      arrivals_.expect(item.immediate, item.shadow_region, item.piece.bytes, std::move(done));
    } else {
      link_.read(item.region, item.offset, local, item.piece.bytes, std::move(done));
    }
  }

  // Returns false if the item must be started.
  bool put_when_reached(const SessionStream& stream, size_t index) {
    const Item& item = items_[index];
    const auto* const bytes = reinterpret_cast<const std::byte*>(item.piece.address);
    return puts_->put_when_reached(stream, item.region, item.offset, {bytes, item.piece.bytes});
  }

  void wait(size_t index) {
    {
      MutexLock lock(mutex_);
      changed_.wait(lock, [&]() RCUDA_REQUIRES(mutex_) { return !items_[index].busy; });
    }
    if (to_client_ && has_moved_) puts_->know(items_[index].region);
  }

 private:
  void ended_locked(size_t index) {
    items_[index].busy = false;
    items_[index].has_ended = true;
    changed_.notify_all();
    if (!gate_) return;
    while (ended_ < items_.size() && items_[ended_].has_ended) ++ended_;
    gate_->open(static_cast<uint32_t>(ended_));
  }

  transport::Link& link_;
  Answers& answers_;
  transport::Arrivals& arrivals_;
  const std::shared_ptr<RegionPuts> puts_;
  const bool to_client_;
  std::vector<Item> items_;
  std::unique_ptr<ArrivalGates::Gate> gate_;
  std::atomic<bool> has_moved_{true};
  size_t ended_ = 0;  // with a gate: so many items, from the first one on, have ended
  Mutex mutex_;
  CondVar changed_;
};

// The work of one host function: first send the bytes of earlier marks, then start some items, then
// wait for some.
struct ShadowCopies::Step {
  std::shared_ptr<Transfer> transfer;
  size_t start_from = 0, start_to = 0;
  size_t wait_from = 0, wait_to = 0;
  std::shared_ptr<RegionPuts> puts;  // null: no marks are looked at
  bool acknowledges = false;         // waits until the client has their bytes
};

// The steps that are queued in the driver. It never runs a step whose context was reset before.
// Such a step stays here until the process ends, because the worker cannot know whether the driver
// will still run it.
struct ShadowCopies::Steps {
  Mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Step>> by_address RCUDA_GUARDED_BY(mutex);

  static Steps& get() {
    static auto* steps = new Steps;
    return *steps;
  }
  void* add(std::unique_ptr<Step> step) {
    void* const address = step.get();
    MutexLock lock(mutex);
    by_address.emplace(address, std::move(step));
    return address;
  }
  std::unique_ptr<Step> take(void* address) {
    MutexLock lock(mutex);
    auto node = by_address.extract(address);
    return node ? std::move(node.mapped()) : nullptr;
  }
};

ShadowCopies::ShadowCopies(const api::DriverTable& driver, transport::Link& link, Answers& answers,
                           const HostMemory& host_memory, std::shared_ptr<RegionPuts> puts,
                           std::shared_ptr<ArrivalGates> gates, transport::Arrivals& arrivals)
    : driver_(driver),
      link_(link),
      answers_(answers),
      host_memory_(host_memory),
      puts_(std::move(puts)),
      gates_(std::move(gates)),
      arrivals_(arrivals) {}

void ShadowCopies::begin_acknowledging(const SessionStream* stream) {
  if (!puts_->begin_acknowledging()) return;
  Step step;
  step.puts = puts_;
  step.acknowledges = true;
  if (stream && !captured_into(driver_, stream->handle) &&
      queue(*stream, std::move(step)) == CUDA_SUCCESS) {
    return;
  }
  if (std::exchange(has_settled_, true)) return;
  puts_->settle();
  puts_->acknowledge();
}

void CUDA_CB ShadowCopies::run(void* argument) {
  const std::unique_ptr<Step> step = Steps::get().take(argument);
  if (step->puts) step->acknowledges ? step->puts->acknowledge() : step->puts->deliver_all();
  for (size_t i = step->start_from; i < step->start_to; ++i) step->transfer->start(i);
  for (size_t i = step->wait_from; i < step->wait_to; ++i) step->transfer->wait(i);
}

void ShadowCopies::carry_out(Transfer& transfer) {
  for (size_t i = 0; i < transfer.size(); ++i) transfer.start(i);
  for (size_t i = 0; i < transfer.size(); ++i) transfer.wait(i);
}

CUresult ShadowCopies::queue(const SessionStream& stream, Step step) {
  if (!driver_.cuLaunchHostFunc) return CUDA_ERROR_NOT_SUPPORTED;
  void* const argument = Steps::get().add(std::make_unique<Step>(std::move(step)));
  const CUresult result = driver_.cuLaunchHostFunc(stream.handle, &run, argument);
  if (result != CUDA_SUCCESS) (void)Steps::get().take(argument);
  return result;
}

std::shared_ptr<ShadowCopies::Transfer> ShadowCopies::prepare(bool to_client,
                                                              const std::vector<Piece>& pieces) {
  std::vector<Transfer::Item> items;
  for (const Piece& piece : pieces) {
    uint64_t base = 0;
    const HostMemory::Range* range = host_memory_.find(piece.address, piece.bytes, &base);
    if (!range || !range->shadow) return nullptr;
    Transfer::Item item;
    item.piece = piece;
    item.region = static_cast<transport::RegionId>(range->region);
    item.offset = piece.address - base;
    item.shadow_region = range->shadow_region;
    items.push_back(item);
  }
  return std::make_shared<Transfer>(*this, to_client, std::move(items));
}

bool ShadowCopies::is_shadow(uint64_t address, uint64_t bytes) const {
  const HostMemory::Range* range = host_memory_.find(address, bytes);
  return range && range->shadow;
}

bool ShadowCopies::fetches(const wire::CopyBody& body) const {
  return !(body.flags & wire::kSourceMirrored) && is_shadow(body.source, body.bytes);
}

bool ShadowCopies::sends_back(const wire::CopyBody& body) const {
  return !(body.flags & wire::kDestinationMirrored) && is_shadow(body.destination, body.bytes);
}

bool ShadowCopies::concerns(const wire::CopyBody& body) const {
  return fetches(body) || sends_back(body);
}

// Where all items are under way, the stream waits for one at the gate, if there is one. Otherwise a
// host function starts the first `start_to` items and waits.
CUresult ShadowCopies::await(const SessionStream& stream, const std::shared_ptr<Transfer>& in,
                             size_t index, size_t start_to) {
  const auto parts = static_cast<uint32_t>(index + 1);
  if (in->gate() && gates_->hold(stream, *in->gate(), parts) == CUDA_SUCCESS) return CUDA_SUCCESS;
  return queue(stream, {in, 0, start_to, index, index + 1});
}

CUresult ShadowCopies::copy(const SessionStream& stream, const wire::CopyBody& body) {
  std::shared_ptr<Transfer> in, out;
  const std::vector<Piece> chunks = chunks_of(body.source, body.bytes);
  if (fetches(body)) {
    in = prepare(false, chunks);
    if (!in) return CUDA_ERROR_INVALID_VALUE;
  }
  // With kSourceReady all reads start now, otherwise when the stream reaches the first chunk. They
  // run ahead of the copies.
  size_t unread = in ? in->size() : 0;
  if (in && (body.flags & wire::kSourceReady)) {
    start_all(stream, *in, body.immediate);
    unread = 0;
  }
  CUresult result = CUDA_SUCCESS;
  if (sends_back(body)) {
    out = prepare(true, chunks_of(body.destination, body.bytes));
    if (!out) result = CUDA_ERROR_INVALID_VALUE;
  }
  if (out && puts_->overlaps(body.destination, body.bytes)) {
    Step step;
    step.puts = puts_;
    result = queue(stream, std::move(step));
  }
  // The bytes of all chunks go by themselves, or the last host function waits for those of all.
  bool by_marks = out && puts_->takes(body.bytes);
  for (size_t i = 0; i < chunks.size() && result == CUDA_SUCCESS; ++i) {
    if (in) result = await(stream, in, i, i == 0 ? unread : 0);
    const uint64_t offset = chunks[i].address - body.source;
    if (result == CUDA_SUCCESS) {
      result = driver_.cuMemcpyAsync(body.destination + offset, chunks[i].address, chunks[i].bytes,
                                     stream.handle);
    }
    // The stream passes the copy only when the client has all bytes, or will have them before it
    // learns of that.
    by_marks = by_marks && result == CUDA_SUCCESS && out->put_when_reached(stream, i);
    if (result == CUDA_SUCCESS && out && !by_marks) {
      const bool last = i + 1 == chunks.size();
      result = queue(stream, {out, i, i + 1, 0, last ? out->size() : 0});
    }
  }
  // The client may reuse the source after it receives the error, and the shadow is released when
  // the stream is idle. So the stream waits for the bytes in flight.
  if (result != CUDA_SUCCESS && in) (void)await_all(stream, in);
  return result;
}

CUresult ShadowCopies::await_all(const SessionStream& stream, const std::shared_ptr<Transfer>& in) {
  const auto parts = static_cast<uint32_t>(in->size());
  if (in->gate() && gates_->hold(stream, *in->gate(), parts) == CUDA_SUCCESS) return CUDA_SUCCESS;
  return queue(stream, {in, 0, 0, 0, in->size()});
}

void ShadowCopies::start_all(const SessionStream& stream, Transfer& in, uint32_t immediate) {
  if (immediate != 0) in.expect_from(immediate);
  in.open_with(gates_->take(stream, static_cast<uint32_t>(in.size())));
  for (size_t i = 0; i < in.size(); ++i) in.start(i);
}

CUresult ShadowCopies::await_write(const SessionStream& stream, uint32_t immediate,
                                   uint64_t bytes) {
  Transfer::Item item;
  item.piece.bytes = bytes;
  const auto in = std::make_shared<Transfer>(*this, false, std::vector<Transfer::Item>{item});
  start_all(stream, *in, immediate);
  return await_all(stream, in);
}

void ShadowCopies::await_writes(const SessionStream& stream, const wire::CopyBody& body) {
  if (!is_shadow(body.source, body.bytes)) return;
  const std::shared_ptr<Transfer> in = prepare(false, chunks_of(body.source, body.bytes));
  start_all(stream, *in, body.immediate);
  (void)await_all(stream, in);
}

CUresult ShadowCopies::pull(const SessionStream& stream, const std::vector<Piece>& pieces) {
  if (captured_into(driver_, stream.handle)) return CUDA_SUCCESS;
  std::shared_ptr<Transfer> transfer = prepare(false, pieces);
  if (!transfer) return CUDA_ERROR_INVALID_VALUE;
  return queue(stream, {transfer, 0, transfer->size(), 0, transfer->size()});
}

CUresult ShadowCopies::push(const SessionStream& stream, const std::vector<Piece>& pieces) {
  if (captured_into(driver_, stream.handle)) return CUDA_SUCCESS;
  std::shared_ptr<Transfer> transfer = prepare(true, pieces);
  if (!transfer) return CUDA_ERROR_INVALID_VALUE;
  return queue(stream, {transfer, 0, transfer->size(), 0, transfer->size()});
}

}  // namespace rcuda::server
