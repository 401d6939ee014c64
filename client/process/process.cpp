#include "client/process/process.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api/exports/driver_version.h"
#include "api/exports/proc_address.h"
#include "client/objects/named.h"
#include "client/pool/pci_address.h"
#include "client/pool/pool_uuids.h"
#include "client/process/driver_variables.h"
#include "client/process/own_addresses.h"
#include "client/process/remote_attributes.h"
#include "client/settings/process_end.h"
#include "client/settings/sanitizers.h"
#include "client/settings/settings.h"
#include "client/trace/trace.h"
#include "common/base/first_report.h"
#include "common/base/log.h"
#include "common/base/thread_object.h"
#include "common/base/units.h"
#include "common/config/variables.h"
#include "common/wire/address_ranges.h"

namespace rcuda::client {
namespace {

using Clock = std::chrono::steady_clock;

struct ContextStack {
  std::vector<Ref<Context>> contexts;  // the current one last
};

std::vector<Ref<Context>>& context_stack() { return of_this_thread<ContextStack>().contexts; }

Process* instance = nullptr;  // null until the process calls CUDA

// The number of connections between servers grows with the square of the number of servers, and
// each connection takes threads and descriptors of two workers. With more servers than this, each
// pair connects when it is first needed.
constexpr size_t kMostEagerServers = 16;
// RCUDA_P2P=eager is refused with more servers than this, because a worker makes at most this many
// connections at a time (server/executor/peers/peer_hub.cpp).
constexpr size_t kMostServersAtOnce = 64;

// Whether the workers of several servers are introduced to one another at the start.
Result<bool> connects_eagerly(size_t servers) {
  const std::string_view when = settings().p2p.get();
  if (when != "eager") return when == "auto" && servers <= kMostEagerServers;
  if (servers <= kMostServersAtOnce) return true;
  return Status(Code::kInvalidArgument, "RCUDA_P2P=eager connects at most " +
                                            std::to_string(kMostServersAtOnce) +
                                            " servers at once, and RCUDA_DEVICES names " +
                                            std::to_string(servers) + ": use RCUDA_P2P=lazy");
}

// Returns the devices of the pool that CUDA_VISIBLE_DEVICES selects.
Result<std::vector<DeviceAddress>> selected_devices(const std::vector<DeviceAddress>& pool,
                                                    const Environment& environment,
                                                    Clock::time_point deadline) {
  const PoolUuids uuids = [&] { return uuids_of(pool, deadline); };
  RCUDA_ASSIGN_OR_RETURN(
      VisibleSelection selection,
      visible_devices(pool, environment, uuids).with_context("CUDA_VISIBLE_DEVICES"));
  const std::string& problem = selection.problem;
  if (selection.devices.empty()) {
    const CUresult result =
        selection.named_twice ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NO_DEVICE;
    const char* const text = environment("CUDA_VISIBLE_DEVICES");
    return Status::from_cuda(result,
                             std::string("CUDA_VISIBLE_DEVICES=\"") + (text ? text : "") +
                                 "\" selects none of the devices in RCUDA_DEVICES: " + problem);
  }
  if (!problem.empty()) {
    RCUDA_INFO(
        "CUDA_VISIBLE_DEVICES selects only %zu devices, because the list ends at an invalid "
        "entry: %s",
        selection.devices.size(), problem.c_str());
  }
  return std::move(selection.devices);
}

// Returns the text for a failed cuInit. If memory is short, the text also names the limit of the
// process's address space.
std::string reason_of(const Status& status) {
  std::string reason = status.context();
  const bool is_memory = status.code() == Code::kOutOfMemory ||
                         reason.find(std::strerror(ENOMEM)) != std::string::npos;
  rlimit limit{};
  if (is_memory && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    reason += "; the address space of this process is limited to " + bytes_text(limit.rlim_cur) +
              ": raise the limit (ulimit -v)";
  }
  return reason;
}

}  // namespace

Process& Process::get() {
  static Process* created = [] {
    auto* process = new Process;
    instance = process;  // set before another thread's fork() can use it
    pthread_atfork(nullptr, nullptr, [] { instance->fork_child(); });
    return process;
  }();
  return *created;
}

CUresult Process::initialize() {
  if (forked_.load(std::memory_order_acquire)) return CUDA_ERROR_NOT_INITIALIZED;
  MutexLock lock(mutex_);
  if (state_.load() == CUDA_ERROR_DEINITIALIZED) return CUDA_ERROR_DEINITIALIZED;
  if (tried_.load()) return init_result_;
  tried_.store(true);
  connecting_.store(true);
  std::atexit([] { instance->end(); });
  const Status status = try_to_connect();
  if (status.ok()) {
    api::set_driver_version(oldest_driver());
    init_result_ = CUDA_SUCCESS;
    state_.store(CUDA_SUCCESS, std::memory_order_release);
  } else {
    // NO_DEVICE is the error that programs expect on a machine without a GPU.
    init_result_ = status.cuda() == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                              : CUDA_ERROR_NO_DEVICE;
    devices_.clear();
    for (auto& session : sessions_) session->end();
  }
  connecting_.store(false);
  const CUresult result = init_result_;
  lock.unlock();
  if (!status.ok()) {
    // Logged without the mutex: first_report() takes the loader's lock, and a thread that holds
    // that lock, in a library's constructor, may be waiting for the mutex.
    const std::string reason = reason_of(status);
    if (first_report(reason)) RCUDA_ERROR("%s", reason.c_str());
  }
  return result;
}

CUresult Process::check() const {
  const CUresult state = state_.load(std::memory_order_acquire);
  if (state != CUDA_SUCCESS) [[unlikely]]
    return state;
  return in_host_function() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

Status Process::try_to_connect() {
  try {
    return connect();
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory,
                  "the program has no memory left to connect to the servers of RCUDA_DEVICES");
  } catch (const std::exception& error) {
    return Status(Code::kInternal,
                  std::string("connecting to the servers of RCUDA_DEVICES failed: ") +
                      error.what() + "; see the limits of this process (ulimit -a)");
  }
}

Status Process::connect() {
  RCUDA_RETURN_IF_ERROR(load_settings());
  const Settings& set = settings();
  RCUDA_RETURN_IF_ERROR(configure_log());
  for (const std::string& unknown : config::unknown_variables(environ)) {
    RCUDA_WARN("%s", unknown.c_str());
  }
  RCUDA_RETURN_IF_ERROR(check_sanitizers());
  keep_driver_variables();
  wire::Credentials credentials;
  RCUDA_RETURN_IF_ERROR(credentials.registry.load_environment());
  if (const std::string& file = set.trace.get(); !file.empty()) {
    RCUDA_RETURN_IF_ERROR(trace::start(file.c_str()));
  }
  trace::Span span("connect");
  RCUDA_ASSIGN_OR_RETURN(wire::Hello hello, make_hello());
  SessionOptions options;
  options.medium = transport::find_medium(set.transport.get());  // null for auto
  options.credentials = &credentials;
  options.synchronous = set.synchronous.get();
  options.wake_wait = set.wake_wait.milliseconds();
  options.hello = std::move(hello);
  options.hello.reconnect_ms = static_cast<uint32_t>(set.reconnect.milliseconds().count());
  // Not checked here: the workers know the valid values, and refuse the session for any other
  // value.
  options.hello.p2p_strategy = set.p2p_strategy.get();
  options.hello.p2p_path = set.p2p_path.get();

  const auto environment = [](const char* name) {
    return static_cast<const char*>(::secure_getenv(name));
  };
  RCUDA_ASSIGN_OR_RETURN(std::vector<DeviceAddress> pool, devices_from(environment));
  const std::chrono::milliseconds wait = set.wait.milliseconds();
  const Clock::time_point deadline = Clock::now() + wait;
  RCUDA_RETURN_IF_ERROR(resolve_uuids(&pool, deadline));
  RCUDA_ASSIGN_OR_RETURN(const std::vector<DeviceAddress> chosen,
                         selected_devices(pool, environment, deadline));
  if (wait.count() != 0) options.wait_until = deadline;
  RCUDA_ASSIGN_OR_RETURN(std::vector<ServerDevices> servers, group_by_server(chosen));

  if (servers.size() > wire::kMostServers) {
    return Status(Code::kInvalidArgument, "RCUDA_DEVICES names " + std::to_string(servers.size()) +
                                              " servers; a program can use at most " +
                                              std::to_string(wire::kMostServers) +
                                              ": name devices of fewer servers");
  }
  RCUDA_ASSIGN_OR_RETURN(const bool eager, connects_eagerly(servers.size()));
  options.hello.servers = static_cast<uint32_t>(servers.size());
  options.hello.devices_left = static_cast<uint32_t>(chosen.size());
  options.hello.taken = own_addresses();
  // Called while open() waits for a server. Keeps the sessions that are already open alive, because
  // their servers may end idle sessions.
  options.while_waiting = [this] {
    for (const auto& session : sessions_) session->keep_alive();
  };

  devices_.resize(chosen.size());
  for (const ServerDevices& server : servers) {
    RCUDA_ASSIGN_OR_RETURN(std::unique_ptr<Session> opened, Session::open(server, options));
    Session* const session = sessions_.emplace_back(std::move(opened)).get();
    const wire::Welcome& welcome = session->welcome();
    options.hello.taken.insert(options.hello.taken.end(), welcome.windows.begin(),
                               welcome.windows.end());
    memory_.grant(session->windows(), session);
    ++options.hello.worker;
    options.hello.devices_left -= static_cast<uint32_t>(welcome.devices.size());
    for (uint32_t i = 0; i < welcome.devices.size(); ++i) {
      auto device = std::make_unique<Device>();
      device->session = session;
      device->ordinal = i;
      device->info = welcome.devices[i];
      correct_attributes(&device->info);
      const wire::ObjectId primary = wire::primary_context_id(i);
      device->primary = create<Context>({primary, primary, session, server.ordinals[i]});
      if (!device->primary) {
        return Status(Code::kOutOfMemory, "no address space is left for the handle of a context");
      }
      device->primary->given_back = true;  // not active until cuDevicePrimaryCtxRetain
      remember_named(device->primary);     // the worker may name it by its id
      tell_apart(device.get());
      devices_[server.ordinals[i]] = std::move(device);
    }
  }
  peers_.set_workers(sessions_.size());
  if (eager) peers_.introduce_all(sessions_);
  return {};
}

void Process::tell_apart(Device* device) const {
  const auto domain = other_pci_domain(device->info.pci_bus_id, [&](const std::string& address) {
    return std::any_of(devices_.begin(), devices_.end(), [&](const auto& known) {
      return known && known->info.pci_bus_id == address;
    });
  });
  if (!domain) return;
  device->info.pci_bus_id = with_pci_domain(device->info.pci_bus_id, *domain);
  if (device->info.attributes.size() > CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) {
    device->info.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = *domain;
  }
}

Device* Process::device(CUdevice ordinal) const {
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= devices_.size()) return nullptr;
  return devices_[static_cast<size_t>(ordinal)].get();
}

uint32_t Process::ordinal_of(const Session& session, uint32_t worker_ordinal) const {
  const std::vector<uint32_t>& ordinals = session.ordinals();
  return worker_ordinal < ordinals.size() ? ordinals[worker_ordinal]
                                          : static_cast<uint32_t>(CU_DEVICE_INVALID);
}

Session* Process::session_of_address(CUdeviceptr address) const {
  for (const auto& session : sessions_) {
    if (wire::contains(session->welcome().windows, address)) return session.get();
  }
  return nullptr;
}

int Process::driver_version() {
  (void)initialize();
  return oldest_driver();
}

bool Process::lacks_command(uint16_t opcode) {
  if (!instance || instance->state_.load(std::memory_order_acquire) != CUDA_SUCCESS) return false;
  return std::any_of(instance->sessions_.begin(), instance->sessions_.end(),
                     [opcode](const auto& session) { return session->lacking().contains(opcode); });
}

int Process::oldest_driver() const {
  int version = CUDA_VERSION;
  for (const auto& session : sessions_) {
    version = std::min(version, static_cast<int>(session->welcome().driver_version));
  }
  return version;
}

void Process::fork_child() noexcept {
  trace::abandon();
  // Another thread of the parent may have been connecting, with mutex_ held. Then mutex_ stays
  // locked in this child, so no call may take it.
  if (connecting_.load()) forked_.store(true);
  if (state_.load() == CUDA_ERROR_DEINITIALIZED) return;
  if (state_.exchange(CUDA_ERROR_NOT_INITIALIZED) != CUDA_SUCCESS) return;
  forked_.store(true);
  for (const auto& session : sessions_) session->abandon();
}

void Process::end() {
  CUresult ready = CUDA_SUCCESS;
  if (state_.compare_exchange_strong(ready, CUDA_ERROR_DEINITIALIZED)) {
    process_ends.store(true, std::memory_order_release);
    for (const auto& session : sessions_) session->end();
  }
  trace::finish();
}

Ref<Context> current_context() {
  const auto& contexts = context_stack();
  return contexts.empty() ? Ref<Context>() : contexts.back();
}

void set_current_context(Context* context) {
  auto& contexts = context_stack();
  if (!contexts.empty()) contexts.pop_back();
  if (context) contexts.emplace_back(context);
}

void push_context(Context* context) { context_stack().emplace_back(context); }

Ref<Context> pop_context() {
  auto& contexts = context_stack();
  if (contexts.empty()) return {};
  const Ref<Context> context = contexts.back();
  contexts.pop_back();
  return context;
}

}  // namespace rcuda::client

bool rcuda::api::lacks_command(uint16_t opcode) { return client::Process::lacks_command(opcode); }

// Connects to the servers, because only they know their drivers' versions. A runtime calls
// cuDriverGetVersion early and does not continue without an answer.
int rcuda::api::find_driver_version() { return client::Process::get().driver_version(); }
