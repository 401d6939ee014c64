#include "server/executor/nccl/nccl.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/base/log.h"
#include "common/nccl/nccl_variables.h"

namespace rcuda::server {
namespace {

// The most bytes of the commands of unfinished groups. Their steps take about ten times as much
// memory. A group of sends and receives with 4096 ranks has 512 KiB.
constexpr size_t kMostPartBytes = 8u << 20;

// Called before the library is loaded, because NCCL reads the values at its first use. Values of
// the server's environment win.
void set_environment(const std::vector<std::string>& variables, const std::string& host_id) {
  for (const std::string& line : variables) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = line.substr(0, equals);
    if (nccl::may_program_set(name)) ::setenv(name.c_str(), line.c_str() + equals + 1, 0);
  }
  if (!host_id.empty()) ::setenv("NCCL_HOSTID", host_id.c_str(), 0);
  // Collectives connect when the communicator is made, so that they never wait for other ranks.
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  // Otherwise NCCL reads a file in the user's home, which may name plug-ins.
  ::setenv("NCCL_CONF_FILE", "/etc/nccl.conf", 0);
}

// Whether any operation may wait for other ranks: NCCL connects ranks at the first use of an
// algorithm, or lets them wait for each other in a launch.
bool environment_waits() {
  const char* const connect = std::getenv("NCCL_RUNTIME_CONNECT");
  const char* const mode = std::getenv("NCCL_LAUNCH_MODE");
  return !connect || std::string_view(connect) != "0" ||
         (mode && std::string_view(mode) == "GROUP");
}

}  // namespace

Nccl::Nccl(const api::DriverTable& driver, Jobs& jobs, const NcclSettings& settings)
    : driver_(driver),
      settings_(settings),
      door_(std::make_shared<Door>()),
      callers_(nccl::kMostJobs) {
  MutexLock lock(door_->mutex);
  door_->jobs = &jobs;
}

Nccl::~Nccl() {
  MutexLock lock(door_->mutex);
  door_->jobs = nullptr;
}

bool Nccl::run(CUcontext context, std::function<void()> work, std::function<void()> then,
               bool always) {
  return callers_.start(always, [&driver = driver_, door = door_, context, work = std::move(work),
                                 then = std::move(then)]() mutable {
    // NCCL may allocate memory while another thread captures a stream.
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (context && driver.cuCtxSetCurrent(context) == CUDA_SUCCESS) {
      driver.cuThreadExchangeStreamCaptureMode(&mode);
    }
    work();
    MutexLock lock(door->mutex);
    if (door->jobs) door->jobs->post(std::move(then));
  });
}

bool Nccl::open(const std::vector<std::string>& variables, Opened then) {
  if (library_) {
    then(library_);
    return true;
  }
  if (!settings_.unavailable.empty()) {
    then(Status(Code::kUnsupported, settings_.unavailable));
    return true;
  }
  set_environment(variables, settings_.host_id);
  operations_wait_ = environment_waits();
  const auto loaded = std::make_shared<Result<const NcclLibrary*>>(Status(Code::kInternal, ""));
  return run(
      nullptr, [loaded, library = settings_.library] { *loaded = load_nccl(library); },
      [this, loaded, then = std::move(then)] {
        if (loaded->ok()) library_ = **loaded;
        then(*loaded);
      });
}

std::shared_ptr<NcclCommunicator> Nccl::find(uint32_t id) const {
  const auto found = communicators_.find(id);
  return found == communicators_.end() ? nullptr : found->second;
}

std::shared_ptr<NcclCommunicator> Nccl::create(uint32_t id, bool blocking) {
  if (id == 0 || communicators_.size() >= nccl::kMostCommunicators) return nullptr;
  auto made = std::make_shared<NcclCommunicator>();
  made->blocking = blocking;
  return communicators_.emplace(id, made).second ? made : nullptr;
}

void Nccl::forget_ended(const NcclBatch& batch) {
  for (const NcclStep& step : batch.steps) {
    const nccl::Verb verb = step.call.verb;
    const bool ends = verb == nccl::Verb::kDestroy || verb == nccl::Verb::kAbort;
    if (ends) communicators_.erase(step.call.communicator);
    if (step.created && !step.created->handle.load()) communicators_.erase(step.call.created);
  }
}

bool Nccl::start(std::shared_ptr<NcclBatch> batch, std::function<void(nccl::ResultCode)> then) {
  const CUcontext context = batch->steps.empty() ? nullptr : batch->steps.front().context;
  // An abort must be possible while other calls hang.
  const bool ends = std::ranges::all_of(
      batch->steps, [](const NcclStep& step) { return step.call.verb == nccl::Verb::kAbort; });
  const auto result = std::make_shared<nccl::ResultCode>(nccl::kInternalError);
  return run(
      context,
      [&driver = driver_, library = library_, batch, result] {
        *result = make(library->functions, driver, *batch);
      },
      [this, batch, result, then = std::move(then)] {
        forget_ended(*batch);
        then(*result);
      },
      ends);
}

nccl::ResultCode Nccl::make_here(NcclBatch& batch) {
  return make(library_->functions, driver_, batch);
}

bool Nccl::keep_part(uint64_t batch, std::vector<NcclStep> steps, size_t bytes) {
  if (part_bytes_ + bytes > kMostPartBytes) return false;
  part_bytes_ += bytes;
  Parts& parts = parts_[batch];
  parts.bytes += bytes;
  std::move(steps.begin(), steps.end(), std::back_inserter(parts.steps));
  return true;
}

std::vector<NcclStep> Nccl::take_parts(uint64_t batch) {
  auto parts = parts_.extract(batch);
  if (!parts) return {};
  part_bytes_ -= parts.mapped().bytes;
  return std::move(parts.mapped().steps);
}

}  // namespace rcuda::server
