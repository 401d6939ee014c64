// The entry points. As in an older NCCL, the one-sided operations and the operations with a
// configuration are missing. Only functions that make communicators take a configuration.
#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/nccl/group.h"

namespace testnccl {
namespace {

// The smallest size of ncclConfig_t: the end of its field `blocking`, in every version since 2.14.
constexpr size_t kBlockingEnds = 20;

ncclResult_t read_config(const ncclConfig_t* config, bool* blocking) {
  if (!config) return ncclSuccess;
  if (config->magic != kNcclMagic || config->size < kBlockingEnds) {
    return refuse(ncclInvalidArgument,
                  "the configuration was not initialised: assign NCCL_CONFIG_INITIALIZER");
  }
  if (config->blocking != kNcclUndefined) *blocking = config->blocking != 0;
  return ncclSuccess;
}

Id read_id(const ncclUniqueId& id) {
  Id read;
  std::memcpy(&read.key, id.internal, sizeof read.key);
  std::memcpy(&read.address, id.internal + sizeof read.key, sizeof read.address);
  return read;
}

void write_id(const Id& id, ncclUniqueId* written) {
  *written = {};
  std::memcpy(written->internal, &id.key, sizeof id.key);
  std::memcpy(written->internal + sizeof id.key, &id.address, sizeof id.address);
}

ncclResult_t make_id(ncclUniqueId* id) {
  if (!id) return refuse(ncclInvalidArgument, "the address for the unique id is null");
  const auto hub = Hub::start(Hub::Life::kOnce);
  if (!hub) return refuse(ncclSystemError, "cannot listen for the ranks of a communicator");
  write_id(hub->id(), id);
  return ncclSuccess;
}

// Returns the calling thread's context or, if it has none, the primary context of device 0. NCCL
// does the same, because it uses the CUDA runtime.
CUcontext current_context() {
  CUcontext context = nullptr;
  if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || context) return context;
  (void)cuDevicePrimaryCtxRetain(&context, 0);
  return context;
}

CommunicatorPtr make(ncclComm_t* handle, int ranks, int rank, bool blocking) {
  const CUcontext context = current_context();
  if (!context) return nullptr;
  auto made = std::make_shared<Communicator>(ranks, rank, blocking, context);
  *handle = add_handle(made);
  return made;
}

// With TESTNCCL_INIT=fails or =dies, the rank fails or dies before it has met the other ranks.
ncclResult_t meet(Communicator& made, const Id& id) {
  const char* const fault = std::getenv("TESTNCCL_INIT");
  if (fault && std::strcmp(fault, "dies") == 0) (void)std::raise(SIGKILL);
  if (fault)
    return made.fail(ncclSystemError, "the initialisation fails because TESTNCCL_INIT is set",
                     true);
  return made.meet(id);
}

ncclResult_t init(ncclComm_t* comm, int ranks, const ncclUniqueId& unique, int rank,
                  const ncclConfig_t* config) {
  bool blocking = true;
  if (!comm || ranks < 1 || rank < 0 || rank >= ranks) {
    return refuse(ncclInvalidArgument,
                  "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " is invalid");
  }
  const Id id = read_id(unique);
  if (id.address.sin_family != AF_INET)
    return refuse(ncclInvalidArgument, "the unique id is invalid");
  if (const ncclResult_t result = read_config(config, &blocking); result != ncclSuccess)
    return result;
  const CommunicatorPtr made = make(comm, ranks, rank, blocking);
  if (!made)
    return refuse(ncclUnhandledCudaError,
                  "the calling thread has no CUDA context, and that of device 0 cannot be made");
  add({[made, id] { return meet(*made, id); }, made, comm});
  return ncclSuccess;
}

// All ranks take part. If TESTNCCL_SUSPEND is set, suspending fails.
ncclResult_t suspend_or_resume(ncclComm_t comm, bool suspends) {
  return as_group([&] {
    ncclResult_t result = ncclSuccess;
    const CommunicatorPtr communicator = use(comm, &result);
    if (!communicator) return result;
    if (communicator->is_suspended() == suspends || (suspends && std::getenv("TESTNCCL_SUSPEND"))) {
      return communicator->fail(
          ncclInvalidUsage,
          "the communicator is already suspended, or already awake, or TESTNCCL_SUSPEND is set",
          false);
    }
    add({[communicator, suspends] {
           Bytes mine;
           put(mine, int32_t{suspends});
           if (communicator->exchange(mine).empty()) return communicator->failure();
           communicator->set_suspended(suspends);
           return ncclSuccess;
         },
         nullptr, nullptr});
    return ncclSuccess;
  });
}

// Returns the communicator for an operation. Fails if the communicator is suspended.
CommunicatorPtr use_awake(ncclComm_t comm, ncclResult_t* result) {
  CommunicatorPtr communicator = use(comm, result);
  if (!communicator || !communicator->is_suspended()) return communicator;
  *result = communicator->fail(ncclInvalidUsage, "the communicator is suspended", false);
  return nullptr;
}

struct Choice {
  int color, key;
  Id id;
};

ncclResult_t split(const CommunicatorPtr& parent, const CommunicatorPtr& made, int color, int key) {
  const auto hub = Hub::start(Hub::Life::kOnce);
  if (!hub)
    return parent->fail(ncclSystemError, "cannot listen for the ranks of a communicator", true);
  Bytes mine;
  put(mine, Choice{color, key, hub->id()});
  const Bytes all = parent->exchange(mine);
  if (all.empty()) return parent->failure();
  Reader reader(all);
  std::vector<std::pair<Choice, int>> group;  // the choice, and the rank in the parent
  for (int rank = 0; rank < parent->ranks(); ++rank) {
    const auto choice = reader.get<Choice>();
    if (choice.color == color) group.emplace_back(choice, rank);
  }
  std::stable_sort(group.begin(), group.end(),
                   [](const auto& a, const auto& b) { return a.first.key < b.first.key; });
  const auto me = std::find_if(group.begin(), group.end(),
                               [&](const auto& each) { return each.second == parent->rank(); });
  if (me != group.begin()) hub->close();
  if (!made) return ncclSuccess;
  return made->meet_as(static_cast<int>(me - group.begin()), static_cast<int>(group.size()),
                       group.front().first.id);
}

ncclResult_t collective(Collective what, const void* send, void* receive, size_t count,
                        ncclDataType_t type, int op, int root, ncclComm_t comm, CUstream stream) {
  return as_group([&] {
    ncclResult_t result = ncclSuccess;
    const CommunicatorPtr communicator = use_awake(comm, &result);
    if (!communicator) return result;
    const Shape& shape = shape_of(what);
    const std::optional<Factor> factor = communicator->factor(op);
    if (size_of(type) == 0 || op < 0 || (op >= ncclNumOps && !factor) || root < 0 ||
        root >= communicator->ranks() || (factor && factor->type != type)) {
      return communicator->fail(ncclInvalidArgument,
                                std::string(shape.name) + ": type " + std::to_string(type) +
                                    ", op " + std::to_string(op) + " or root " +
                                    std::to_string(root) + " is invalid",
                                false);
    }
    if (count == 0) return ncclSuccess;
    const Call call{what, type, std::min<int>(op, ncclNumOps), root, count};
    const auto from = reinterpret_cast<CUdeviceptr>(send),
               to = reinterpret_cast<CUdeviceptr>(receive);
    const size_t sent = bytes_sent(call, communicator->rank(), communicator->ranks());
    const size_t received = bytes_received(call, communicator->rank(), communicator->ranks());
    const CUdeviceptr offset =
        count * size_of(type) *
        static_cast<CUdeviceptr>(shape.has_root ? root : communicator->rank());
    const bool in_place = (shape.in_place == InPlace::kSame && from == to) ||
                          (shape.in_place == InPlace::kPartOfReceived && from == to + offset) ||
                          (shape.in_place == InPlace::kPartOfSent && to == from + offset);
    if (!in_place && from < to + received && to < from + sent) {
      return communicator->fail(ncclInvalidUsage, describe(call) + ": its buffers overlap", false);
    }
    add(communicator, Request{call, from, to, factor, stream});
    return ncclSuccess;
  });
}

ncclResult_t transfer(bool sends, const void* buffer, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, CUstream stream) {
  return as_group([&] {
    ncclResult_t result = ncclSuccess;
    const CommunicatorPtr communicator = use_awake(comm, &result);
    if (!communicator) return result;
    const std::string call = sends ? "ncclSend" : "ncclRecv";
    if (size_of(type) == 0) {
      return communicator->fail(ncclInvalidArgument,
                                call + ": invalid type " + std::to_string(type), false);
    }
    if (peer < 0 || peer >= communicator->ranks()) {
      return communicator->fail(ncclInvalidArgument,
                                call + ": invalid peer " + std::to_string(peer), false);
    }
    add(communicator,
        Leg{{peer, sends ? 1 : 0, type, count}, reinterpret_cast<CUdeviceptr>(buffer), stream});
    return ncclSuccess;
  });
}

// Stores the result of `ask` in `*place`. Fails while a call of the communicator is in progress.
template <typename T>
ncclResult_t answer(ncclComm_t comm, T* place, T (*ask)(const Communicator&)) {
  const CommunicatorPtr communicator = find(comm);
  if (!communicator || !place)
    return refuse(ncclInvalidArgument, "the communicator does not exist, or the address is null");
  if (communicator->state() == ncclInProgress)
    return refuse(ncclInvalidArgument, "the communicator's previous call is in progress");
  *place = ask(*communicator);
  return ncclSuccess;
}

// With a null communicator NVIDIA's library crashes in this call, so this library aborts.
void crash_if_null(ncclComm_t comm, const char* call) {
  if (comm) return;
  std::fprintf(stderr, "testnccl: %s has a null communicator\n", call);
  std::abort();
}

std::mutex memory_mutex;
std::map<void*, size_t>& memory() {
  static auto* all = new std::map<void*, size_t>;
  return *all;
}

CUresult map_memory(CUdeviceptr* address, size_t* size) {
  CUdevice device = 0;
  CUmemAllocationProp properties{};
  size_t granularity = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = cuCtxGetDevice(&device);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  auto then = [&](CUresult (*step)(CUdeviceptr*, size_t, CUmemAllocationProp&,
                                   CUmemGenericAllocationHandle&)) {
    if (result == CUDA_SUCCESS) result = step(address, *size, properties, handle);
  };
  if (result == CUDA_SUCCESS) {
    result = cuMemGetAllocationGranularity(&granularity, &properties,
                                           CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  }
  if (result == CUDA_SUCCESS) *size = (*size + granularity - 1) / granularity * granularity;
  then(
      [](auto* at, size_t bytes, auto&, auto&) { return cuMemAddressReserve(at, bytes, 0, 0, 0); });
  then([](auto*, size_t bytes, auto& wanted, auto& made) {
    return cuMemCreate(&made, bytes, &wanted, 0);
  });
  then([](auto* at, size_t bytes, auto&, auto& made) { return cuMemMap(*at, bytes, 0, made, 0); });
  then([](auto* at, size_t bytes, auto& wanted, auto& made) {
    (void)cuMemRelease(made);
    int devices = 0;
    CUresult result = cuDeviceGetCount(&devices);
    for (int device = 0; result == CUDA_SUCCESS && device < devices; ++device) {
      int can = device == wanted.location.id;
      if (!can) (void)cuDeviceCanAccessPeer(&can, device, wanted.location.id);
      const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {device}},
                                   CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      if (can) result = cuMemSetAccess(*at, bytes, &access, 1);
    }
    return result;
  });
  return result;
}

}  // namespace
}  // namespace testnccl

using namespace testnccl;  // for the entry points below

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (!version) return ncclInvalidArgument;
  *version = library_version();
  return ncclSuccess;
}

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config) {
  constexpr size_t kLeastBytes = 32;  // as NCCL 2.32.3
  if (!config || config->magic != kNcclMagic || config->mode < 0 || config->mode > 1) {
    return ncclInvalidArgument;
  }
  if (config->mode == 0) {
    encryption() = 0;
    return ncclSuccess;
  }
  if (!config->psk || std::strlen(config->psk) < kLeastBytes) return ncclInvalidArgument;
  encryption() = std::hash<std::string>()(config->psk) | 1;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress",
                                           "timeout"};
  return static_cast<unsigned>(result) < std::size(kTexts) ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  const CommunicatorPtr communicator = find(comm);
  text = communicator ? communicator->last_error() : last_refusal();
  return text.c_str();
}

ncclResult_t ncclMemAlloc(void** pointer, size_t size) {
  CUdeviceptr address = 0;
  const Current current(current_context());
  if (const CUresult result = map_memory(&address, &size); result != CUDA_SUCCESS) {
    return refuse(ncclUnhandledCudaError, "ncclMemAlloc: CUDA error " + std::to_string(result));
  }
  *pointer = reinterpret_cast<void*>(address);
  const std::lock_guard lock(memory_mutex);
  memory()[*pointer] = size;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* pointer) {
  const std::lock_guard lock(memory_mutex);
  const auto found = memory().find(pointer);
  if (found == memory().end())
    return refuse(ncclInvalidArgument, "ncclMemFree: ncclMemAlloc did not allocate this memory");
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  (void)cuMemUnmap(address, found->second);
  (void)cuMemAddressFree(address, found->second);
  memory().erase(found);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return make_id(id); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return as_group([&] { return init(comm, ranks, id, rank, config); });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int ids,
                                      ncclUniqueId* id, ncclConfig_t* config) {
  if (ids < 1 || !id) return refuse(ncclInvalidArgument, "the call has no unique id");
  return ncclCommInitRankConfig(comm, ranks, id[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* list) {
  ncclUniqueId id;
  if (const ncclResult_t result = make_id(&id); result != ncclSuccess) return result;
  begin_group();
  for (int i = 0; i < devices; ++i) {
    CUcontext context = nullptr;
    if (cuDevicePrimaryCtxRetain(&context, list ? list[i] : i) == CUDA_SUCCESS) {
      const Current current(context);
      (void)ncclCommInitRank(&comms[i], devices, id, i);
    } else {
      (void)as_group([] {
        return refuse(ncclInvalidArgument,
                      "ncclCommInitAll: the context of a device cannot be made");
      });
    }
  }
  return end_group();
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  return as_group([&] {
    ncclResult_t result = ncclSuccess;
    const CommunicatorPtr parent = use(comm, &result);
    if (!parent) return result;
    bool blocking = parent->blocking();
    if (result = read_config(config, &blocking); result != ncclSuccess) return result;
    *made = nullptr;
    CommunicatorPtr child;
    const Current current(parent->context());
    if (color != kNcclNoColor) child = make(made, parent->ranks(), parent->rank(), blocking);
    if (child) parent->adopt(child);
    add({[=] { return split(parent, child, color, key); }, child, made});
    return ncclSuccess;
  });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* made,
                            ncclConfig_t* config, int flags) {
  crash_if_null(comm, "ncclCommShrink");
  return as_group([&] {
    ncclResult_t result = ncclSuccess;
    const CommunicatorPtr known = find(comm);
    const bool may_have_failed = (flags & kNcclShrinkAbort) != 0 || (known && known->is_revoked());
    const CommunicatorPtr parent = use(comm, &result, may_have_failed);
    if (!parent) return result;
    bool blocking = parent->blocking();
    if (result = read_config(config, &blocking); result != ncclSuccess) return result;
    std::vector<int> left;
    for (int rank = 0; rank < parent->ranks(); ++rank) {
      if (std::find(excluded, excluded + count, rank) == excluded + count) left.push_back(rank);
    }
    const auto me = std::find(left.begin(), left.end(), parent->rank());
    if (me == left.end())
      return parent->fail(ncclInvalidArgument, "ncclCommShrink excludes the calling rank", false);
    const Current current(parent->context());
    const CommunicatorPtr child =
        make(made, static_cast<int>(left.size()), static_cast<int>(me - left.begin()), blocking);
    parent->adopt(child);
    add({[child, id = parent->spare_of(left[0])] { return child->meet(id); }, child, made});
    return ncclSuccess;
  });
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  return find(comm) ? make_id(id) : refuse(ncclInvalidArgument, "no communicator has this handle");
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank,
                          ncclComm_t* made, ncclConfig_t* config) {
  if (!comm)
    return id ? ncclCommInitRankConfig(made, ranks, *id, rank, config) : ncclInvalidArgument;
  return as_group([&] {
    ncclResult_t result = ncclSuccess;
    const CommunicatorPtr parent = use(comm, &result);
    if (!parent) return result;
    bool blocking = parent->blocking();
    if (result = read_config(config, &blocking); result != ncclSuccess) return result;
    const Current current(parent->context());
    const CommunicatorPtr child = make(made, ranks, parent->rank(), blocking);
    parent->adopt(child);
    add({[=, mine = id ? read_id(*id) : Id{}] {
           Bytes record;
           put(record, mine);
           const Bytes all = parent->exchange(record);
           Reader reader(all);
           Id found;
           for (int from = 0; from < parent->ranks() && found.key == 0; ++from)
             found = reader.get<Id>();
           return child->meet(found);
         },
         child, made});
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return as_group([&] {
    ncclResult_t result = ncclSuccess;
    const CommunicatorPtr communicator = use(comm, &result);
    if (communicator) {
      add({[communicator] {
             communicator->finalize();
             return communicator->state() == ncclInProgress ? ncclSuccess : communicator->state();
           },
           nullptr, nullptr});
    }
    return result;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  begin_group();
  const CommunicatorPtr communicator = use(comm, &result, true);
  if (communicator) {
    (void)take(comm);
    communicator->finalize();
    communicator->end();
  }
  (void)end_group(false);
  return result;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  const CommunicatorPtr communicator = take(comm);
  if (!communicator)
    return refuse(ncclInvalidArgument, "no communicator has this handle, or it has ended");
  communicator->abort();
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  const CommunicatorPtr communicator = find(comm);
  if (!communicator || flags != 0)
    return refuse(ncclInvalidArgument,
                  "ncclCommRevoke: no communicator has this handle, or the flags are not 0");
  return communicator->revoke();
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  constexpr int kMemory = 1;
  return flags == kMemory
             ? suspend_or_resume(comm, true)
             : refuse(ncclInvalidArgument, "ncclCommSuspend: the flags are not supported");
}

ncclResult_t ncclCommResume(ncclComm_t comm) { return suspend_or_resume(comm, false); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const CommunicatorPtr communicator = find(comm);
  if (!communicator || !error)
    return refuse(ncclInvalidArgument, "the communicator does not exist, or the address is null");
  *error = communicator->state();
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return answer<int>(comm, count, [](const Communicator& each) { return each.ranks(); });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return answer<int>(comm, device,
                     [](const Communicator& each) { return static_cast<int>(each.device()); });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return answer<int>(comm, rank, [](const Communicator& each) { return each.rank(); });
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t, void** handle) {
  return answer<void*>(comm, handle,
                       [](const Communicator&) { return static_cast<void*>(nullptr); }) ==
                 ncclSuccess
             ? (*handle = buffer, ncclSuccess)
             : ncclInvalidArgument;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void*) {
  return find(comm) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  ncclResult_t result = ncclSuccess;
  begin_group();
  if (const CommunicatorPtr communicator = use(comm, &result)) {
    Factor factor{type, {}, 0};
    if (residence == ncclScalarHostImmediate) {
      std::memcpy(factor.value.data(), scalar, size_of(type));
    } else {
      factor.device = reinterpret_cast<CUdeviceptr>(scalar);
    }
    *op = communicator->add_factor(factor);
  }
  (void)end_group(false);
  return result;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  crash_if_null(comm, "ncclRedOpDestroy");
  const CommunicatorPtr communicator = find(comm);
  return communicator && communicator->remove_factor(op)
             ? ncclSuccess
             : refuse(ncclInvalidArgument,
                      "ncclRedOpDestroy: the communicator has no such operation");
}

#define COLLECTIVE(name, parameters, ...)                              \
  ncclResult_t nccl##name parameters {                                 \
    return collective(Collective::k##name, __VA_ARGS__, comm, stream); \
  }

COLLECTIVE(AllReduce,
           (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
            ncclComm_t comm, CUstream stream),
           send, receive, count, type, op, 0)
COLLECTIVE(Broadcast,
           (const void* send, void* receive, size_t count, ncclDataType_t type, int root,
            ncclComm_t comm, CUstream stream),
           send, receive, count, type, 0, root)
COLLECTIVE(Reduce,
           (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
            int root, ncclComm_t comm, CUstream stream),
           send, receive, count, type, op, root)
COLLECTIVE(AllGather,
           (const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
            CUstream stream),
           send, receive, count, type, 0, 0)
COLLECTIVE(ReduceScatter,
           (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
            ncclComm_t comm, CUstream stream),
           send, receive, count, type, op, 0)
COLLECTIVE(AlltoAll,
           (const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
            CUstream stream),
           send, receive, count, type, 0, 0)
COLLECTIVE(Gather,
           (const void* send, void* receive, size_t count, ncclDataType_t type, int root,
            ncclComm_t comm, CUstream stream),
           send, receive, count, type, 0, root)
COLLECTIVE(Scatter,
           (const void* send, void* receive, size_t count, ncclDataType_t type, int root,
            ncclComm_t comm, CUstream stream),
           send, receive, count, type, 0, root)
#undef COLLECTIVE

ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       CUstream stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, CUstream stream) {
  return transfer(true, buffer, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      CUstream stream) {
  return transfer(false, buffer, count, type, peer, comm, stream);
}

ncclResult_t ncclGroupStart() {
  begin_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return end_group(); }

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  if (info) info->estimatedTime = 0;
  return end_group(false);
}

}  // extern "C"
#pragma GCC visibility pop
