#include "softgpu/driver/context.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "common/base/log.h"
#include "common/base/thread_object.h"
#include "common/interop/export_tables.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/condition.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/pools.h"
#include "softgpu/driver/start_cost.h"
#include "softgpu/driver/texture.h"
#include "softgpu/driver/texture_reference.h"
#include "softgpu/exec/program.h"
#include "softgpu/texture/objects.h"

namespace softgpu::driver {
namespace {

using Stack = std::vector<std::shared_ptr<Context>>;

// The calling thread's stack of contexts; the current context is last.
Stack& current_stack() { return rcuda::of_this_thread<Stack>(); }

std::atomic<uint64_t> next_context_id{1};

constexpr size_t kHeapAlignment = 16;

// Output of kernels goes through stdio, so that it mixes with the program's own output line by
// line. Like driver 580 on an H100, flushes the stream whatever its buffering mode.
void print(std::string_view text, bool is_stderr) {
  std::FILE* file = is_stderr ? stderr : stdout;
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

Context::Context(Device& device, bool primary) : device_(device), primary_(primary) {}

Context::Context(std::shared_ptr<Context> primary, int multiprocessors)
    : device_(primary->device()),
      primary_(false),
      primary_of_green_(std::move(primary)),
      multiprocessors_(multiprocessors) {}

Context::~Context() = default;

std::shared_ptr<Context> Context::from_handle(CUcontext handle) {
  for (int i = 0; i < device_count(); ++i) {
    Device* device = device_at(i);
    if (device && device->primary().handle() == handle) return device->primary_shared();
  }
  return handle_table<Context>().find(handle);
}

void Context::fail(CUresult error, const std::string& why) {
  // While the context is being torn down, the work that it drops is expected to fail.
  if (stopping_.load(std::memory_order_relaxed)) return;
  if (is_green()) return primary_of_green_->fail(error, why);
  int expected = CUDA_SUCCESS;
  const bool first = sticky_.compare_exchange_strong(expected, error, std::memory_order_acq_rel);
  // A program may end while work runs, so work that the end of its context stops is not a failure.
  if (first && error != CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    RCUDA_ERROR("context %llu of device %d is lost with CUDA error %d: %s",
                static_cast<unsigned long long>(id()), device_.ordinal(), error, why.c_str());
  } else {
    RCUDA_DEBUG("CUDA error %d in context %llu, which is already lost or being destroyed: %s",
                error, static_cast<unsigned long long>(id()), why.c_str());
  }
}

exec::Environment Context::environment() {
  if (is_green()) return primary_of_green_->environment();
  exec::Environment environment;
  environment.memory = &device_.memory();
  environment.print = print;
  environment.heap_allocate = [this](size_t bytes) { return heap_allocate(bytes); };
  environment.heap_release = [this](CUdeviceptr address) { return heap_release(address); };
  environment.set_conditional = [](CUgraphConditionalHandle handle, unsigned value) {
    if (const auto condition = Condition::find(handle)) condition->set(value);
  };
  environment.textures = texture::objects().snapshot();
  environment.multiprocessors = static_cast<uint32_t>(device_.multiprocessors());
  return environment;
}

CUresult Context::limit(CUlimit limit, size_t* value) const {
  if (static_cast<unsigned>(limit) >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  switch (limit) {
    case CU_LIMIT_CIG_ENABLED:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_LIMIT_SHMEM_SIZE:
      *value = static_cast<size_t>(
          *device_.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
      return CUDA_SUCCESS;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:  // not supported since compute capability 9.0
    case CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED:
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    default:
      *value = limits_[limit].load(std::memory_order_relaxed);
      return CUDA_SUCCESS;
  }
}

CUresult Context::set_limit(CUlimit limit, size_t value) {
  size_t ignored = 0;
  if (CUresult result = this->limit(limit, &ignored)) return result;
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      if (value > 512 * 1024) return CUDA_ERROR_INVALID_VALUE;
      value = round_up(std::max<size_t>(value, 1), 16);
      break;
    case CU_LIMIT_MALLOC_HEAP_SIZE: {
      std::lock_guard lock(mutex_);
      // As on hardware: the size is fixed once a kernel has used the heap.
      if (heap_address_ != 0) return CUDA_ERROR_INVALID_VALUE;
      break;
    }
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      if (value > 128) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
      value = std::min<size_t>(value, static_cast<size_t>(*device_.attribute(
                                          CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE)));
      break;
    case CU_LIMIT_CIG_ENABLED:  // set when a context for graphics is made
      return CUDA_ERROR_NOT_PERMITTED;
    case CU_LIMIT_SHMEM_SIZE:
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    default:
      break;
  }
  limits_[limit].store(value, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUdeviceptr Context::heap_allocate(size_t bytes) {
  std::lock_guard lock(mutex_);
  const size_t size = limits_[CU_LIMIT_MALLOC_HEAP_SIZE].load(std::memory_order_relaxed);
  if (size == 0) return 0;
  if (heap_address_ == 0) {
    if (allocate_device_memory(*this, size, MemoryKind::kHeap, &heap_address_) != CUDA_SUCCESS) {
      heap_address_ = 0;
      return 0;
    }
    heap_free_ = FreeRanges(size);
  }
  if (bytes > size) return 0;
  const size_t rounded = round_up(std::max<size_t>(bytes, 1), kHeapAlignment);
  std::optional<uint64_t> offset = heap_free_.take(rounded, kHeapAlignment);
  if (!offset) return 0;
  heap_blocks_.emplace(heap_address_ + *offset, rounded);
  return heap_address_ + *offset;
}

bool Context::heap_release(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  auto found = heap_blocks_.find(address);
  if (found == heap_blocks_.end()) return false;
  heap_free_.give_back(address - heap_address_, found->second);
  heap_blocks_.erase(found);
  return true;
}

CUresult Context::enable_peer(Context& peer) {
  if (&peer.device() == &device_) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  {
    std::lock_guard lock(mutex_);
    if (!peers_.insert(&peer).second) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  }
  peer.peer_readers_[static_cast<size_t>(device_.ordinal())].fetch_add(1);
  memory_registry().refresh([&peer](const Allocation& a) { return a.owner == &peer; });
  return CUDA_SUCCESS;
}

CUresult Context::disable_peer(Context& peer) {
  {
    std::lock_guard lock(mutex_);
    if (peers_.erase(&peer) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  }
  drop_peer(peer);
  return CUDA_SUCCESS;
}

uint32_t Context::peer_devices() const {
  uint32_t mask = 0;
  for (size_t i = 0; i < peer_readers_.size(); ++i) {
    if (peer_readers_[i].load() > 0) mask |= 1u << i;
  }
  return mask;
}

bool Context::start() {
  if (!is_green()) {
    const size_t bytes = configuration().context_bytes;
    CUdeviceptr own = 0;  // stop() releases it with the other memory
    if (bytes != 0 && allocate_device_memory(*this, bytes, MemoryKind::kModule, &own)) return false;
    pay_for_context();
  }
  id_.store(next_context_id.fetch_add(1), std::memory_order_relaxed);
  sticky_.store(CUDA_SUCCESS, std::memory_order_relaxed);
  stopping_.store(false, std::memory_order_relaxed);
  limits_[CU_LIMIT_STACK_SIZE] = 1024;
  limits_[CU_LIMIT_PRINTF_FIFO_SIZE] = size_t{7} << 20;
  limits_[CU_LIMIT_MALLOC_HEAP_SIZE] = size_t{8} << 20;
  limits_[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  limits_[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  limits_[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
  cache_config = CU_FUNC_CACHE_PREFER_NONE;
  shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  streams_ = make_stream_hub(*this);
  alive_.store(true, std::memory_order_release);
  return true;
}

void Context::abandon() {
  if (!alive() || stopping_.exchange(true, std::memory_order_acq_rel)) return;
  streams_->stop();
  if (!is_green()) pay_for_context_end();
}

void Context::stop() {
  if (!alive()) return;
  // The values that the CUDA runtime stored with the context are destroyed first: their destructors
  // may still use the context.
  rcuda::interop::context_destroyed(handle());
  if (!alive_.exchange(false, std::memory_order_acq_rel)) return;
  if (!is_green()) pay_for_context_end();
  stopping_.store(true, std::memory_order_release);
  streams_->stop();
  unload_modules_of(*this);
  drop_references_of(*this);
  destroy_textures_of(*this);
  destroy_arrays_of(*this);
  std::set<Context*> peers;
  {
    std::lock_guard lock(mutex_);
    peers.swap(peers_);
    heap_blocks_.clear();
    heap_free_ = FreeRanges(0);
    heap_address_ = 0;
  }
  for (Context* peer : peers) drop_peer(*peer);
  release_memory_of(*this);
  observe_frees(device_);
  // Removes this context from the peers of all other contexts, because a later Context object may
  // get the same address.
  auto forget = [this](Context& other) {
    std::lock_guard lock(other.mutex_);
    other.peers_.erase(this);
  };
  for (int i = 0; i < device_count(); ++i) {
    if (Device* device = device_at(i)) forget(device->primary());
  }
  handle_table<Context>().for_each(forget);
  for (std::atomic<int>& readers : peer_readers_) readers = 0;
}

void Context::drop_peer(Context& peer) {
  peer.peer_readers_[static_cast<size_t>(device_.ordinal())].fetch_sub(1);
  memory_registry().refresh([&peer](const Allocation& a) { return a.owner == &peer; });
}

Context* current_context() {
  const Stack& stack = current_stack();
  return stack.empty() ? nullptr : stack.back().get();
}

std::shared_ptr<Context> current_context_shared() {
  const Stack& stack = current_stack();
  return stack.empty() ? nullptr : stack.back();
}

void set_current_context(std::shared_ptr<Context> context) {
  Stack& stack = current_stack();
  if (!context) {
    if (!stack.empty()) stack.pop_back();
  } else if (stack.empty()) {
    stack.push_back(std::move(context));
  } else {
    stack.back() = std::move(context);
  }
}

void push_current_context(std::shared_ptr<Context> context) {
  current_stack().push_back(std::move(context));
}

CUresult enter(Context** context) {
  if (CUresult result = check_initialized()) return result;
  Context* current = current_context();
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  if (!current->alive()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (CUresult sticky = current->sticky()) return sticky;
  *context = &current->owner();
  return CUDA_SUCCESS;
}

CUresult enter_anywhere(Context** context) {
  *context = nullptr;
  const CUresult result = enter(context);
  return result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED
             ? CUDA_SUCCESS
             : result;
}

}  // namespace softgpu::driver
