// rcuda-server: offers this machine's GPUs to clients elsewhere.
//
// Processes and their threads. All processes run this binary.
//
//   daemon          Accepts clients, and passes each to a worker. Keeps the rights that it has been
//                   started with; never uses CUDA. SIGTERM and SIGINT end it, immediately or after
//                   the drain timeout. Then it stops the workers, and kills those that do not end.
//                   SIGHUP reloads its settings (reload.h) and executes the binary again if its
//                   file has been replaced (successor.h); workers and doors ignore it.
//     main            the poll loop (daemon.h)
//     detached        one for each query: accounts, MUNGE (AsyncLookup), NVML (gpu_monitor.h)
//   closer          Forked by the daemon before it has threads and secrets, on kernels before 6.16.
//                   An orphan without privileges, which ends when the daemon does (closer.h).
//   door            Started by the daemon from its binary with the hidden option --door. One for
//                   each origin whose clients speak TLS. Has no rights, no key and no tokens
//                   (door.h).
//     main            receives clients from the daemon; serves all of them in one poll loop
//   worker          Started by the daemon from /proc/self/exe with the hidden option --worker,
//                   so it has a fresh address space. Some wait idle; others are started for a
//                   client that waits.
//                   Has the daemon's rights until it has a session. Then it becomes the session's
//                   user, and can start neither programs nor processes (isolation.h), before it
//                   reads anything of the client. No other session shares its contexts, faults
//                   and addresses. Ends with its session, by a StopRequest, or when the daemon
//                   has died.
//     main            starts the driver, then executes commands (session_loop.h)
//     rcuda-daemon    listens to the daemon (daemon_listener.h)
//     rcuda-end-watch ends a session whose client is gone, or that does not end (end_watch.h)
//     others          kernels' output, host functions, staging, Links, copies between servers,
//                     calls of NCCL; the driver's own
//
//   park            Started by the daemon with the hidden option --park, to park or wake a
//                   session, or several together. Calls the driver for their workers, and ends
//                   (park_process.h).
//
// A worker gets its settings from the daemon, through the environment.

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/executable.h"
#include "common/base/log.h"
#include "common/base/standard_descriptors.h"
#include "common/base/units.h"
#include "common/base/version.h"
#include "common/config/command_line.h"
#include "common/config/toml_file.h"
#include "common/config/variables.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/admission/lease_file.h"
#include "server/daemon/daemon.h"
#include "server/daemon/ops/successor.h"
#include "server/daemon/start_check.h"
#include "server/door/door.h"
#include "server/identity/authenticator.h"
#include "server/identity/default_paths.h"
#include "server/protocol/settings.h"
#include "server/worker/park_process.h"
#include "server/worker/worker_process.h"

namespace rcuda::server {
namespace {

using config::CommandLine;

// The exit status for settings that are not usable (EX_CONFIG of sysexits.h). The systemd unit does
// not restart a server with this status, or with the status for wrong options
// (CommandLine::kWrongUse). Errors that may be temporary exit with 1, for example a user that the
// user database does not know yet.
constexpr int kUnusableSettings = 78;

int report(const Status& status) {
  std::fprintf(stderr, "rcuda-server: %s\n", status.context().c_str());
  return 1;
}

int report_settings(const Status& status) {
  report(status);
  return kUnusableSettings;
}

// Reports the failure of a start or of --check-config. Returns the exit status.
int report_start(const Status& status) {
  // kDenied: other users have access to a file with secrets.
  const bool is_setting = status.code() == Code::kInvalidArgument || status.code() == Code::kDenied;
  return is_setting ? report_settings(status) : report(status);
}

void add_option(CommandLine* line, const std::string& name, config::SettingBase* setting) {
  const std::string now = setting->text().empty() ? "" : ", now " + setting->text();
  line->option(
          name,
          [setting, name](const std::string& text) {
            return setting->set(text, name, "the command line");
          },
          std::string(setting->help()) + " [" + setting->variable() + now + "]")
      .type_name("")
      .take_last();
}

// The default soft limit on descriptors is low because of select(), which this program does not
// use. Workers inherit the raised limit.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

// Workers inherit the limit on the stack. If it is terabytes or unlimited, as in shells of clusters
// and under Slurm, recent kernels reserve that room for the stack. They then place everything else
// at low addresses, where no worker may allocate (address_fence.h).
void lower_stack_limit() {
  constexpr rlim_t kUsual = 8u << 20, kMost = 1u << 30;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur <= kMost) return;
  limit.rlim_cur = kUsual;
  (void)::setrlimit(RLIMIT_STACK, &limit);
}

// RLIMIT_FSIZE also limits the memory files that workers share with clients. Workers inherit it.
void raise_file_limit() {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_FSIZE, &limit) == 0 || ::getrlimit(RLIMIT_FSIZE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_FSIZE, &limit);
  RCUDA_WARN(
      "files of this server are limited to %s (ulimit -f). The limit also applies to each piece of "
      "memory that a session shares with its client: start the server with ulimit -f unlimited",
      bytes_text(limit.rlim_max).c_str());
}

// The path, or nothing if there is no such file.
std::string existing(const std::string& path) {
  return !path.empty() && ::access(path.c_str(), F_OK) == 0 ? path : "";
}

void prepare_process() {
  raise_descriptor_limit();
  lower_stack_limit();
  raise_file_limit();
}

int run_daemon(Settings& settings, int ready, Daemon::Start start) {
  (void)executable_path();  // keeps the path: at a reload the file may be replaced
  prepare_process();
  // The poll loop reads these signals from a descriptor; they have no handler.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGHUP, SIG_DFL);  // an ignored signal does not reach the signalfd
  const UniqueFd arrived(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!arrived)
    return report(Status::from_errno(errno, "making a descriptor for signals (signalfd)"));
  Daemon daemon(settings, arrived.get(), ready, std::move(start));
  const Status status = daemon.run();
  return status.ok() ? 0 : report_start(status);
}

// The options of the command line that are not settings.
struct Options {
  std::string config_file;
  std::string park;  // the argument of run_park_process()
  int ready = -1;
  int worker_base = -1;
  int carries = -1;
  bool check_config = false;
  bool list_settings = false;
};

void add_flag(CommandLine* line, const std::string& name, config::SettingBase* setting,
              const std::string& value, const std::string& help) {
  line->flag(
      name, [=] { (void)setting->set(value, name, "the command line"); }, help);
}

void add_options(CommandLine* line, Settings* settings, Options* options) {
  line->option("--config", &options->config_file,
               "TOML file; the environment and options override it [" + default_config_file() +
                   " if there is one]");
  add_option(line, "--listen", &settings->listen);
  add_option(line, "--port", &settings->port);
  add_option(line, "--devices", &settings->devices);
  add_option(line, "--driver", &settings->driver);
  add_option(line, "--pool", &settings->pool);
  add_option(line, "--max-sessions", &settings->max_sessions);
  add_option(line, "--staging-bytes", &settings->staging_bytes);
  add_option(line, "--image-cache", &settings->image_cache);
  add_option(line, "--image-cache-bytes", &settings->image_cache_bytes);
  add_option(line, "--users", &settings->users);
  add_option(line, "--operators", &settings->operators);
  add_option(line, "--certificate", &settings->certificate);
  add_option(line, "--client-authorities", &settings->client_authorities);
  add_option(line, "--tokens", &settings->tokens);
  add_option(line, "--audit", &settings->audit);
  add_option(line, "--security", &settings->security);
  add_flag(line, "--insecure", &settings->security, "insecure",
           "short for --security insecure: no identity, no encryption");
  add_flag(line, "--require-lease", &settings->require_lease, "1", settings->require_lease.help());
  line->option("--ready-fd", &options->ready,
               "file descriptor: the server writes its port there when it serves clients");
  line->flag("--check-config", &options->check_config,
             "check whether a start would succeed: do all steps of a start until a worker has "
             "initialised the driver, but serve no client and change nothing");
  line->flag("--list-settings", &options->list_settings,
             "print every setting and where it came from");
  line->option("--worker", &options->worker_base).hide_from_help();
  line->option(kParkOption, &options->park).hide_from_help();
  line->option(kCarriesOption, &options->carries).hide_from_help();
}

// Options override the environment, which overrides the file. CommandLine::parse() calls the
// setters, so the file and the environment are loaded before that, and --config is looked up here.
Status load_settings(int argc, char** argv, Settings* settings) {
  std::string file;
  bool is_worker = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--config" && i + 1 < argc) file = argv[i + 1];
    if (argument.rfind("--config=", 0) == 0) file = argument.substr(9);
    // The daemon passes its settings in the environment to workers and to processes that park.
    if (argument == "--worker" || argument == kParkOption) is_worker = true;
  }
  if (file.empty() && !is_worker) file = existing(default_config_file());
  if (!file.empty()) {
    settings->config_file = file;
    RCUDA_RETURN_IF_ERROR(config::load_toml_file(settings->registry, file, "limits"));
  }
  return settings->registry.load_environment();
}

// Loads the settings as start() does.
Status load_again(int argc, char** argv, Settings* settings) {
  RCUDA_RETURN_IF_ERROR(load_settings(argc, argv, settings));
  Options options;
  CommandLine line("rcuda-server", "");
  line.leave_variables();
  add_options(&line, settings, &options);
  if (line.parse(argc, argv)) {
    return Status(Code::kInvalidArgument,
                  "an option of the server's command line is not usable: see the server's log");
  }
  return {};
}

// Restores the values of settings that only a restart changes.
void keep_settings(const CarriedState& carried, Settings* settings) {
  for (const CarriedSetting& setting : carried.settings) {
    config::SettingBase* const own = settings->registry.find_key(setting.key);
    if (own) (void)own->set(setting.text, setting.key, setting.origin);
  }
}

// Does the checks of a daemon that takes over, and changes nothing.
int check_carried(int file, Settings* settings) {
  const Result<CarriedState> carried = read_carried(file);
  if (!carried.ok()) return kOtherLayout;
  keep_settings(*carried, settings);
  Authenticator authenticator(*settings);
  Status status = authenticator.open(carried->for_others, Authenticator::MissingKey::kIsLeft);
  if (status.ok()) status = read_rules(settings->config_file).status();
  if (status.ok()) status = settings->audit.at_origin(Audit::check(settings->audit.get()));
  return status.ok() ? 0 : report_settings(status);
}

// Prints the files that the server reads, and those that do not exist.
void report_files(const Settings& settings) {
  const std::string file =
      settings.config_file.empty() ? default_config_file() : settings.config_file;
  for (const std::string& path : {file, certificate_file(settings), tokens_file(settings),
                                  settings.client_authorities.get(), leases_path(settings)}) {
    if (path.empty()) continue;
    std::fprintf(
        stderr,
        existing(path).empty() ? "rcuda-server: there is no file %s\n" : "rcuda-server: reads %s\n",
        path.c_str());
  }
}

int check_config(const Settings& settings) {
  report_files(settings);
  prepare_process();
  if (const Status status = check_start(settings); !status.ok()) return report_start(status);
  std::puts("the configuration is usable");
  return 0;
}

int list_settings(const Settings& settings) {
  const Result<Rules> rules = read_rules(settings.config_file);
  if (!rules.ok()) return report_settings(rules.status());
  std::fputs(settings.registry.describe().c_str(), stdout);
  std::fputs(rules->text().c_str(), stdout);
  return 0;
}

int start(int argc, char** argv) {
  open_standard_descriptors();
  // Writing to stderr must not end the daemon or a worker. The reader of stderr may end before them
  // (pdsh).
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  Settings settings;
  Options options;
  CommandLine line("rcuda-server",
                   "Offers this machine's GPUs to CUDA programs of this and other machines.",
                   version_of("rcuda-server"));
  line.footer(
      "It serves programs of its own user, of root and of the users that --users names. Clients "
      "of\n"
      "other machines identify themselves by a token (rcuda-token create), by MUNGE or by a\n"
      "certificate, under TLS. docs/security.md describes all of it.");
  if (const Status loaded = load_settings(argc, argv, &settings); !loaded.ok()) {
    return report_settings(loaded);
  }
  line.leave_variables();
  add_options(&line, &settings, &options);  // after loading: the help shows the current values
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;

  set_log_level(settings.log.text().c_str());
  signal(SIGXFSZ, SIG_IGN);  // calls that exceed RLIMIT_FSIZE fail instead
  if (options.worker_base >= 0) {
    for (const int number : {kWorkerControl, kWorkerReports}) ::fcntl(number, F_SETFD, FD_CLOEXEC);
    return run_worker(settings, UniqueFd(kWorkerControl), UniqueFd(kWorkerReports),
                      static_cast<uint32_t>(options.worker_base));
  }
  if (!options.park.empty()) return run_park_process(settings, options.park);
  set_log_name("rcuda-server");
  // take_carried() comes first, because it removes its variable from the environment.
  Result<std::optional<CarriedState>> carried = take_carried();
  for (const std::string& unknown : config::unknown_variables(environ, &settings.registry)) {
    RCUDA_WARN("%s", unknown.c_str());
  }
  if (options.check_config) return check_config(settings);
  if (options.list_settings) return list_settings(settings);
  if (options.ready >= 0) ::fcntl(options.ready, F_SETFD, FD_CLOEXEC);
  if (options.carries >= 0) return check_carried(options.carries, &settings);
  if (!carried.ok()) return report(carried.status());
  if (*carried) {
    keep_settings(**carried, &settings);
    options.ready = -1;  // the earlier build has written the port
  }
  return run_daemon(settings, options.ready,
                    {[argc, argv](Settings* again) { return load_again(argc, argv, again); }, argv,
                     std::move(carried).value()});
}

}  // namespace
}  // namespace rcuda::server

int main(int argc, char** argv) {
  const bool is_door = argc == 2 && std::string_view(argv[1]) == rcuda::server::kDoorOption;
  return is_door ? rcuda::server::run_door() : rcuda::server::start(argc, argv);
}
