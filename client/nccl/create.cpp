// Creation and end of communicators, and queries about them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/nccl/ask.h"
#include "client/nccl/communicator.h"
#include "client/nccl/forwarded.h"
#include "client/nccl/group.h"
#include "client/nccl/library.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "client/session/session.h"
#include "common/base/append_bytes.h"
#include "common/base/first_report.h"
#include "common/base/log.h"

namespace rcuda::client::nccl {
namespace {

std::atomic<uint32_t> last_id{0};

// Copies the members that both the program's NCCL header and this library know. Returns false if
// the program has not initialised its configuration.
bool read_config(const Config* given, Config* config) {
  if (!given) return true;
  const size_t known = std::min(given->size, sizeof *config);
  if (known < offsetof(Config, blocking) || given->magic != kConfigMagic) return false;
  std::memcpy(static_cast<void*>(config), given, known);
  config->size = sizeof *config;
  return true;
}

// NCCL_COMM_BLOCKING overrides the configuration, and is not passed to the worker.
void set_blocking(Config* config) {
  if (const char* const value = ::secure_getenv("NCCL_COMM_BLOCKING")) {
    config->blocking = std::atoi(value) != 0;
  }
  if (config->blocking == kUndefined) config->blocking = 1;
}

std::vector<std::byte> creation_tail(const Config& config, bool has_config,
                                     std::span<const std::byte> list) {
  const std::string net = config.net_name ? config.net_name : "";
  const std::string name = config.comm_name ? config.comm_name : "";
  CreateTail head;
  head.list_bytes = static_cast<uint32_t>(list.size());
  head.net_name_bytes = static_cast<uint16_t>(std::min(net.size(), kMostNameBytes));
  head.comm_name_bytes = static_cast<uint16_t>(std::min(name.size(), kMostNameBytes));
  head.has_config = has_config;
  head.config = config;
  head.config.net_name = head.config.comm_name = nullptr;
  std::vector<std::byte> bytes;
  append_bytes(&bytes, std::span(&head, 1));
  append_bytes(&bytes, list);
  append_bytes(&bytes, std::span(net.data(), head.net_name_bytes));
  append_bytes(&bytes, std::span(name.data(), head.comm_name_bytes));
  return bytes;
}

// Makes the object of a new communicator, and enters its id in the step's call.
int create_object(const Route& place, bool blocking, void** handle, Step* step) {
  Identity identity;
  identity.id = ++last_id;
  identity.context = place.context;
  identity.session = place.session;
  identity.device = place.device;
  Communicator* const made = create<Communicator>(identity);
  if (!made) return kSystemError;
  made->blocking = blocking;
  *handle = made;
  step->call.created = identity.id;
  step->call.context = place.context;
  step->session = place.session;
  step->created = Ref<Communicator>(made);
  step->handle = handle;
  return kSuccess;
}

// Removes rcuda's mark from an id, and returns the mark. Warns if the id was made outside of
// rcuda's servers or by another version of NCCL, because NCCL then fails without giving a reason.
IdMark take_mark(UniqueId& id, const Session& session) {
  IdMark mark;
  std::memcpy(&mark, id.bytes + kIdMarkOffset, sizeof mark);
  if (mark.magic != IdMark::kMagic) {
    if (first_report("nccl id")) {
      RCUDA_WARN(
          "an ncclUniqueId lacks rcuda's mark, so the communicator may fail: the rank that made "
          "the id does not run NCCL on a server, or that server's NCCL overwrites the mark. Set "
          "RCUDA_NCCL=server for all ranks");
    }
    return {};
  }
  if (mark.version != library_version(session) && first_report("nccl version")) {
    RCUDA_WARN(
        "an ncclUniqueId was made by NCCL %s, but this rank's server has NCCL %s, so the "
        "communicator may fail: install the same version on all servers",
        nccl::version_text(mark.version).c_str(),
        nccl::version_text(library_version(session)).c_str());
  }
  std::memset(id.bytes + kIdMarkOffset, 0, sizeof mark);
  return mark;
}

int init(const Route& place, void** comm, int ranks, int rank, std::span<const UniqueId> ids,
         const Config* given) {
  Config config;
  if (!comm || ids.empty() || !read_config(given, &config)) return refuse(kInvalidArgument);
  if (ranks < 1 || rank < 0 || rank >= ranks) return refuse(kInvalidArgument);
  set_blocking(&config);
  std::vector<UniqueId> plain(ids.begin(), ids.end());
  for (UniqueId& id : plain) (void)take_mark(id, *place.session);
  Step step;
  step.call.verb = Verb::kInit;
  step.call.count = static_cast<uint64_t>(ranks);
  step.call.peer = rank;
  step.tail = creation_tail(config, true, std::as_bytes(std::span(plain)));
  if (const int made = create_object(place, config.blocking != 0, comm, &step); made != kSuccess) {
    return refuse(made);
  }
  return submit(std::move(step));
}

int init_here(void** comm, int ranks, int rank, std::span<const UniqueId> ids,
              const Config* given) {
  if (!open_library().ok()) return refuse(kSystemError);
  const CudaResult<Route> place = find_place();
  return place ? init(*place, comm, ranks, rank, ids, given) : refuse(result_of(place.error()));
}

// Returns the primary context of a device. Like the CUDA runtime, the client never releases it.
CudaResult<Route> place_of(int ordinal) {
  const Device* const device = Process::get().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  CUcontext context = nullptr;
  RCUDA_RETURN_IF_CUDA_ERROR(cuDevicePrimaryCtxRetain(&context, ordinal));
  return route_of(*device->primary);
}

int make_id(const Route& place, UniqueId* id) {
  Reply reply;
  const CUresult result = place.session->call(place, wire::NcclUniqueIdBody{},
                                              sizeof(int32_t) * 2 + sizeof *id, &reply);
  if (result != CUDA_SUCCESS) return result_of(result);
  int32_t made = kInternalError;
  const std::span<const std::byte> body = reply.body();
  if (body.size() < 2 * sizeof made + sizeof *id) return kInternalError;
  std::memcpy(&made, body.data(), sizeof made);
  std::memcpy(id, body.data() + 2 * sizeof made, sizeof *id);
  return made;
}

// Makes a call whose only operands are the communicator and `value`.
int call(void* comm, Verb verb, int value = 0) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator) return refuse(kInvalidArgument);
  Step step = step_on(*communicator, verb);
  step.call.value = value;
  return submit(std::move(step));
}

// Creates a communicator from another communicator.
int derive(void* comm, Step step, void** created, const Config* given,
           std::span<const std::byte> list) {
  Communicator* const parent = find<Communicator>(comm);
  Config config;
  if (!parent || !created || !read_config(given, &config)) return refuse(kInvalidArgument);
  if (given) set_blocking(&config);
  step.call.communicator = parent->id;
  step.communicator = Ref<Communicator>(parent);
  step.tail = creation_tail(config, given != nullptr, list);
  const Route place{parent->session, parent->context, parent->device};
  const bool blocking = given ? config.blocking != 0 : parent->blocking;
  if (const int made = create_object(place, blocking, created, &step); made != kSuccess) {
    return refuse(made);
  }
  if (step.call.verb == Verb::kSplit && step.call.peer == kNoColor) {
    step.handle = nullptr;
    *created = nullptr;
  }
  return submit(std::move(step));
}

// Adds the mark of the id to a step of ncclCommGrow, and returns the id without the mark.
UniqueId growth_id(UniqueId id, const Session& session, Step* step) {
  const IdMark mark = take_mark(id, session);
  step->call.source = mark.tag;
  step->call.target = mark.parent_tag;
  return id;
}

template <typename T>
int answer(void* comm, T* value, const std::function<T(const Communicator&)>& of) {
  const Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !value || communicator->state->load() == kInProgress) {
    return kInvalidArgument;
  }
  *value = of(*communicator);
  return kSuccess;
}

}  // namespace

int ncclGetVersion(int* version) {
  if (!version) return kInvalidArgument;
  if (!open_library().ok()) return kSystemError;
  *version = library_version();
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  if (!id) return kInvalidArgument;
  if (!open_library().ok()) return kSystemError;
  if (::secure_getenv("NCCL_COMM_ID") && first_report("NCCL_COMM_ID")) {
    RCUDA_WARN(
        "NCCL_COMM_ID is ignored, because NCCL runs on servers: pass the ncclUniqueId of one "
        "rank to all ranks");
  }
  const CudaResult<Route> place = find_place();
  return place ? make_id(*place, id) : result_of(place.error());
}

int ncclCommInitRank(void** comm, int ranks, UniqueId id, int rank) {
  return init_here(comm, ranks, rank, {&id, 1}, nullptr);
}

int ncclCommInitRankConfig(void** comm, int ranks, UniqueId id, int rank, Config* config) {
  return init_here(comm, ranks, rank, {&id, 1}, config);
}

int ncclCommInitRankScalable(void** comm, int ranks, int rank, int id_count, UniqueId* ids,
                             Config* config) {
  if (id_count < 1 || !ids) return refuse(kInvalidArgument);
  return init_here(comm, ranks, rank, {ids, static_cast<size_t>(id_count)}, config);
}

int ncclCommInitAll(void** comms, int count, const int* devices) {
  if (!comms || count < 1) return kInvalidArgument;
  if (!open_library().ok()) return kSystemError;
  std::vector<Route> places;
  for (int i = 0; i < count; ++i) {
    const CudaResult<Route> place = place_of(devices ? devices[i] : i);
    if (!place) return kInvalidArgument;
    const auto known = [&](const Route& other) { return other.device == place->device; };
    if (std::ranges::any_of(places, known)) return kInvalidUsage;
    places.push_back(*place);
  }
  UniqueId id;
  if (const int made = make_id(places.front(), &id); made != kSuccess) return made;
  start_group();
  for (int i = 0; i < count; ++i) {
    (void)init(places[static_cast<size_t>(i)], &comms[i], count, i, {&id, 1}, nullptr);
  }
  return end_group();
}

int ncclCommSplit(void* comm, int color, int key, void** created, Config* config) {
  Step step;
  step.call.verb = Verb::kSplit;
  step.call.peer = color;
  step.call.value = key;
  return derive(comm, std::move(step), created, config, {});
}

int ncclCommShrink(void* comm, int* excluded, int excluded_count, void** created, Config* config,
                   int flags) {
  if (!excluded || excluded_count < 1) return refuse(kInvalidArgument);
  Step step;
  step.call.verb = Verb::kShrink;
  step.call.value = flags;
  return derive(comm, std::move(step), created, config,
                std::as_bytes(std::span(excluded, static_cast<size_t>(excluded_count))));
}

// Ranks of the existing communicator pass it in `comm`, new ranks pass null.
int ncclCommGrow(void* comm, int ranks, const UniqueId* id, int rank, void** created,
                 Config* config) {
  Step step;
  step.call.verb = Verb::kGrow;
  step.call.count = static_cast<uint64_t>(ranks);
  step.call.peer = rank;
  if (comm) {
    Communicator* const parent = find<Communicator>(comm);
    if (!parent) return refuse(kInvalidArgument);
    std::vector<UniqueId> ids;
    if (id) ids.push_back(growth_id(*id, *parent->session, &step));
    return derive(comm, std::move(step), created, config, std::as_bytes(std::span(ids)));
  }
  Config own;
  if (!id || !created || !read_config(config, &own)) return refuse(kInvalidArgument);
  if (!open_library().ok()) return refuse(kSystemError);
  const CudaResult<Route> place = find_place();
  if (!place) return refuse(result_of(place.error()));
  set_blocking(&own);
  const UniqueId plain = growth_id(*id, *place->session, &step);
  step.tail = creation_tail(own, true, std::as_bytes(std::span(&plain, 1)));
  if (const int made = create_object(*place, own.blocking != 0, created, &step); made != kSuccess) {
    return refuse(made);
  }
  return submit(std::move(step));
}

int ncclCommGetUniqueId(void* comm, UniqueId* id) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !id) return kInvalidArgument;
  const Asked asked =
      ask(*communicator->session, Question::kUniqueId, {.communicator = communicator->id});
  if (asked.result != kSuccess) return asked.result;
  if (asked.text.size() != sizeof *id) return kInternalError;
  std::memcpy(id->bytes, asked.text.data(), sizeof *id);
  return kSuccess;
}

int ncclCommSuspend(void* comm, int flags) { return call(comm, Verb::kSuspend, flags); }
int ncclCommResume(void* comm) { return call(comm, Verb::kResume); }
int ncclCommFinalize(void* comm) { return call(comm, Verb::kFinalize); }
int ncclCommDestroy(void* comm) { return comm ? call(comm, Verb::kDestroy) : kSuccess; }
int ncclCommAbort(void* comm) { return comm ? call(comm, Verb::kAbort) : kSuccess; }
int ncclCommRevoke(void* comm, int flags) { return call(comm, Verb::kRevoke, flags); }

int ncclCommGetAsyncError(void* comm, int* error) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !error) return kInvalidArgument;
  if (const int state = communicator->state->load(); state != kSuccess) {
    *error = state;
    return kSuccess;
  }
  const Asked asked =
      ask(*communicator->session, Question::kAsyncError, {.communicator = communicator->id});
  *error = asked.error;
  if (asked.error != kSuccess && asked.error != kInProgress) communicator->has_failed = true;
  return asked.result;
}

int ncclCommMemStats(void* comm, int which, uint64_t* value) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !value) return kInvalidArgument;
  const Asked asked = ask(*communicator->session, Question::kMemory,
                          {.communicator = communicator->id, .value = which});
  *value = asked.value;
  return asked.result;
}

// Returns the same texts as NCCL.
const char* ncclGetErrorString(int result) {
  static constexpr const char* kTexts[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress",
      "operation timed out",
  };
  const auto index = static_cast<size_t>(result);
  return index < std::size(kTexts) ? kTexts[index] : "unknown result code";
}

// Deprecated in NCCL, where it changes only logging.
void ncclResetDebugInit() {}

const char* ncclGetLastError(void* comm) {
  thread_local std::string text;
  text.clear();
  const Communicator* const communicator = find<Communicator>(comm);
  if (library_version() == 0) return text.c_str();
  Session& session = communicator ? *communicator->session : *Process::get().sessions().front();
  text = ask(session, Question::kLastError, {.communicator = communicator ? communicator->id : 0})
             .text;
  return text.c_str();
}

int ncclCommCount(void* comm, int* count) {
  return answer<int>(comm, count, [](const Communicator& of) { return of.ranks.load(); });
}
int ncclCommUserRank(void* comm, int* rank) {
  return answer<int>(comm, rank, [](const Communicator& of) { return of.rank.load(); });
}
int ncclCommCuDevice(void* comm, int* device) {
  return answer<int>(comm, device,
                     [](const Communicator& of) { return static_cast<int>(of.device); });
}

}  // namespace rcuda::client::nccl
