#include "client/nccl/library.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <list>
#include <string>
#include <utility>
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

// The arguments of ncclSetEncryption().
struct Encryption {
  bool is_set = false;
  std::string psk;  // empty: the mode is EncryptionConfig::kNone
};
Mutex opening_mutex;
Encryption& encryption RCUDA_GUARDED_BY(opening_mutex) = *new Encryption;  // never destroyed
// The first error of the workers' ncclSetEncryption().
int encryption_result RCUDA_GUARDED_BY(opening_mutex) = kSuccess;

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
Result<int> finish(Opening& opening) RCUDA_REQUIRES(opening_mutex) {
  Session& session = *opening.session;
  Reply reply;
  const CUresult result = session.finish(opening.call, &reply);
  const std::span<const std::byte> body = reply.body();
  struct Head {
    int32_t version = 0;
    uint32_t waits = 1;
    int32_t encryption = kSuccess;
    uint32_t reserved = 0;
  } head;
  constexpr size_t kHead = sizeof(wire::NcclOpenReply) - sizeof(wire::ReplyHeader);
  static_assert(sizeof head == kHead);
  if (result != CUDA_SUCCESS || body.size() < kHead) {
    return Status::from_cuda(result, session.name() + " cannot load NCCL; see the server's log");
  }
  std::memcpy(&head, body.data(), sizeof head);
  const std::string text(reinterpret_cast<const char*>(body.data()) + kHead, body.size() - kHead);
  if (encryption_result == kSuccess) encryption_result = head.encryption;
  if (head.version == 0) return Status(Code::kNotFound, session.name() + " has no NCCL: " + text);
  // Do not change known() after the first success: other threads then read it without a lock.
  if (version.load() == 0) known()[session.index()] = {head.version, head.waits != 0};
  RCUDA_DEBUG("%s has NCCL %s (%s)", session.name().c_str(),
              nccl::version_text(head.version).c_str(), text.c_str());
  return head.version;
}

// Returns the lowest version of the servers' libraries.
Result<int> open_on_servers() RCUDA_REQUIRES(opening_mutex) {
  const std::string variables = variables_of_program(), tail = variables + encryption.psk;
  const auto must_encrypt = [](const auto& session) { return session->must_encrypt(); };
  const bool demands = std::ranges::any_of(Process::get().sessions(), must_encrypt);
  if (demands && encryption.psk.empty()) {
    return Status(Code::kUnsupported,
                  "RCUDA_SECURITY=tls forbids NCCL's connections between servers, which are not "
                  "encrypted: call ncclSetEncryption before other functions of NCCL, or set "
                  "RCUDA_SECURITY=auto, which allows them where servers trust their network");
  }
  const wire::NcclOpenBody body{static_cast<uint32_t>(variables.size()),
                                static_cast<uint32_t>(encryption.psk.size()), encryption.is_set,
                                demands};
  encryption_result = kSuccess;
  std::list<Opening> openings;
  known().resize(Process::get().sessions().size());
  for (const auto& session : Process::get().sessions()) {
    Opening& opening = openings.emplace_back();
    opening.session = session.get();
    session->begin(session->in_context(wire::primary_context_id(0)),
                   {body, std::as_bytes(std::span(tail))},
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
        "NCCL cannot be used: %s, and this machine has no libnccl.so.2; install NCCL on this "
        "machine or, for RCUDA_NCCL=auto, on the servers",
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
    RCUDA_INFO("NCCL runs on the servers (lowest version: %s)",
               nccl::version_text(library_version()).c_str());
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

Status open_library(bool again) {
  if (version.load() != 0 && !again) return {};
  static auto& failed = *new Status();  // never destroyed: other threads may call at exit
  MutexLock lock(opening_mutex);
  if (!again && (version.load() != 0 || !failed.ok())) return failed;
  if (const CUresult ready = Process::get().initialize(); ready != CUDA_SUCCESS) {
    return Status::from_cuda(ready, "rcuda has no device, see its earlier message");
  }
  const Result<int> opened = open_on_servers();
  if (opened.ok()) version = *opened;
  return failed = opened.ok() ? Status() : opened.status();
}

// The caller has noted the arguments (rcuda_nccl_set_encryption()).
int ncclSetEncryption(const EncryptionConfig*) {
  const Status opened = open_library(true);
  if (!opened.ok()) RCUDA_ERROR("ncclSetEncryption failed: %s", opened.context().c_str());
  MutexLock lock(opening_mutex);
  return opened.ok() || encryption_result != kSuccess ? encryption_result : int{kSystemError};
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

// ncclSetEncryption() of libnccl.so.2. Notes the arguments before the choice of the NCCL, because
// an encrypted session may use its server's NCCL only if NCCL encrypts, too.
extern "C" __attribute__((visibility("default"))) int rcuda_nccl_set_encryption(
    const rcuda::nccl::EncryptionConfig* config) {
  using namespace rcuda::client::nccl;
  if (config && (config->size < sizeof *config || config->magic != kConfigMagic)) {
    return kInvalidArgument;
  }
  const int mode = config ? config->mode : EncryptionConfig::kNone;
  const bool encrypts = mode == EncryptionConfig::kPsk;
  if (!encrypts && mode != EncryptionConfig::kNone) return kInvalidArgument;
  const std::string psk = encrypts && config->psk ? config->psk : "";
  if ((encrypts && psk.empty()) || psk.size() > kMostPskBytes) return kInvalidArgument;
  Encryption before;
  {
    rcuda::MutexLock lock(opening_mutex);
    before = std::exchange(encryption, {true, psk});
  }
  const Functions* const functions = rcuda_nccl_functions();
  const int result =
      functions->ncclSetEncryption ? functions->ncclSetEncryption(config) : int{kInvalidUsage};
  if (result == kSuccess) return result;
  rcuda::MutexLock lock(opening_mutex);
  encryption = before;
  return result;
}
