#include "client/nccl/library.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <list>
#include <string>
#include <vector>

#include "client/nccl/forwarded.h"
#include "client/nccl/local_library.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "client/session/session.h"
#include "client/settings/settings.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/nccl/nccl_calls.h"
#include "common/nccl/nccl_variables.h"

namespace rcuda::client::nccl {

extern const Functions kFunctions;  // generated

namespace {

std::atomic<int> version{0};

// Returns the environment variables of the program that are sent to the workers, each as NAME=value
// with a terminating zero.
std::string variables_of_program() {
  std::string all;
  for (const std::string_view name : kProgramVariables) {
    const char* const value = ::secure_getenv(std::string(name).c_str());
    if (value) all += std::string(name) + "=" + value + '\0';
  }
  return all;
}

struct Opening {
  Session* session = nullptr;
  Session::PendingCall call;
};

// The answer of a worker about its NCCL. known() has one for each session, by Session::index().
struct Known {
  int version = 0;
  bool operations_wait = true;
};
std::vector<Known>& known() {
  static auto* const all = new std::vector<Known>;
  return *all;
}

// Returns the version of the worker's library. An error names the server and the reason.
Result<int> finish(Opening& opening) {
  Session& session = *opening.session;
  Reply reply;
  const CUresult result = session.finish(opening.call, &reply);
  const std::span<const std::byte> body = reply.body();
  constexpr size_t kHead = sizeof(wire::NcclOpenReply) - sizeof(wire::ReplyHeader);
  if (result != CUDA_SUCCESS || body.size() < kHead) {
    return Status::from_cuda(result, session.name() + " cannot load NCCL; see the server's log");
  }
  int32_t found = 0;
  uint32_t waits = 1;
  std::memcpy(&found, body.data(), sizeof found);
  std::memcpy(&waits, body.data() + sizeof found, sizeof waits);
  const std::string text(reinterpret_cast<const char*>(body.data()) + kHead, body.size() - kHead);
  if (found == 0) return Status(Code::kNotFound, session.name() + " has no NCCL: " + text);
  known()[session.index()] = {found, waits != 0};
  RCUDA_DEBUG("%s has NCCL %d (%s)", session.name().c_str(), found, text.c_str());
  return found;
}

// Returns the lowest version of the servers' libraries.
Result<int> open_on_servers() {
  const std::string variables = variables_of_program();
  const wire::NcclOpenBody body{static_cast<uint32_t>(variables.size()), 0};
  std::list<Opening> openings;
  known().resize(Process::get().sessions().size());
  for (const auto& session : Process::get().sessions()) {
    if (!session->must_encrypt()) continue;
    return Status(Code::kUnsupported,
                  "RCUDA_SECURITY=tls forbids NCCL's connections between servers, which are not "
                  "encrypted; RCUDA_SECURITY=auto allows them where servers trust their network");
  }
  for (const auto& session : Process::get().sessions()) {
    Opening& opening = openings.emplace_back();
    opening.session = session.get();
    session->begin(session->in_context(wire::primary_context_id(0)),
                   {body, std::as_bytes(std::span(variables))},
                   {.reply_bytes = wire::Channel::kMostReplyBytes}, &opening.call);
  }
  Result<int> lowest = INT_MAX;
  for (Opening& opening : openings) {
    const Result<int> one = finish(opening);
    if (!one.ok() ? lowest.ok() : lowest.ok() && *one < *lowest) lowest = one;
  }
  return lowest;
}

// Opens the program's own library. `why`: the reason, for the log. `is_chosen`: the user has chosen
// the library, so log no warning.
const Functions* use_local(const std::string& why, bool is_chosen) {
  static LocalLibrary* const library = [] {
    Result<LocalLibrary> found = open_local_library();
    return found.ok() ? new LocalLibrary(std::move(found).value()) : nullptr;
  }();
  if (!library) {
    RCUDA_ERROR(
        "NCCL cannot be used: %s, and this machine has no libnccl.so.2; install NCCL on the "
        "servers or on this machine",
        why.c_str());
    return &kFunctions;
  }
  // With the program's own NCCL, ranks on different servers cannot join one communicator.
  const bool is_notable = !is_chosen && Process::get().sessions().size() > 1;
  const char* const path = library->path.c_str();
  if (is_notable) {
    RCUDA_WARN(
        "ranks on different servers cannot join one communicator, because the program's own NCCL "
        "(%s) is used: %s",
        path, why.c_str());
  } else {
    RCUDA_INFO("the program's own NCCL (%s) is used: %s", path, why.c_str());
  }
  return &library->functions;
}

// Chooses the servers' NCCL or the program's own, as RCUDA_NCCL says.
const Functions* choose() {
  const CUresult ready = Process::get().initialize();
  const std::string_view choice = settings().nccl.get();
  if (choice == "client") return use_local("RCUDA_NCCL=client", true);
  if (ready != CUDA_SUCCESS) return use_local("rcuda has no device", true);
  const Status opened = open_library();
  if (opened.ok()) {
    RCUDA_INFO("NCCL runs on the servers (lowest version: %d)", library_version());
    return &kFunctions;
  }
  if (choice == "auto") return use_local(opened.context(), false);
  RCUDA_ERROR("NCCL cannot be used: %s", opened.context().c_str());
  return &kFunctions;
}

}  // namespace

int result_of(CUresult error) {
  switch (error) {
    case CUDA_SUCCESS:
      return kSuccess;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
      return kInvalidArgument;
    case CUDA_ERROR_OPERATING_SYSTEM:
    case CUDA_ERROR_OUT_OF_MEMORY:
      return kSystemError;
    case CUDA_ERROR_NOT_SUPPORTED:
      return kInvalidUsage;
    case kSessionLost:
      return kRemoteError;
    default:
      return kCudaError;
  }
}

Status open_library() {
  if (version.load() != 0) return {};
  static Mutex mutex;
  static auto& failed = *new Status();  // never destroyed: other threads may call at exit
  MutexLock lock(mutex);
  if (version.load() != 0 || !failed.ok()) return failed;
  if (const CUresult ready = Process::get().initialize(); ready != CUDA_SUCCESS) {
    return Status::from_cuda(ready, "rcuda has no device, see its earlier message");
  }
  const Result<int> opened = open_on_servers();
  if (opened.ok()) version = *opened;
  return failed = opened.ok() ? Status() : opened.status();
}

int library_version() { return version.load(); }

int library_version(const Session& session) { return known()[session.index()].version; }

bool operations_may_wait(const Session& session) {
  return known()[session.index()].operations_wait;
}

CudaResult<Route> find_place() {
  CudaResult<Route> current = find_current_route();
  if (current || current.error() != CUDA_ERROR_INVALID_CONTEXT) return current;
  CUcontext context = nullptr;
  RCUDA_RETURN_IF_CUDA_ERROR(cuDevicePrimaryCtxRetain(&context, 0));
  RCUDA_RETURN_IF_CUDA_ERROR(cuCtxSetCurrent(context));
  return find_current_route();
}

}  // namespace rcuda::client::nccl

// Returns the functions that libnccl.so.2 (client/nccl_stub) calls.
extern "C" __attribute__((visibility("default"))) const rcuda::nccl::Functions*
rcuda_nccl_functions() {
  static const rcuda::nccl::Functions* const chosen = rcuda::client::nccl::choose();
  return chosen;
}
