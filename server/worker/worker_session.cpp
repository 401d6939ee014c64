#include "server/worker/worker_session.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "api/command_hashes.h"
#include "common/base/cache_folder.h"
#include "common/base/host_name.h"
#include "common/base/leak_check.h"
#include "common/base/list_text.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "common/base/passed_descriptors.h"
#include "common/base/units.h"
#include "common/base/usable_processors.h"
#include "common/messages/export_messages.h"
#include "common/messages/message_io.h"
#include "common/reach/connect.h"
#include "common/reach/session_link.h"
#include "common/reach/socket_keys.h"
#include "common/tls/keyed.h"
#include "common/wire/address_window.h"
#include "p2p/link/host_identity.h"
#include "p2p/plan/planner.h"
#include "server/addresses/address_window.h"
#include "server/executor/peers/peer_hub.h"
#include "server/protocol/reports.h"
#include "server/quota/quota.h"
#include "server/sandbox/device_scope.h"
#include "server/sandbox/isolation.h"
#include "server/worker/compute_share.h"
#include "server/worker/end_watch.h"
#include "server/worker/session_loop.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;

// The most sockets of other workers that are kept until the session runs.
constexpr size_t kMostEarlyCallers = 1024;

void refuse(const Socket& client, const Status& status) {
  RCUDA_WARN("session refused: %s", status.message().c_str());
  const wire::Refusal refusal{static_cast<uint32_t>(status.code()), status.context()};
  (void)wire::write_message(client, wire::MessageType::kRefusal, wire::encode(refusal),
                            Clock::now() + std::chrono::seconds(5));
}

// With at least this number of processors, polling threads keep no other thread from running, so
// they need not yield.
constexpr unsigned kManyProcessors = 8;
// Below this number, polling threads also keep the threads that receive bytes from running.
constexpr unsigned kFewProcessors = 4;

std::chrono::nanoseconds spin_time(const Settings& settings) {
  if (settings.spin.get().count() > 0) return settings.spin.get();
  // With few cores, polling may keep the client from running.
  const unsigned cores = usable_processors();
  return std::chrono::microseconds(cores >= kManyProcessors  ? 80
                                   : cores >= kFewProcessors ? 20
                                                             : 5);
}

// Whether this value of NCCL_SOCKET_IFNAME names the loopback interface. The value has prefixes of
// names, or whole names after "=", separated by commas.
bool names_loopback(std::string_view interfaces) {
  if (interfaces.starts_with('^')) return false;
  if (interfaces.starts_with('=')) interfaces.remove_prefix(1);
  while (!interfaces.empty()) {
    if (take_item(&interfaces, ',') == "lo") return true;
  }
  return false;
}

std::string pci_address(const api::DriverTable& driver, CUdevice device) {
  char address[32] = {};
  if (driver.cuDeviceGetPCIBusId(address, sizeof address, device) != CUDA_SUCCESS) return {};
  return address;
}

std::string cache_folder_of(const Settings& settings) {
  const std::string& chosen = settings.image_cache.get();
  if (chosen == "auto") return cache_folder();
  return chosen == "none" ? std::string() : chosen;
}

}  // namespace

WorkerSession::WorkerSession(const PreparedWorker& worker, GrantedSession& granted)
    : worker_(worker),
      granted_(granted),
      grant_(granted.start.grant),
      hello_(granted.start.hello),
      parker_([reports = worker.reports](const ParkAnswer& answer) {
        (void)send_report(reports, answer, Clock::now());
      }) {}

WorkerSession::~WorkerSession() = default;

Status WorkerSession::serve() {
  begin_ = Clock::now();
  UniqueFd& socket = granted_.start.descriptor;
  Status status = become_user();
  if (!status.ok()) {
    // This process may still run as root, so it reads nothing from the client. With a key, it also
    // sends no Refusal, because it would have to read the client's TLS handshake first.
    if (!grant_.key) refuse(std::move(socket), status);
    RCUDA_ERROR("cannot start the session: %s", status.message().c_str());
    report_totals({.outcome = "refused: " + status.context()});
    return {};
  }
  // With a key, the client can read a Refusal only after the TLS handshake, so errors wait for it.
  status = check_request();
  Result<Socket> client = encrypted(std::move(socket), wire::kControlSocket, 0);
  if (!client.ok()) return left(client.status());
  // From here on, the client may send descriptors.
  if (status.ok() && !grant_.key) (void)take_descriptors(client->fd(), true);
  if (status.ok()) status = listen().with_context("the server's worker");
  if (!status.ok()) {
    refuse(*client, status);
    report_totals({.outcome = "refused: " + status.context()});
    return {};
  }
  status = connect(std::move(client).value());
  if (!status.ok()) return left(status);
  prepare();
  return run();
}

// For a client that has left before its session began. Returns ok, because the worker has not
// failed.
Status WorkerSession::left(const Status& why) const {
  RCUDA_WARN("the client (%s, pid %u) left before its session began: %s", hello_.program.c_str(),
             hello_.pid, why.message().c_str());
  report_totals({.outcome = "the client left before its session began: " + why.context()});
  return {};
}

void WorkerSession::report_totals(SessionTotals totals) const {
  (void)send_report(worker_.reports, std::move(totals), Clock::now());
}

// Encrypts a socket of the client, if the session has a key.
Result<Socket> WorkerSession::encrypted(UniqueFd socket, uint32_t index, uint32_t attempt) const {
  if (!grant_.key) return Socket(std::move(socket));
  // A further attempt gets less time: it may hang (a stranger, a failed network), and the client's
  // next attempt must wait until this attempt has ended.
  constexpr std::chrono::milliseconds kAttempt{3000};
  const auto whole = worker_.settings.handshake_timeout.milliseconds();
  const auto limit = attempt == 0 ? whole : std::min(whole, kAttempt);
  return tls::encrypt(std::move(socket), wire::socket_key(*grant_.key, index, attempt),
                      tls::Role::kServer, Clock::now() + limit);
}

// Switches to the session's user. Opens the user's folders first, because that user may not reach
// them.
Status WorkerSession::become_user() {
  const std::string cache = cache_folder_of(worker_.settings);
  if (!cache.empty()) {
    Result<UniqueFd> folder = open_image_folder(cache, grant_);
    if (folder.ok()) {
      image_folder_ = std::move(folder).value();
    } else {
      RCUDA_WARN("module images are not kept between sessions: %s",
                 folder.status().message().c_str());
    }
  }
  if (const Status kept = worker_.code.enter(cache, grant_); !kept.ok()) {
    RCUDA_WARN("compiled PTX is not kept between sessions: %s", kept.message().c_str());
  }
  const bool logs = worker_.settings.call_filter.get() == kLogCalls;
  return isolate_worker(grant_, logs ? CallFilter::kLog : CallFilter::kRefuse);
}

// Takes the medium that the client requests, if this worker can use it. If the client has left the
// choice to the server and the medium does not suit this worker, takes the client's second choice.
Status WorkerSession::choose_medium(int socket) {
  medium_ = transport::find_medium(hello_.medium);
  fallback_ = transport::find_medium(hello_.fallback);
  Status usable = !medium_    ? Status(Code::kProtocol,
                                       "this server does not know the transport that the client "
                                          "chose: set RCUDA_TRANSPORT to one of " +
                                           transport::medium_names())
                  : fallback_ ? medium_->suits(socket, encrypts_because())
                              : medium_->usable(socket);
  if (usable.ok()) return {};
  if (fallback_) {
    welcome_.fell_back = usable.context();
    medium_ = std::exchange(fallback_, nullptr);
    return medium_->usable(socket);
  }
  if (!medium_) return usable;
  return std::move(usable).with_context(
      std::string("this server cannot use ") + medium_->name() + " (set RCUDA_TRANSPORT to " +
      transport::plain_medium(medium_->traits.reach).name() + ")");
}

std::string WorkerSession::encrypts_because() const {
  if (!grant_.key || worker_.settings.trusted_fabric.get()) return {};
  return kNoTrust;
}

// Checks the client's request. An error becomes the refusal.
Status WorkerSession::check_request() {
  RCUDA_RETURN_IF_ERROR(worker_.devices.select(hello_.devices, &welcome_, &resources_));
  RCUDA_RETURN_IF_ERROR(
      check_share(worker_.driver.table, resources_.devices, grant_.limits.sm_percent));
  RCUDA_RETURN_IF_ERROR(check_contexts(worker_.driver.table, resources_.devices,
                                       worker_.settings.stop_timeout.get()));
  RCUDA_RETURN_IF_ERROR(choose_medium(granted_.start.descriptor.get()));
  RCUDA_ASSIGN_OR_RETURN(const auto planner,
                         p2p::parse_planner_options(hello_.p2p_strategy, hello_.p2p_path));

  RCUDA_ASSIGN_OR_RETURN(Quota quota, Quota::make(grant_.allowances, std::move(granted_.ledgers)));
  resources_.quota = std::make_shared<Quota>(std::move(quota));
  resources_.limits = grant_.limits;
  RCUDA_RETURN_IF_ERROR(take_window());
  RCUDA_RETURN_IF_ERROR(limit_devices());
  resources_.exporter = {grant_.owner, grant_.port, grant_.exporter};
  const Settings& settings = worker_.settings;
  PeerSettings& peers = resources_.peers;
  std::memcpy(peers.session.data(), hello_.session, sizeof hello_.session);
  peers.planner = planner;
  peers.trusted_fabric = settings.trusted_fabric.get();
  peers.handshake_timeout = settings.handshake_timeout.milliseconds();
  peers.link.bulk_streams = static_cast<int>(settings.bulk_streams.get());
  peers.link.retained_bytes = settings.reconnect_memory.get();
  peers.link.near_pci = pci_address(worker_.driver.table, resources_.devices.front().device);
  peers.spin = settings.spin.get();

  std::memcpy(welcome_.token, granted_.start.token, sizeof welcome_.token);
  welcome_.driver_version = static_cast<uint32_t>(worker_.driver.version);
  welcome_.worker_pid = static_cast<uint32_t>(::getpid());
  welcome_.server = host_name();
  welcome_.reconnect_ms = static_cast<uint32_t>(
      std::min<int64_t>(hello_.reconnect_ms, settings.reconnect_timeout.milliseconds().count()));
  peers.reconnect = std::chrono::milliseconds(welcome_.reconnect_ms);
  welcome_.lacking = api::lacking_commands(hello_.commands, api::command_hashes());
  if (!welcome_.lacking.empty()) {
    RCUDA_INFO(
        "the client runs another build: it does not use %zu of its commands, because this server "
        "lacks them or defines them differently",
        welcome_.lacking.size());
  }
  return {};
}

// Chooses the session's address window and opens it. From then on, the program gets memory only in
// the worker's base and this window (window_guard.h).
Status WorkerSession::take_window() {
  AddressFence& fence = worker_.fence;
  if (fence.inside().empty()) return {};
  uint64_t memory_bytes = 0;
  for (const wire::DeviceInfo& device : welcome_.devices) memory_bytes += device.total_bytes;
  RCUDA_ASSIGN_OR_RETURN(const wire::AddressWindow window,
                         choose_window(window_request(hello_, memory_bytes, fence.closed())));
  RCUDA_RETURN_IF_ERROR(fence.open(window));
  guard_.emplace(*resources_.unmetered, fence);
  resources_.unmetered = &guard_->table();
  resources_.host_memory.closed = fence.closed();
  welcome_.windows = fence.inside();
  return {};
}

// Reports the quotas to the client as the memory sizes and the priorities of its devices.
Status WorkerSession::limit_devices() {
  if (const auto priorities = resources_.limits.priorities) {
    const int64_t least = static_cast<int32_t>(welcome_.priority_least);
    welcome_.priority_greatest = static_cast<int32_t>(
        std::max<int64_t>(welcome_.priority_greatest, least - int64_t{*priorities}));
  }
  if (!resources_.quota->limits(&Allowance::device_memory)) return {};
  for (size_t i = 0; i < resources_.devices.size(); ++i) {
    const uint32_t ordinal = resources_.devices[i].ordinal;
    if (ordinal >= Ledger::kDevices) {
      return {Code::kInvalidArgument,
              "the server limits device memory, but can do that only for devices 0 to " +
                  std::to_string(Ledger::kDevices - 1) + ", not for device " +
                  std::to_string(ordinal) + ": name another device in RCUDA_DEVICES"};
    }
    uint64_t& bytes = welcome_.devices[i].total_bytes;
    if (const auto room = resources_.quota->room(ordinal)) bytes = std::min(bytes, room->limit);
  }
  return {};
}

// Starts to receive the daemon's messages. They may arrive before the session runs.
Status WorkerSession::listen() {
  listener_.emplace(
      worker_.daemon, worker_.reports, [this](ToWorker message) { receive(std::move(message)); },
      [this](std::string why) {
        MutexLock lock(mutex_);
        stopped_ = std::move(why);
        if (loop_) loop_->stop(stopped_);
      });
  return listener_->start();
}

void WorkerSession::receive(ToWorker message) {
  MutexLock lock(mutex_);
  if (auto* const step = std::get_if<ParkStep>(&message)) {
    parker_.receive(std::move(*step));
    if (loop_) loop_->interrupt();
    return;
  }
  if (auto* const call = std::get_if<ExportCall>(&message)) {
    if (loop_) loop_->executor().names.answer(call->introduction, std::move(call->descriptor));
    return;
  }
  if (auto* const lost = std::get_if<RanksLost>(&message)) {
    if (loop_) loop_->executor().nccl.lose(std::move(lost->tags));
    return;
  }
  auto& call = std::get<PeerCall>(message);
  // Another worker may connect before loop_ is set: the client's end of the Link may be complete
  // before this end, and the client may already have introduced the two workers.
  if (loop_) {
    loop_->executor().peers.accept_caller(call.introduction, std::move(call.descriptor));
  } else if (early_.size() < kMostEarlyCallers) {
    early_.emplace_back(call.introduction, std::move(call.descriptor));
  }
}

// Welcomes the client and makes the Link to it.
Status WorkerSession::connect(Socket client) {
  const auto timeout = worker_.settings.handshake_timeout.milliseconds();
  RCUDA_RETURN_IF_ERROR(wire::write_message(client, wire::MessageType::kWelcome,
                                            wire::encode(welcome_), Clock::now() + timeout));
  const auto watch_client = [&](int control) {
    listener_->watch(UniqueFd(::fcntl(control, F_DUPFD_CLOEXEC, 0)));
  };
  const auto accept_stream = [&](int index) -> Result<Socket> {
    RCUDA_ASSIGN_OR_RETURN(FurtherSocket socket,
                           listener_->wait_for_stream(index, Clock::now() + timeout));
    if (index == int{wire::kFallbackSocket}) watch_client(socket.descriptor.get());
    return encrypted(std::move(socket.descriptor), static_cast<uint32_t>(index), 0);
  };
  watch_client(client.fd());
  transport::Bootstrap bootstrap;
  bootstrap.control = std::move(client);
  bootstrap.server = true;
  bootstrap.timeout = timeout;
  bootstrap.accept_stream = accept_stream;
  bootstrap.reconnecting = reconnecting();
  transport::LinkOptions options = resources_.peers.link;
  options.peer_timeout = worker_.settings.peer_timeout.milliseconds();
  options.window_bytes = wire::WorkerWindow::kBytes;
  options.retained_bytes = worker_.settings.reconnect_memory.get();
  Result<wire::SessionLink> made =
      wire::make_session_link({medium_, fallback_}, std::move(bootstrap), options);
  listener_->watch({});
  if (!made.ok()) return made.status();
  if (!made->refused.ok()) {
    RCUDA_INFO("cannot connect with the client over %s: %s", medium_->name(),
               made->refused.message().c_str());
  }
  link_ = std::move(made->link);
  const bool fell_back = !made->refused.ok() || !welcome_.fell_back.empty();
  if (fell_back) granted_.work->set_fell_back();
  return {};
}

// Returns how the session gets new connections after it has lost its connections.
transport::Reconnecting WorkerSession::reconnecting() {
  transport::Reconnecting how;
  how.limit = std::chrono::milliseconds(welcome_.reconnect_ms);
  how.peer = "the client (" + hello_.program + ", pid " + std::to_string(hello_.pid) + ")";
  how.next = [this](int index, Clock::time_point deadline) -> Result<Socket> {
    Result<FurtherSocket> socket = listener_->wait_for_stream(index, deadline);
    if (!socket.ok()) {
      const bool is_final = socket.status().code() == Code::kUnavailable;
      return Status(is_final ? Code::kNotFound : Code::kTimeout, socket.status().context());
    }
    RCUDA_RETURN_IF_ERROR(
        wire::write_message(socket->descriptor.get(), wire::MessageType::kAttached, {},
                            Clock::now() + worker_.settings.handshake_timeout.milliseconds()));
    return encrypted(std::move(socket->descriptor), static_cast<uint32_t>(index),
                     socket->introduction.attempt);
  };
  how.changed = [this](bool is_lost, bool is_new) {
    granted_.work->set_lost_since(is_lost ? monotonic_ns() : 0, is_new);
  };
  how.on_connection = [this](std::function<void(int)> function) {
    listener_->on_replacement(std::move(function));
  };
  return how;
}

// Prepares the executor's resources other than the driver, the devices and the peers.
void WorkerSession::prepare() {
  const Settings& settings = worker_.settings;
  images_.emplace(std::move(image_folder_), settings.image_cache_bytes.get());
  if (Result<std::unique_ptr<OutputCapture>> started = OutputCapture::start(); started.ok()) {
    output_ = std::move(started).value();
  } else {
    RCUDA_WARN("output of kernels stays on the server: %s", started.status().message().c_str());
  }
  resources_.link = link_.get();
  resources_.images = &*images_;
  resources_.output = output_.get();
  resources_.movable_memory = settings.movable_memory.get();
  resources_.gpudirect = settings.gpudirect.get();
  resources_.most_streams = static_cast<size_t>(most_streams());
  NcclSettings& nccl = resources_.nccl;
  nccl.library = settings.nccl.get();
  if (!encrypts_because().empty()) {
    nccl.needs_encryption =
        "the session is encrypted, but NCCL's connections between servers are not; set "
        "`trusted_fabric` in the server.toml of each server if the network between them is "
        "trusted, or call ncclSetEncryption (NCCL 2.32.3) before other functions of NCCL";
  }
  if (settings.device_isolation.get() == kIsolateSessions && ::getenv(kScopeVariable)) {
    nccl.apart = "NCCL does not use NVLink between this rank and ranks of other sessions on " +
                 host_name() +
                 ": the server has device_isolation = \"session\", so a session sees only its GPUs";
  }
  // Workers of two servers of one machine cannot open each other's GPUs, so their host ids differ.
  nccl.host_id = p2p::host_identity() + ":" + std::to_string(grant_.port);
  nccl.may_connect = [&settings](const sockaddr& address) {
    const char* const chosen = std::getenv("NCCL_SOCKET_IFNAME");
    return settings.nccl_networks.contains(address, chosen && names_loopback(chosen));
  };
  nccl.note_rank = [work = &*granted_.work](uint64_t tag, bool joins) {
    joins ? work->join(tag) : work->leave(tag);
  };
}

Status WorkerSession::run() {
  EndWatch watch(
      [this] {
        MutexLock lock(mutex_);
        if (!stopped_.empty()) return Status(Code::kUnavailable, stopped_);
        const Status link = link_->status();
        // A call into the driver may wait for a stream that waits for the client's bytes.
        if (loop_ && !link.ok()) loop_->executor().arrivals->end();
        const Status over = loop_ ? loop_->over() : Status();
        return over.ok() ? link : over;
      },
      worker_.settings.stop_timeout.get());
  RCUDA_RETURN_IF_ERROR(watch.start());
  const unsigned processors = usable_processors();
  SessionLoop session(
      resources_, {spin_time(worker_.settings),
                   {},
                   &*granted_.work,
                   processors < kManyProcessors,
                   processors<kFewProcessors, &parker_, worker_.settings.oversubscribe.get()> 1});
  {
    MutexLock lock(mutex_);
    loop_ = &session;
    for (auto& [called, socket] : early_) {
      session.executor().peers.accept_caller(called, std::move(socket));
    }
    early_.clear();
    if (!stopped_.empty()) session.stop(stopped_);
  }
  RCUDA_INFO("session of %s (%s, pid %u on %s) over %s: device%s %s", grant_.user.c_str(),
             hello_.program.c_str(), hello_.pid, hello_.host.c_str(), link_->medium(),
             hello_.devices.size() == 1 ? "" : "s", list_of(hello_.devices).c_str());
  end(session.run(), session);
}

// The process ends here. The driver's threads may still be in this session's host functions, so no
// object is destroyed before.
void WorkerSession::end(const Status& status, SessionLoop& session) {
  std::string ended_by;
  {
    MutexLock lock(mutex_);
    loop_ = nullptr;  // later connections of workers end with this process
    ended_by = stopped_;
  }
  const std::string outcome = session.ended_by_client() ? "ended by the client"
                              : !ended_by.empty()       ? ended_by
                                                        : status.message();
  const wire::Work& work = session.executor().done;
  const transport::LinkCounters counters = link_->counters();
  RCUDA_INFO(
      "session of %s (pid %u) over after %s: %llu commands, %llu answers, %s copied, %s over the "
      "link; %s",
      grant_.user.c_str(), hello_.pid, rounded_time_text(Clock::now() - begin_).c_str(),
      static_cast<unsigned long long>(work[wire::Counter::kCommands]),
      static_cast<unsigned long long>(counters.puts), bytes_text(work.copied_bytes()).c_str(),
      bytes_text(counters.transfer_bytes + counters.window_bytes).c_str(), outcome.c_str());
  granted_.work->set_over_at(monotonic_ns());
  link_->close();
  // If the program has ended the session, the other ranks of its communicators need no notice.
  // Exception: ranks that were parked together with this session wait for it when they wake.
  const bool is_awaited = session.executor().nccl.is_suspended();
  if (session.ended_by_client() && !is_awaited) granted_.work->leave_all();
  report_totals({work, outcome});
  look_for_leaks();
  ::_exit(status.ok() || status.code() == Code::kUnavailable ? 0 : 2);
}

}  // namespace rcuda::server
