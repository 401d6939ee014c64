#include "server/worker/worker_process.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "api/api_hash.h"
#include "common/base/host_name.h"
#include "common/base/leak_check.h"
#include "common/base/log.h"
#include "common/base/start_thread.h"
#include "common/transport/media.h"
#include "common/wire/handshake.h"
#include "server/executor/image_cache.h"
#include "server/executor/output_capture.h"
#include "server/peer/peer_hub.h"
#include "server/worker/address_fence.h"
#include "server/worker/device_set.h"
#include "server/worker/driver_loader.h"
#include "server/worker/end_watch.h"
#include "server/worker/session_loop.h"
#include "server/worker/worker_messages.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;

// Sockets of other workers that are kept until the session runs.
constexpr size_t kMostEarlyCallers = 1024;

// The log goes where stderr led when the worker started: descriptors 1 and 2 will belong to the
// kernels of the session.
void keep_log_apart() {
  const int copy = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (copy >= 0) set_log_descriptor(copy);
}

// Listens to the daemon while a session runs: further sockets of the client, those of its other
// workers, the order to stop, and the daemon's death.
class DaemonListener {
 public:
  DaemonListener(int socket, std::function<void(WorkerMessage)> peer,
                 std::function<void(const char* why)> stop)
      : socket_(socket),
        peer_(std::move(peer)),
        stop_(std::move(stop)),
        end_event_(::eventfd(0, EFD_CLOEXEC)) {}
  ~DaemonListener() {
    const uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(end_event_.get(), &one, sizeof one);
    if (thread_.joinable()) thread_.join();
  }
  Status start() {
    return start_thread(&thread_, [this] { run(); });
  }

  Result<UniqueFd> wait_for_stream(int index, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    const auto key = static_cast<uint32_t>(index);
    if (!changed_.wait_until(lock, deadline, [&] { return streams_.contains(key) || stopped_; })) {
      return Status(Code::kTimeout, "the client did not open its further connections");
    }
    auto found = streams_.find(key);
    if (found == streams_.end()) return Status(Code::kUnavailable, "the server stops");
    UniqueFd stream = std::move(found->second);
    streams_.erase(found);
    return stream;
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "rcuda-daemon");
    for (;;) {
      pollfd items[2] = {{socket_, POLLIN, 0}, {end_event_.get(), POLLIN, 0}};
      if (::poll(items, 2, -1) < 0) continue;
      if (items[1].revents) return;
      Result<WorkerMessage> message = receive_worker_message(socket_);
      if (message.ok() && message->type == WorkerMessageType::kAttach) {
        std::lock_guard lock(mutex_);
        streams_[message->index] = std::move(message->socket);
        changed_.notify_all();
        continue;
      }
      if (message.ok() && message->type == WorkerMessageType::kPeer) {
        peer_(std::move(message).value());
        continue;
      }
      {
        std::lock_guard lock(mutex_);
        stopped_ = true;
        changed_.notify_all();
      }
      stop_(message.ok() ? "the server stops" : "the server is gone");
      return;
    }
  }

  const int socket_;
  const std::function<void(WorkerMessage)> peer_;
  const std::function<void(const char*)> stop_;
  UniqueFd end_event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, UniqueFd> streams_;
  bool stopped_ = false;
  std::thread thread_;
};

void refuse(int socket, const Status& status) {
  RCUDA_WARN("session refused: %s", status.message().c_str());
  const wire::Refusal refusal{static_cast<uint32_t>(status.code()), status.context()};
  (void)wire::write_message(socket, wire::MessageType::kRefusal, wire::encode(refusal),
                            Clock::now() + std::chrono::seconds(5));
}

std::chrono::nanoseconds spin_time(const Settings& settings) {
  if (settings.spin.get().count() > 0) return settings.spin.get();
  // With few cores the spinner may be what keeps the client from running.
  const unsigned cores = std::thread::hardware_concurrency();
  return std::chrono::microseconds(cores >= 8 ? 80 : cores >= 4 ? 20 : 5);
}

// The medium that a client asks for, if this worker can use it.
Result<const transport::Medium*> medium_for(const wire::Hello& hello, int socket) {
  const transport::Medium* const medium = transport::find_medium(hello.medium);
  if (!medium) {
    return Status(Code::kProtocol, "this server takes " + transport::medium_names() + " only");
  }
  if (Status usable = medium->usable(socket); !usable.ok()) {
    return std::move(usable).with_context(
        std::string("this server cannot use ") + medium->name() + " (set RCUDA_TRANSPORT to " +
        transport::plain_medium(medium->traits.reach).name() + ")");
  }
  return medium;
}

std::string pci_address(const api::DriverTable& driver, CUdevice device) {
  char address[32] = {};
  if (driver.cuDeviceGetPCIBusId(address, sizeof address, device) != CUDA_SUCCESS) return {};
  return address;
}

// One session, from the Hello to its end.
Status serve(const Settings& settings, WorkerMessage message, int daemon, const DeviceSet& devices,
             const LoadedDriver& driver, const wire::AddressWindow& window,
             std::vector<AddressRange> closed) {
  const Clock::time_point begin = Clock::now();
  Result<wire::Hello> hello = wire::decode_hello(message.body);
  // The daemon starts workers by the path of its binary, and has understood this Hello itself.
  if (!hello.ok() || hello->api_hash != api::kApiHash) {
    refuse(
        message.socket.get(),
        Status(Code::kProtocol,
               "another build of rcuda was installed while the server ran: restart rcuda-server"));
    return {};
  }

  wire::Welcome welcome;
  SessionResources resources;
  if (Status status = devices.select(hello->devices, &welcome, &resources); !status.ok()) {
    refuse(message.socket.get(), status);
    return {};
  }
  const auto medium = medium_for(*hello, message.socket.get());
  if (!medium.ok()) {
    refuse(message.socket.get(), medium.status());
    return {};
  }
  if (auto planner = p2p::parse_planner_options(hello->p2p_strategy, hello->p2p_path);
      !planner.ok()) {
    refuse(message.socket.get(), planner.status());
    return {};
  }
  std::memcpy(welcome.token, message.token, sizeof welcome.token);
  welcome.driver_version = static_cast<uint32_t>(driver.version);
  welcome.worker_pid = static_cast<uint32_t>(::getpid());
  welcome.server = host_name();
  welcome.window = window;
  const auto timeout = settings.handshake_timeout.milliseconds();

  std::mutex mutex;  // guards what follows
  SessionLoop* loop = nullptr;
  std::vector<std::pair<wire::PeerHello, UniqueFd>> early;  // before there is a loop
  const char* stopped = nullptr;
  DaemonListener listener(
      daemon,
      [&](WorkerMessage peer) {
        const Result<wire::PeerHello> called = wire::decode_peer_hello(peer.body);
        if (!called) return;
        std::lock_guard lock(mutex);
        // The other worker may have been introduced already by a client whose end of this one's
        // Link stands.
        if (loop) {
          loop->executor().peers().called_on(*called, std::move(peer.socket));
        } else if (early.size() < kMostEarlyCallers) {
          early.emplace_back(*called, std::move(peer.socket));
        }
      },
      [&](const char* why) {
        std::lock_guard lock(mutex);
        stopped = why;
        if (loop) loop->stop();
      });
  if (Status started = listener.start(); !started.ok()) {
    refuse(message.socket.get(), std::move(started).with_context("the server's worker"));
    return {};
  }
  // A client that goes away before the session began is no failure of this worker.
  const auto client_left = [&](const Status& why) {
    RCUDA_WARN("the client (%s, pid %u) left before its session began: %s", hello->program.c_str(),
               hello->pid, why.message().c_str());
    return Status();
  };
  if (Status sent = wire::write_message(message.socket.get(), wire::MessageType::kWelcome,
                                        wire::encode(welcome), Clock::now() + timeout);
      !sent.ok()) {
    return client_left(sent);
  }
  transport::Bootstrap bootstrap;
  bootstrap.control = std::move(message.socket);
  bootstrap.server = true;
  bootstrap.timeout = timeout;
  bootstrap.accept_stream = [&](int index) {
    return listener.wait_for_stream(index, Clock::now() + timeout);
  };
  transport::LinkOptions options;
  options.window_bytes = wire::WorkerWindow::kBytes;
  options.bulk_streams = static_cast<int>(settings.bulk_streams.get());
  options.near_pci = pci_address(driver.table, resources.devices.front().device);
  options.peer_timeout = settings.peer_timeout.milliseconds();
  auto link = transport::make_link(**medium, std::move(bootstrap), options);
  if (!link.ok()) return client_left(link.status());

  const std::string cache_folder = settings.image_cache.get() == "auto" ? default_image_directory()
                                   : settings.image_cache.get() == "none"
                                       ? std::string()
                                       : settings.image_cache.get();
  ImageCache images(cache_folder, settings.image_cache_bytes.get());
  std::unique_ptr<OutputCapture> output;
  if (Result<std::unique_ptr<OutputCapture>> started = OutputCapture::start(); started.ok()) {
    output = std::move(started).value();
  } else {
    RCUDA_WARN("output of kernels stays on the server: %s", started.status().message().c_str());
  }
  resources.link = link->get();
  resources.images = &images;
  resources.output = output.get();
  resources.allow_faults = settings.allow_faults.get();
  resources.gpudirect = settings.gpudirect.get();
  resources.most_streams = static_cast<size_t>(most_streams());
  std::memcpy(resources.peers.session.data(), hello->session, sizeof hello->session);
  resources.peers.strategy = hello->p2p_strategy;
  resources.peers.path = hello->p2p_path;
  resources.peers.handshake_timeout = timeout;
  resources.peers.timeout = options.peer_timeout;
  resources.peers.bulk_streams = options.bulk_streams;
  resources.peers.spin = settings.spin.get();
  resources.peers.near_pci = options.near_pci;
  resources.closed = std::move(closed);

  EndWatch watch(
      [&] {
        std::lock_guard lock(mutex);
        return stopped ? Status(Code::kUnavailable, stopped) : (*link)->status();
      },
      settings.stop_timeout.get());
  if (Status started = watch.start(); !started.ok()) return started;
  SessionLoop session(resources, {spin_time(settings)});
  {
    std::lock_guard lock(mutex);
    loop = &session;
    for (auto& [called, socket] : early) {
      session.executor().peers().called_on(called, std::move(socket));
    }
    early.clear();
    if (stopped) session.stop();
  }
  RCUDA_INFO("session of %s (%s, pid %u on %s) over %s: device%s %s", hello->user.c_str(),
             hello->program.c_str(), hello->pid, hello->host.c_str(), (*link)->medium(),
             hello->devices.size() == 1 ? "" : "s", list_of(hello->devices).c_str());
  const Status status = session.run();
  const char* ended_by = nullptr;
  {
    std::lock_guard lock(mutex);
    loop = nullptr;  // who calls now is left to the end of this process
    ended_by = stopped;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const std::string outcome = ended_by      ? ended_by
                              : status.ok() ? "ended by the client"
                                            : status.message();
  const transport::LinkCounters counters = (*link)->counters();
  RCUDA_INFO(
      "session of %s (pid %u) over after %.1f s: %llu commands, %llu answers, %llu bytes copied, "
      "%llu bytes over the link; %s",
      hello->user.c_str(), hello->pid, seconds,
      static_cast<unsigned long long>(session.executor().commands),
      static_cast<unsigned long long>(counters.puts),
      static_cast<unsigned long long>(session.executor().copied_bytes),
      static_cast<unsigned long long>(counters.transfer_bytes + counters.window_bytes),
      outcome.c_str());
  // The process ends here, and with it everything the session had: the driver's threads may still
  // be in this session's host functions, so nothing is taken apart under them.
  (*link)->close();
  look_for_leaks();
  ::_exit(status.ok() || status.code() == Code::kUnavailable ? 0 : 2);
}

Status fail(int daemon, Status status) {
  WorkerMessage message;
  message.type = WorkerMessageType::kFailed;
  const std::string& reason = status.context();
  const auto* bytes = reinterpret_cast<const std::byte*>(reason.data());
  message.body.assign(bytes, bytes + reason.size());
  (void)send_worker_message(daemon, message, Deadline::max());
  return status;
}

WorkerReady offer_of(const LoadedDriver& driver, const DeviceSet& devices) {
  WorkerReady ready;
  ready.driver = "CUDA " + std::to_string(driver.version / 1000) + "." +
                 std::to_string(driver.version % 1000 / 10) + " by " + driver.path;
  wire::Welcome welcome;
  SessionResources resources;
  if (!devices.select(devices.ordinals(), &welcome, &resources).ok()) return ready;
  for (size_t i = 0; i < welcome.devices.size(); ++i) {
    ready.devices.push_back(
        {devices.ordinals()[i], welcome.devices[i].name, welcome.devices[i].total_bytes});
  }
  return ready;
}

Status work(const Settings& settings, int daemon, uint32_t window_index) {
  wire::AddressWindow window = address_window(window_index);
  std::vector<AddressRange> closed;
  if (settings.fence.get()) {
    auto raised = raise_fence(window);
    if (!raised.ok()) return fail(daemon, raised.status());
    closed = std::move(raised).value();
  } else {
    window = {};
  }
  Result<LoadedDriver> driver = load_driver(settings.driver.get());
  if (!driver.ok()) return fail(daemon, driver.status());
  auto devices =
      DeviceSet::prepare(driver->table, settings.devices.get(), settings.staging_bytes.get());
  if (!devices.ok()) return fail(daemon, devices.status());
  if (window.bytes && !(*devices)->allocates_in(window)) {
    RCUDA_WARN(
        "this driver allocates outside of its window of addresses: pointers of several "
        "servers in one program may clash");
  }
  WorkerMessage ready;
  ready.type = WorkerMessageType::kReady;
  ready.body = encode(offer_of(*driver, **devices));
  // A daemon that is gone needs no worker, and no word about it.
  if (!send_worker_message(daemon, ready, Deadline::max()).ok()) return {};
  Result<WorkerMessage> message = receive_worker_message(daemon);
  if (!message.ok() || message->type != WorkerMessageType::kSession) return {};
  return serve(settings, std::move(message).value(), daemon, **devices, *driver, window,
               std::move(closed));
}

}  // namespace

int run_worker(const Settings& settings, UniqueFd daemon, uint32_t window_index) {
  set_log_name("rcuda-worker");
  keep_log_apart();
  const Status status = work(settings, daemon.get(), window_index);
  if (!status.ok()) RCUDA_WARN("worker: %s", status.message().c_str());
  // The driver's threads are still there; its exit handlers have nothing to save.
  ::_exit(status.ok() ? 0 : 2);
}

}  // namespace rcuda::server
