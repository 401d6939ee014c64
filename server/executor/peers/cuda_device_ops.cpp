#include "server/executor/peers/cuda_device_ops.h"

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/cuda/status_of.h"
#include "common/cuda/uuid_text.h"
#include "server/executor/objects/context_guard.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {
namespace {

using p2p::CopyBox;
using p2p::Lane;
using p2p::StreamPlace;
using p2p::Ticket;

// The bytes of a cache line. Each word that can hold a stream has a line of its own.
constexpr size_t kLineBytes = 64;
// The number of streams that can be held at the same time. Beyond it, enter() fails with
// kOutOfMemory.
constexpr size_t kHoldWords = 4096;

}  // namespace

CUresult cuda_error_of(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return CUDA_SUCCESS;
    case Code::kCuda:
      return static_cast<CUresult>(status.cuda());
    case Code::kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Code::kInvalidArgument:
      return CUDA_ERROR_INVALID_VALUE;
    case Code::kUnsupported:
      return CUDA_ERROR_NOT_SUPPORTED;
    // "An asynchronous error has occurred in an external entity outside of CUDA" (CUDA's
    // documentation). The peer worker is such an entity.
    default:
      return CUDA_ERROR_EXTERNAL_DEVICE;
  }
}

Result<std::unique_ptr<CudaDeviceOps>> CudaDeviceOps::create(const api::DriverTable& driver,
                                                             Options options) {
  std::unique_ptr<CudaDeviceOps> ops(new CudaDeviceOps(driver, std::move(options)));
  RCUDA_RETURN_IF_ERROR(ops->prepare());
  return ops;
}

Status CudaDeviceOps::prepare() {
  if (options_.devices.empty())
    return {Code::kInvalidArgument, "the peer-to-peer engine needs at least one device"};
  lanes_.resize(options_.devices.size());
  proofs_.resize(options_.devices.size());
  ContextGuard first(driver_, options_.devices[0].primary);
  RCUDA_RETURN_IF_ERROR(status_of(first.result(), "cuCtxPushCurrent"));
  RCUDA_RETURN_IF_ERROR(
      status_of(driver_.cuMemHostAlloc(&words_, kHoldWords * kLineBytes,
                                       CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                "cuMemHostAlloc for the peer-to-peer engine's words"));
  std::memset(words_, 0, kHoldWords * kLineBytes);
  // Portable pinned memory has the same address on every device (unified addressing).
  CUdeviceptr base = 0;
  RCUDA_RETURN_IF_ERROR(status_of(driver_.cuMemHostGetDevicePointer_v2(&base, words_, 0),
                                  "cuMemHostGetDevicePointer"));
  for (size_t device = 0; device < options_.devices.size(); ++device) {
    ContextGuard guard(driver_, options_.devices[device].primary);
    RCUDA_RETURN_IF_ERROR(status_of(guard.result(), "cuCtxPushCurrent"));
    int least = 0;
    int greatest = 0;
    RCUDA_RETURN_IF_ERROR(status_of(driver_.cuCtxGetStreamPriorityRange(&least, &greatest),
                                    "cuCtxGetStreamPriorityRange"));
    for (LaneState& lane : lanes_[device]) {
      RCUDA_RETURN_IF_ERROR(status_of(
          driver_.cuStreamCreateWithPriority(&lane.stream, CU_STREAM_NON_BLOCKING, greatest),
          "cuStreamCreateWithPriority for the peer-to-peer engine"));
    }
  }
  MutexLock lock(mutex_);
  for (size_t hold_word = 0; hold_word < kHoldWords; ++hold_word) {
    const size_t offset = hold_word * kLineBytes;
    auto* at = static_cast<std::byte*>(words_) + offset;
    hold_words_.push_back({new (at) std::atomic<uint32_t>(0), base + offset, 0});
    free_hold_words_.push_back(kHoldWords - 1 - hold_word);
  }
  return {};
}

CudaDeviceOps::~CudaDeviceOps() {
  for (size_t device = 0; device < lanes_.size(); ++device) {
    ContextGuard guard(driver_, options_.devices[device].primary);
    for (const LaneState& lane : lanes_[device]) {
      for (const Running& running : lane.running) driver_.cuEventDestroy_v2(running.event);
      for (const CUevent event : lane.free_events) driver_.cuEventDestroy_v2(event);
      if (lane.stream) driver_.cuStreamDestroy_v2(lane.stream);
    }
    proofs_[device].memory.reset();
  }
  for (const auto& [context, spare] : spare_) {
    ContextGuard guard(driver_, context);
    for (const CUevent event : spare.events) driver_.cuEventDestroy_v2(event);
    for (const CUstream stream : spare.streams) driver_.cuStreamDestroy_v2(stream);
  }
  if (words_) {
    ContextGuard guard(driver_, options_.devices[0].primary);
    driver_.cuMemFreeHost(words_);
  }
}

Status CudaDeviceOps::make_current(int device) {
  if (current_ == device) return {};
  const CUresult result =
      driver_.cuCtxSetCurrent(options_.devices[static_cast<size_t>(device)].primary);
  if (result != CUDA_SUCCESS) return Status::from_cuda(result, "cuCtxSetCurrent");
  current_ = device;
  return {};
}

std::vector<p2p::EngineDevice> CudaDeviceOps::devices() {
  std::vector<p2p::EngineDevice> list;
  for (const Device& device : options_.devices) {
    p2p::EngineDevice entry;
    std::array<uint8_t, 16> uuid;
    if (read_uuid(driver_, device.device, uuid) == CUDA_SUCCESS) {
      entry.uuid = cuda::uuid_text(uuid);
    }
    char bus[32] = {};
    if (driver_.cuDeviceGetPCIBusId(bus, sizeof bus, device.device) == CUDA_SUCCESS) {
      entry.pci_bus_id = bus;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

// Addresses are unified: the driver itself distinguishes host from device memory.
Status CudaDeviceOps::issue(const CopyBox& box, CUstream stream) {
  if (box.rows == 1 && box.slices == 1) {
    return status_of(driver_.cuMemcpyAsync(box.destination, box.source, box.width_bytes, stream),
                     "cuMemcpyAsync of a peer copy");
  }
  // A 3D copy can express only slice pitches that are multiples of the row pitch.
  const bool whole = box.slices > 1 && box.source_pitch > 0 && box.destination_pitch > 0 &&
                     box.source_slice % box.source_pitch == 0 &&
                     box.destination_slice % box.destination_pitch == 0;
  if (whole) {
    CUDA_MEMCPY3D shape{};
    shape.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    shape.srcDevice = box.source;
    shape.srcPitch = box.source_pitch;
    shape.srcHeight = box.source_slice / box.source_pitch;
    shape.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    shape.dstDevice = box.destination;
    shape.dstPitch = box.destination_pitch;
    shape.dstHeight = box.destination_slice / box.destination_pitch;
    shape.WidthInBytes = box.width_bytes;
    shape.Height = box.rows;
    shape.Depth = box.slices;
    return status_of(driver_.cuMemcpy3DAsync_v2(&shape, stream), "cuMemcpy3DAsync of a peer copy");
  }
  for (uint64_t slice = 0; slice < box.slices; ++slice) {
    CUDA_MEMCPY2D shape{};
    shape.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    shape.srcDevice = box.source + slice * box.source_slice;
    shape.srcPitch = box.rows > 1 ? box.source_pitch : box.width_bytes;
    shape.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    shape.dstDevice = box.destination + slice * box.destination_slice;
    shape.dstPitch = box.rows > 1 ? box.destination_pitch : box.width_bytes;
    shape.WidthInBytes = box.width_bytes;
    shape.Height = box.rows;
    RCUDA_RETURN_IF_ERROR(
        status_of(driver_.cuMemcpy2DAsync_v2(&shape, stream), "cuMemcpy2DAsync of a peer copy"));
  }
  return {};
}

Status CudaDeviceOps::take_event(std::vector<CUevent>& pool, CUevent* event) {
  if (pool.empty()) {
    return status_of(driver_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
  *event = pool.back();
  pool.pop_back();
  return {};
}

Result<Ticket> CudaDeviceOps::copy(int device, Lane lane, std::span<const CopyBox> boxes) {
  RCUDA_RETURN_IF_ERROR(make_current(device));
  LaneState& state = lane_of(device, lane);
  CUevent event = nullptr;
  RCUDA_RETURN_IF_ERROR(take_event(state.free_events, &event));
  Status status;
  for (const CopyBox& box : boxes) {
    status = issue(box, state.stream);
    if (!status.ok()) break;
  }
  if (status.ok()) status = status_of(driver_.cuEventRecord(event, state.stream), "cuEventRecord");
  if (!status.ok()) {
    state.free_events.push_back(event);
    return status;
  }
  state.running.push_back({++state.issued, event});
  return state.issued;
}

Result<Ticket> CudaDeviceOps::finished(int device, Lane lane) {
  LaneState& state = lane_of(device, lane);
  while (!state.running.empty()) {
    const Running oldest = state.running.front();
    const CUresult result = driver_.cuEventQuery(oldest.event);
    if (result == CUDA_ERROR_NOT_READY) break;
    state.running.pop_front();
    state.free_events.push_back(oldest.event);
    if (result != CUDA_SUCCESS) {
      // The later copies of this lane fail as well.
      for (const Running& other : state.running) state.free_events.push_back(other.event);
      state.running.clear();
      return Status::from_cuda(result, "a copy in a stream of the peer-to-peer engine failed");
    }
    state.finished = oldest.ticket;
  }
  return state.finished;
}

void CudaDeviceOps::give_back(const PendingPlace& pending) {
  if (pending.stream) --waiting_streams_;
  if (!pending.context) return;
  Spare& spare = spare_[pending.context];
  if (pending.event) spare.events.push_back(pending.event);
  if (pending.stream) spare.streams.push_back(pending.stream);
}

// Removes everything that names the context, because a later context may get the same handle.
void CudaDeviceOps::forget_context(CUcontext context) {
  const auto concerned = [context](const auto& entry) { return entry.second.context == context; };
  MutexLock lock(mutex_);
  CUresult ended = CUDA_SUCCESS;
  if (std::any_of(places_.begin(), places_.end(), concerned)) {
    lock.unlock();
    ContextGuard guard(driver_, context);
    ended = guard.result() == CUDA_SUCCESS ? driver_.cuCtxSynchronize() : guard.result();
    lock.lock();
  }
  spare_.erase(context);
  for (auto& entry : places_) {
    if (!concerned(entry)) continue;
    entry.second.context = nullptr;
    entry.second.ended = ended;
  }
  if (last_held_.context == reinterpret_cast<uint64_t>(context)) last_hold_ = 0;
}

Status CudaDeviceOps::record_event(CUstream stream, PendingPlace* pending) {
  RCUDA_RETURN_IF_ERROR(take_event(spare_[pending->context].events, &pending->event));
  return status_of(driver_.cuEventRecord(pending->event, stream), "cuEventRecord");
}

// The program may record its event again, or destroy it. So a stream of this object waits for the
// event's present record.
Status CudaDeviceOps::await_event(CUevent event, PendingPlace* pending) {
  auto& pool = spare_[pending->context].streams;
  if (pool.empty()) {
    RCUDA_RETURN_IF_ERROR(status_of(
        driver_.cuStreamCreate(&pending->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  } else {
    pending->stream = pool.back();
    pool.pop_back();
  }
  ++waiting_streams_;
  RCUDA_RETURN_IF_ERROR(
      status_of(driver_.cuStreamWaitEvent(pending->stream, event, 0), "cuStreamWaitEvent"));
  return record_event(pending->stream, pending);
}

Status CudaDeviceOps::hold(CUstream stream, PendingPlace* pending) {
  if (free_hold_words_.empty()) {
    return {Code::kOutOfMemory,
            "more than " + std::to_string(kHoldWords) + " streams wait for peer copies at once"};
  }
  HoldWord& hold_word = hold_words_[free_hold_words_.back()];
  RCUDA_RETURN_IF_ERROR(
      status_of(driver_.cuStreamWaitValue32_v2(stream, hold_word.address, hold_word.generation + 1,
                                               CU_STREAM_WAIT_VALUE_GEQ),
                "cuStreamWaitValue32"));
  ++held_;
  pending->hold_word = free_hold_words_.back();
  free_hold_words_.pop_back();
  ++hold_word.generation;
  hold_word.holds = 1;
  return {};
}

// If the previous copy still holds the stream, extends this hold and returns true. The stream then
// stays held until both copies have ended, and the GPU need not resume it in between.
bool CudaDeviceOps::join(p2p::StreamRef ref, PendingPlace* pending) {
  const auto last = places_.find(last_hold_);
  if (!ref.follows || last == places_.end() || ref.stream != last_held_.stream ||
      ref.context != last_held_.context) {
    return false;
  }
  pending->behind = last_hold_;
  pending->hold_word = last->second.hold_word;
  ++hold_words_[pending->hold_word].holds;
  ++held_;
  return true;
}

// Does not block: cuEventQuery never waits.
Result<bool> CudaDeviceOps::is_passed(const PendingPlace& pending) {
  if (!pending.context) {
    if (pending.ended == CUDA_SUCCESS) return true;
    return Status::from_cuda(pending.ended, "work in the stream of a peer copy failed");
  }
  if (pending.behind != 0) return !places_.contains(pending.behind);
  if (!pending.event) return true;
  const CUresult result = driver_.cuEventQuery(pending.event);
  if (result == CUDA_SUCCESS) return true;
  if (result == CUDA_ERROR_NOT_READY) return false;
  return Status::from_cuda(result, "work in the stream of a peer copy failed");
}

Result<StreamPlace> CudaDeviceOps::enter(p2p::StreamRef ref, bool hold_it) {
  const auto stream = reinterpret_cast<CUstream>(ref.stream);
  PendingPlace pending;
  pending.context = reinterpret_cast<CUcontext>(ref.context);
  pending.hold = hold_it;
  if (ref.idle && !hold_it) {
    MutexLock lock(mutex_);
    places_[next_place_] = pending;
    return StreamPlace{next_place_++};
  }
  ContextGuard guard(driver_, pending.context);
  RCUDA_RETURN_IF_ERROR(status_of(guard.result(), "cuCtxPushCurrent"));
  MutexLock lock(mutex_);
  // The thread that grants pauses never calls enter() during a pause, so it does not block here.
  if (hold_it)
    resumed_.wait(lock, [this]() RCUDA_REQUIRES(mutex_) { return paused_ == p2p::Pause::kNone; });
  Status status;
  if (ref.event) {
    status = await_event(reinterpret_cast<CUevent>(ref.event), &pending);
  } else if (!hold_it || !join(ref, &pending)) {
    // An idle stream has already reached the place, so no event is needed. Whether the legacy
    // default stream is idle depends on other streams, so an event is always recorded in it.
    const bool legacy = stream == nullptr || stream == CU_STREAM_LEGACY;
    const CUresult idle = legacy ? CUDA_ERROR_NOT_READY : driver_.cuStreamQuery(stream);
    status = idle == CUDA_ERROR_NOT_READY ? record_event(stream, &pending)
                                          : status_of(idle, "cuStreamQuery");
    if (status.ok() && hold_it) status = hold(stream, &pending);
  }
  if (!status.ok()) {
    give_back(pending);
    return status;
  }
  if (hold_it) {
    last_hold_ = next_place_;
    last_held_ = ref;
  }
  places_[next_place_] = pending;
  return StreamPlace{next_place_++};
}

Result<bool> CudaDeviceOps::reached(StreamPlace place) {
  uint64_t puts = 0;
  {
    // The lock is held during the query. Otherwise forget_context() could return meanwhile, and its
    // caller lets the driver destroy the context with the event.
    MutexLock lock(mutex_);
    const PendingPlace& pending = places_.at(static_cast<uint64_t>(place));
    RCUDA_ASSIGN_OR_RETURN(const bool passed, is_passed(pending));
    if (!passed) return false;
    puts = pending.puts;
  }
  if (!options_.client_has || options_.client_has(&puts)) return true;
  MutexLock lock(mutex_);
  places_.at(static_cast<uint64_t>(place)).puts = puts;
  return false;
}

void CudaDeviceOps::release(StreamPlace place, const Status& status) {
  if (!status.ok() && options_.on_error) options_.on_error(cuda_error_of(status));
  {
    MutexLock lock(mutex_);
    const auto found = places_.find(static_cast<uint64_t>(place));
    const PendingPlace pending = found->second;
    places_.erase(found);
    give_back(pending);
    if (!pending.hold) return;
    --held_;
    HoldWord& hold_word = hold_words_[pending.hold_word];
    if (--hold_word.holds > 0) return;
    // Pairs with the GPU's read: everything that the copy wrote is in memory before this store.
    hold_word.word->store(hold_word.generation, std::memory_order_seq_cst);
    free_hold_words_.push_back(pending.hold_word);
    if (held_ > 0) return;
  }
  if (options_.on_change) options_.on_change();
}

bool CudaDeviceOps::pause(p2p::Pause what) {
  std::atomic<bool>& wanted = what == p2p::Pause::kWork ? wants_work_ : wants_holds_;
  // The pause is already requested, but not yet granted. The engine asks again in each round.
  if (wanted && !by_itself_) return false;
  {
    MutexLock lock(mutex_);
    if (by_itself_ && paused_ < what && held_ == 0) paused_ = what;
    if (paused_ >= what) {
      pause_used_ = true;
      return true;
    }
    if (by_itself_ || wanted.exchange(true)) return false;
  }
  options_.on_change();
  return false;
}

void CudaDeviceOps::resume() {
  if (paused_ == p2p::Pause::kNone) return;
  {
    MutexLock lock(mutex_);
    // The engine has not used this pause, which may have begun in the middle of the round. So the
    // pause lasts until the end of the next round.
    if (!pause_used_ && !std::exchange(pause_stale_, true)) return;
    paused_ = p2p::Pause::kNone;
    pause_used_ = pause_stale_ = false;
  }
  resumed_.notify_all();
  if (options_.on_change) options_.on_change();
}

bool CudaDeviceOps::begin_pause(p2p::Pause what) {
  MutexLock lock(mutex_);
  if (held_ > 0 || paused_ != p2p::Pause::kNone) return false;
  paused_ = what;
  wants_holds_ = false;
  if (what == p2p::Pause::kWork) wants_work_ = false;
  return true;
}

void CudaDeviceOps::grant_by_itself() {
  MutexLock lock(mutex_);
  by_itself_ = true;
}

}  // namespace rcuda::server
