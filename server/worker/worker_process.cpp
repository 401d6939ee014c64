#include "server/worker/worker_process.h"

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/base/executable.h"
#include "common/base/leak_check.h"
#include "common/base/log.h"
#include "common/tls/keyed.h"
#include "server/addresses/address_fence.h"
#include "server/addresses/address_window.h"
#include "server/driver/driver_loader.h"
#include "server/executor/nccl/library.h"
#include "server/protocol/reports.h"
#include "server/protocol/start_failure.h"
#include "server/protocol/work_page.h"
#include "server/protocol/worker_messages.h"
#include "server/sandbox/device_scope.h"
#include "server/worker/compute_share.h"
#include "server/worker/device_set.h"
#include "server/worker/staging_memory.h"
#include "server/worker/user_folders.h"
#include "server/worker/worker_session.h"

namespace rcuda::server {
namespace {

// The daemon reads the stderr with which the worker was started (worker_log.h). The log keeps a
// copy of this descriptor, because descriptors 1 and 2 will carry the output of the session's
// kernels.
void keep_log_apart() {
  const int copy = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (copy >= 0) set_log_relay(copy);
}

// The descriptors of a worker that lead to the daemon.
struct Daemon {
  int control;
  int reports;
  bool reports_failure = false;  // the daemon has the reason for a failed start, and logs it
};

// Reports the failed start to the daemon. `setting`: the setting with the wrong value, if the code
// is kInvalidArgument. `full`: the device that has no memory for the worker's context.
Status fail(Daemon& daemon, Status status, const config::SettingBase* setting = nullptr,
            std::optional<uint32_t> full = std::nullopt) {
  // context() of a CUDA error lacks the number of the error; message() has it.
  const std::string reason = status.code() == Code::kCuda ? status.message() : status.context();
  const bool is_setting = setting && status.code() == Code::kInvalidArgument;
  const StartFailure failure{reason, is_lasting(status), is_setting ? setting->key() : "",
                             full.value_or(StartFailure::kNoDevice)};
  daemon.reports_failure = send_report(daemon.reports, failure, Deadline::max()).ok();
  return status;
}

// Restricts this process to the devices of its scope. If that fails and the settings do not require
// it, sets `warning` and returns the scope.
Result<DeviceScope> enter_scope(const Settings& settings, std::string* warning) {
  const char* const text = std::getenv(kScopeVariable);
  if (!text) return DeviceScope();
  Result<DeviceScope> scope = parse_scope(text);
  if (!scope.ok() || ::geteuid() != 0) return scope;
  std::vector<std::string> nodes;
  for (const DeviceScope::Device& device : scope->devices) nodes.push_back(device.node);
  if (nodes.empty()) nodes = gpu_nodes();
  (void)executable_path();  // keeps the path: the new mount namespace hides it
  Status made = make_private_dev(nodes);
  if (made.ok()) return scope;
  made = std::move(made).with_context(
      "workers see the device nodes of all GPUs (rcuda-server needs the capability SYS_ADMIN, or "
      "set RCUDA_SERVER_DEVICE_ISOLATION=commands)");
  if (settings.device_isolation.get() == kIsolateSessions) return made;
  *warning = made.context();
  return scope;
}

// At the server's start, returns an error if the settings name a library that is not a usable NCCL.
Status check_nccl(const Settings& settings) {
  const char* const asked = std::getenv(kAskNcclVariable);
  const std::string& choice = settings.nccl.get();
  if (!asked || std::string_view(asked) != kCheckNccl) return {};
  if (choice == "auto" || choice == "none") return {};
  const Status loaded = load_nccl(choice).status();
  if (loaded.ok()) return {};
  return Status(Code::kInvalidArgument, std::string(settings.nccl.variable()) + "=" + choice +
                                            " is not usable: " + loaded.context());
}

// Returns NCCL's version and path, or the reason why it is unavailable. Loads the library, as a
// session does at its first call of NCCL.
std::string describe_nccl(const Settings& settings) {
  const std::string& choice = settings.nccl.get();
  const Result<const NcclLibrary*> library = load_nccl(choice);
  if (!library.ok()) return "no NCCL: " + library.status().context();
  std::string text = "NCCL " + nccl::version_text((*library)->version) + " from " +
                     (*library)->path + (choice == "auto" ? " (auto)" : "");
  if (settings.device_isolation.get() == kIsolateSessions) {
    text += "; no NVLink between sessions (device_isolation = \"session\")";
  }
  return text;
}

WorkerReady offer_of(const Settings& settings, const LoadedDriver& driver, const DeviceSet& devices,
                     std::string warning) {
  WorkerReady ready;
  if (std::getenv(kAskNcclVariable)) ready.nccl = describe_nccl(settings);
  ready.warning = std::move(warning);
  ready.driver = "CUDA " + std::to_string(driver.version / 1000) + "." +
                 std::to_string(driver.version % 1000 / 10) + " by " + driver.path;
  ready.driver_path = driver.path;
  ready.driver_version = static_cast<uint32_t>(driver.version);
  devices.describe(&ready);
  return ready;
}

// Blocks until the daemon has sent a session. Returns none if the worker is no longer needed.
Result<std::optional<GrantedSession>> receive_session(int daemon) {
  GrantedSession session;
  for (;;) {
    Result<ToWorker> message = receive_from_daemon(daemon);
    if (!message.ok()) return {std::nullopt};
    if (auto* const ledger = std::get_if<LedgerMemory>(&*message)) {
      session.ledgers.push_back(std::move(ledger->descriptor));
    } else if (auto* const memory = std::get_if<WorkMemory>(&*message)) {
      RCUDA_ASSIGN_OR_RETURN(WorkPage work, WorkPage::open(std::move(memory->descriptor)));
      session.work.emplace(std::move(work));
    } else if (auto* const start = std::get_if<SessionStart>(&*message); start && session.work) {
      session.start = std::move(*start);
      return {std::move(session)};
    } else {
      return {std::nullopt};
    }
  }
}

// Without MPS, returns at once. With MPS, blocks until the daemon has sent a message, and returns
// an error if another client of MPS has ended this worker's contexts. The worker must then end,
// because MPS serves no process until every process with ended contexts has exited.
Status wait_for_daemon(int daemon, const api::DriverTable& driver, const DeviceSet& devices,
                       std::chrono::nanoseconds patience) {
  constexpr int kLookMs = 1000;
  wire::Welcome welcome;
  SessionResources resources;
  RCUDA_RETURN_IF_ERROR(devices.select(devices.ordinals(), &welcome, &resources));
  if (!any_mps(driver, resources.devices)) return {};
  pollfd item{daemon, POLLIN, 0};
  while (::poll(&item, 1, kLookMs) == 0) {
    RCUDA_RETURN_IF_ERROR(check_contexts(driver, resources.devices, patience));
  }
  return {};
}

// Returns only if no session ran: the daemon sent none, or its client left or was refused.
// Otherwise the process ends with the session.
Status serve_session(const PreparedWorker& worker) {
  Result<std::optional<GrantedSession>> granted = receive_session(worker.daemon);
  if (!granted.ok()) return granted.status();
  if (*granted) return WorkerSession(worker, **granted).serve();
  look_for_leaks();
  return {};
}

Status work(const Settings& settings, Daemon& daemon, uint32_t base_number) {
  auto raised = AddressFence::raise(Base::from_number(base_number).range());
  if (!raised.ok()) return fail(daemon, raised.status());
  AddressFence fence = std::move(raised).value();
  std::string warning;
  const Result<DeviceScope> scope = enter_scope(settings, &warning);
  if (!scope.ok()) return fail(daemon, scope.status());
  auto staging = StagingMemory::make(settings.staging_bytes.get());
  if (!staging.ok()) return fail(daemon, staging.status());
  Result<CodeFolder> code = CodeFolder::open();
  if (!code.ok()) {
    RCUDA_DEBUG("compiled PTX stays in the driver's own cache: %s",
                code.status().message().c_str());
    code = CodeFolder();
  }
  Result<LoadedDriver> driver = load_driver(settings.driver.get(), nvidia_nodes());
  if (!driver.ok()) return fail(daemon, driver.status(), &settings.driver);
  std::optional<uint32_t> full;
  auto devices = DeviceSet::prepare(driver->table, settings.devices.get(),
                                    std::move(staging).value(), *scope, &full);
  if (!devices.ok()) return fail(daemon, devices.status(), &settings.devices, full);
  if (const Status nccl = check_nccl(settings); !nccl.ok()) {
    return fail(daemon, nccl, &settings.nccl);
  }
  tls::prepare();
  const WorkerReady ready = offer_of(settings, *driver, **devices, std::move(warning));
  // If the daemon has died, this worker is not needed, and nothing is logged.
  if (!send_report(daemon.reports, ready, Deadline::max()).ok()) return {};
  RCUDA_RETURN_IF_ERROR(
      wait_for_daemon(daemon.control, driver->table, **devices, settings.stop_timeout.get()));
  return serve_session(
      {settings, daemon.control, daemon.reports, **devices, *driver, fence, *code});
}

}  // namespace

int run_worker(const Settings& settings, UniqueFd control, UniqueFd reports, uint32_t base_number) {
  set_log_name("rcuda-worker");
  ::prctl(PR_SET_NAME, "rcuda-worker");  // otherwise the name is "exe", from /proc/self/exe
  // Closes descriptors that the daemon itself has inherited.
  ::close_range(static_cast<unsigned>(reports.get()) + 1, ~0u, 0);
  keep_log_apart();
  Daemon daemon{control.get(), reports.get()};
  const Status status = work(settings, daemon, base_number);
  if (!status.ok() && !daemon.reports_failure)
    RCUDA_WARN("the worker ends: %s", status.message().c_str());
  // The driver's threads still run, and its exit handlers have nothing to save.
  ::_exit(status.ok() ? 0 : 2);
}

}  // namespace rcuda::server
