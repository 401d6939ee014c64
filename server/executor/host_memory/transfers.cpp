#include "server/executor/host_memory/transfers.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/streams/capture.h"

namespace rcuda::server {
namespace {

std::vector<Transfers::Piece> chunks_of(uint64_t address, uint64_t bytes) {
  const uint64_t chunk = wire::part_bytes_of(bytes);
  std::vector<Transfers::Piece> chunks;
  for (uint64_t at = 0; at < bytes; at += chunk) {
    chunks.push_back({address + at, std::min(chunk, bytes - at)});
  }
  return chunks;
}

}  // namespace

// Host functions start the items and wait for them; threads of the Link complete them.
class Transfers::Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  struct Item {
    void* local = nullptr;  // in the shadow, or in device memory
    uint64_t bytes = 0;
    transport::RegionId region = transport::RegionId::kNone;
    uint64_t offset = 0;
    // The client writes the item with this immediate, into `shadow_region`; 0: this side moves it.
    uint32_t immediate = 0;
    transport::RegionId shadow_region = transport::RegionId::kNone;
    bool busy = false;
    bool has_ended = false;
  };

  Transfer(Transfers& copies, bool to_client, std::vector<Item> items)
      : link_(copies.link_),
        answers_(copies.answers_),
        arrivals_(copies.arrivals_),
        puts_(copies.puts_),
        to_client_(to_client),
        items_(std::move(items)) {}

  size_t size() const { return items_.size(); }

  // From now on the client writes all items, with immediates that begin at `immediate`.
  void expect_from(uint32_t immediate) {
    for (size_t i = 0; i < items_.size(); ++i) {
      items_[i].immediate = wire::immediate_of(immediate, i);
    }
  }

  // The adapter moves the only item between client and device memory. The device memory is
  // registered as long as `registration` lives.
  void move_directly(uint64_t address, std::shared_ptr<const void> registration) {
    items_.front().local = reinterpret_cast<void*>(address);
    registration_ = std::move(registration);
  }

  // Opens the gate step by step, as the items end in their order. Call it before start().
  void open_with(std::unique_ptr<ArrivalGates::Gate> gate) { gate_ = std::move(gate); }
  const ArrivalGates::Gate* gate() const { return gate_.get(); }  // may be null

  void start(size_t index) {
    Item& item = items_[index];
    if (to_client_ && !registration_ && puts_->put(item.region, item.offset, bytes_of(item))) {
      return;
    }
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
    if (to_client_) {
      link_.write(item.region, item.offset, item.local, item.bytes, std::move(done));
    } else if (item.immediate != 0) {
      arrivals_.expect(item.immediate, item.shadow_region, item.bytes, std::move(done));
    } else {
      link_.read(item.region, item.offset, item.local, item.bytes, std::move(done));
    }
  }

  // Returns false if the item cannot be sent in this way. The caller then sends it with start().
  bool put_when_reached(const SessionStream& stream, size_t index) {
    const Item& item = items_[index];
    return puts_->put_when_reached(stream, item.region, item.offset, bytes_of(item));
  }

  void wait(size_t index) {
    std::shared_ptr<const void> registration;  // this thread releases it, not a thread of the Link
    {
      MutexLock lock(mutex_);
      changed_.wait(lock, [&]() RCUDA_REQUIRES(mutex_) { return !items_[index].busy; });
      registration = std::move(registration_);
    }
    if (to_client_ && has_moved_) puts_->know(items_[index].region);
  }

 private:
  static transport::Bytes bytes_of(const Item& item) {
    return {static_cast<const std::byte*>(item.local), item.bytes};
  }

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
  std::shared_ptr<const void> registration_;  // held until wait(); null: the items are in shadows
  std::atomic<bool> has_moved_{true};
  size_t ended_ = 0;  // with a gate: the first `ended_` items have ended
  Mutex mutex_;
  CondVar changed_;
};

// The work of one host function: first send the bytes of earlier copies whose GPU-written words are
// written, then start some items, then wait for some.
struct Transfers::HostWork {
  std::shared_ptr<Transfer> transfer;
  size_t start_from = 0, start_to = 0;
  size_t wait_from = 0, wait_to = 0;
  std::shared_ptr<RegionPuts> puts;  // null: sends no bytes of earlier copies
};

// The work that is queued in the driver. If a context is reset, the driver may never run some of
// the context's work. Such work stays here until the process ends, because the worker cannot know
// whether the driver will still run it.
struct Transfers::QueuedWork {
  Mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<HostWork>> by_address RCUDA_GUARDED_BY(mutex);

  static QueuedWork& get() {
    static auto* queued = new QueuedWork;
    return *queued;
  }
  void* add(std::unique_ptr<HostWork> work) {
    void* const address = work.get();
    MutexLock lock(mutex);
    by_address.emplace(address, std::move(work));
    return address;
  }
  std::unique_ptr<HostWork> take(void* address) {
    MutexLock lock(mutex);
    auto node = by_address.extract(address);
    return node ? std::move(node.mapped()) : nullptr;
  }
};

Transfers::Transfers(const api::DriverTable& driver, transport::Link& link, Answers& answers,
                     const HostMemory& host_memory, GpuDirect& gpu_direct,
                     std::shared_ptr<RegionPuts> puts, std::shared_ptr<ArrivalGates> gates,
                     transport::Arrivals& arrivals)
    : driver_(driver),
      link_(link),
      answers_(answers),
      host_memory_(host_memory),
      gpu_direct_(gpu_direct),
      puts_(std::move(puts)),
      gates_(std::move(gates)),
      arrivals_(arrivals) {}

void CUDA_CB Transfers::run(void* argument) {
  const std::unique_ptr<HostWork> work = QueuedWork::get().take(argument);
  if (work->puts) work->puts->deliver_all();
  for (size_t i = work->start_from; i < work->start_to; ++i) work->transfer->start(i);
  for (size_t i = work->wait_from; i < work->wait_to; ++i) work->transfer->wait(i);
}

void Transfers::carry_out(Transfer& transfer) {
  for (size_t i = 0; i < transfer.size(); ++i) transfer.start(i);
  for (size_t i = 0; i < transfer.size(); ++i) transfer.wait(i);
}

CUresult Transfers::queue(const SessionStream& stream, HostWork work) {
  void* const argument = QueuedWork::get().add(std::make_unique<HostWork>(std::move(work)));
  const CUresult result = driver_.cuLaunchHostFunc(stream.handle, &run, argument);
  if (result != CUDA_SUCCESS) (void)QueuedWork::get().take(argument);
  return result;
}

std::shared_ptr<Transfers::Transfer> Transfers::prepare(bool to_client,
                                                        const std::vector<Piece>& pieces) {
  std::vector<Transfer::Item> items;
  for (const Piece& piece : pieces) {
    uint64_t base = 0;
    const HostMemory::Range* range = host_memory_.find(piece.address, piece.bytes, &base);
    if (!range || !range->shadow) return nullptr;
    items.push_back({.local = reinterpret_cast<void*>(piece.address),
                     .bytes = piece.bytes,
                     .region = static_cast<transport::RegionId>(range->region),
                     .offset = piece.address - base,
                     .shadow_region = range->shadow_region});
  }
  return std::make_shared<Transfer>(*this, to_client, std::move(items));
}

bool Transfers::is_shadow(uint64_t address, uint64_t bytes) const {
  const HostMemory::Range* range = host_memory_.find(address, bytes);
  return range && range->shadow;
}

bool Transfers::fetches(const wire::CopyBody& body) const {
  return !(body.flags & wire::kSourceMirrored) && is_shadow(body.source, body.bytes);
}

bool Transfers::sends_back(const wire::CopyBody& body) const {
  return !(body.flags & wire::kDestinationMirrored) && is_shadow(body.destination, body.bytes);
}

CUresult Transfers::await(const SessionStream& stream, const std::shared_ptr<Transfer>& in,
                          size_t first, size_t end, size_t start_to) {
  const auto parts = static_cast<uint32_t>(end);
  if (in->gate() && gates_->hold(stream, *in->gate(), parts) == CUDA_SUCCESS) return CUDA_SUCCESS;
  return queue(stream, {in, 0, start_to, first, end});
}

std::optional<CUresult> Transfers::copy(const SessionStream& stream, const wire::CopyBody& body) {
  if (gpu_direct_.any() && !(body.flags & (wire::kSourceMirrored | wire::kDestinationMirrored))) {
    if (const auto direct = prepare_direct(body)) return queue(stream, {direct, 0, 1, 0, 1});
  }
  if (!fetches(body) && !sends_back(body)) return std::nullopt;
  return copy_by_shadow(stream, body);
}

// Returns null if GPUDirect cannot make the copy.
std::shared_ptr<Transfers::Transfer> Transfers::prepare_direct(const wire::CopyBody& body) {
  const bool to_client = is_shadow(body.destination, body.bytes);
  const uint64_t client = to_client ? body.destination : body.source;
  const uint64_t device = to_client ? body.source : body.destination;
  if (!is_shadow(client, body.bytes) || host_memory_.find(device, body.bytes)) return nullptr;
  auto registration = gpu_direct_.find_registered(device, body.bytes);
  if (!registration) return nullptr;
  auto transfer = prepare(to_client, {{client, body.bytes}});
  if (transfer) transfer->move_directly(device, std::move(registration));
  return transfer;
}

CUresult Transfers::copy_by_shadow(const SessionStream& stream, const wire::CopyBody& body) {
  std::shared_ptr<Transfer> in, out;
  if (fetches(body)) {
    in = prepare(false, chunks_of(body.source, body.bytes));
    if (!in) return CUDA_ERROR_INVALID_VALUE;
  }
  // With kSourceReady all reads start now, otherwise when the stream reaches the first chunk. In
  // both cases later chunks are read while the stream copies earlier chunks.
  const bool is_reading = in && (body.flags & wire::kSourceReady);
  if (is_reading) start_all(stream, *in, body.immediate);
  CUresult result = CUDA_SUCCESS;
  if (sends_back(body)) {
    out = prepare(true, chunks_of(body.destination, body.bytes));
    if (!out) result = CUDA_ERROR_INVALID_VALUE;
  }
  if (out && puts_->overlaps(body.destination, body.bytes)) {
    HostWork work;
    work.puts = puts_;
    result = queue(stream, std::move(work));
  }
  if (result == CUDA_SUCCESS) result = copy_chunks(stream, body, in, out, is_reading);
  // The client may reuse the source after it receives the error, and the shadow is released when
  // the stream is idle. So the stream waits for the bytes in flight.
  if (result != CUDA_SUCCESS && in) (void)await(stream, in, 0, in->size());
  return result;
}

CUresult Transfers::copy_chunks(const SessionStream& stream, const wire::CopyBody& body,
                                const std::shared_ptr<Transfer>& in,
                                const std::shared_ptr<Transfer>& out, bool is_reading) {
  const std::vector<Piece> chunks = chunks_of(body.source, body.bytes);
  // If possible, each chunk is sent when the GPU has written its word. If this is impossible for a
  // chunk, host functions send this chunk and all later chunks, and the last function waits for the
  // transfers that the functions have started.
  bool by_marks = out && puts_->takes(body.bytes);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (in) {
      RCUDA_RETURN_IF_CUDA_ERROR(
          await(stream, in, i, i + 1, i == 0 && !is_reading ? in->size() : 0));
    }
    const uint64_t offset = chunks[i].address - body.source;
    RCUDA_RETURN_IF_CUDA_ERROR(driver_.cuMemcpyAsync(body.destination + offset, chunks[i].address,
                                                     chunks[i].bytes, stream.handle));
    // With a GPU-written word, the stream may pass the copy before the client has the bytes: they
    // arrive before any message about the stream. Otherwise a host function holds the stream.
    by_marks = by_marks && out->put_when_reached(stream, i);
    if (out && !by_marks) {
      const bool last = i + 1 == chunks.size();
      RCUDA_RETURN_IF_CUDA_ERROR(queue(stream, {out, i, i + 1, 0, last ? out->size() : 0}));
    }
  }
  return CUDA_SUCCESS;
}

void Transfers::start_all(const SessionStream& stream, Transfer& in, uint32_t immediate) {
  if (immediate != 0) in.expect_from(immediate);
  in.open_with(gates_->take(stream, static_cast<uint32_t>(in.size())));
  for (size_t i = 0; i < in.size(); ++i) in.start(i);
}

CUresult Transfers::await_write(const SessionStream& stream, uint32_t immediate, uint64_t bytes) {
  const auto in =
      std::make_shared<Transfer>(*this, false, std::vector<Transfer::Item>{{.bytes = bytes}});
  start_all(stream, *in, immediate);
  return await(stream, in, 0, in->size());
}

void Transfers::await_writes(const SessionStream& stream, const wire::CopyBody& body) {
  if (!is_shadow(body.source, body.bytes)) return;
  const std::shared_ptr<Transfer> in = prepare(false, chunks_of(body.source, body.bytes));
  start_all(stream, *in, body.immediate);
  (void)await(stream, in, 0, in->size());
}

CUresult Transfers::move(const SessionStream& stream, bool to_client,
                         const std::vector<Piece>& pieces) {
  if (captured_into(driver_, stream.handle)) return CUDA_SUCCESS;
  std::shared_ptr<Transfer> transfer = prepare(to_client, pieces);
  if (!transfer) return CUDA_ERROR_INVALID_VALUE;
  return queue(stream, {transfer, 0, transfer->size(), 0, transfer->size()});
}

}  // namespace rcuda::server
