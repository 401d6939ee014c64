// How a session begins and ends. It begins in these steps: connect to the server, request the
// devices, make the Link, start the services that use the Link.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <thread>

#include <unistd.h>

#include "api/command_hashes.h"
#include "client/pool/retries.h"
#include "client/session/reached_places.h"
#include "client/session/session.h"
#include "client/session/staging.h"
#include "client/trace/trace.h"
#include "common/base/host_name.h"
#include "common/base/host_port.h"
#include "common/base/log.h"
#include "common/base/random_bytes.h"
#include "common/base/units.h"
#include "common/base/usable_processors.h"
#include "common/reach/connect.h"
#include "common/reach/protocol_hash.h"

namespace rcuda::client {
namespace {

using Clock = std::chrono::steady_clock;
using Window = wire::ClientWindow;

// Returns how long a waiting thread spins before it sleeps. A local driver spins until the wait
// ends. Waking a thread whose core sleeps may take 100 us, which matters for waits of less than
// some milliseconds. With few cores, a spinning thread may keep the worker from running. With
// copies_by_cpu, it may also keep the threads that move the bytes from running: if threads spin for
// 1000 us instead of 50 us, copies to the device over TCP reach only 0.4 to 0.7 of their rate
// (H200, 16 cores).
std::chrono::nanoseconds spin_time(const transport::MediumTraits& medium) {
  const unsigned cores = usable_processors();
  if (cores < 4) return std::chrono::microseconds(3);
  if (medium.copies_by_cpu) return std::chrono::microseconds(50);
  return std::chrono::microseconds(cores < 8 ? 200 : 5000);
}

// Logs the program's place in the server's queue: at once, and again when the place has changed,
// but at most once in kPause.
class WaitReport {
 public:
  explicit WaitReport(std::string server) : server_(std::move(server)) {}
  void tell(const wire::Queued& queued) {
    const Clock::time_point now = Clock::now();
    if (queued.place == told_ || (told_ != 0 && now < told_at_ + kPause)) return;
    RCUDA_WARN("%s: waiting at place %u of the queue: %s", server_.c_str(), queued.place,
               queued.reason.c_str());
    told_ = queued.place;
    told_at_ = now;
  }

 private:
  static constexpr auto kPause = std::chrono::seconds(5);
  const std::string server_;
  uint32_t told_ = 0;  // the place that was last logged
  Clock::time_point told_at_{};
};

// Returns Hello::wait_ms: the time until the deadline, at least `least` ms; 0 without a deadline.
uint32_t wait_ms_until(const std::optional<Clock::time_point>& deadline, int64_t least) {
  if (!deadline) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
  return static_cast<uint32_t>(std::max<int64_t>(left.count(), least));
}

std::string address_of(const ServerDevices& server) {
  return host_and_port(server.host, server.port);
}

// Warns if the session waits less time for a lost connection than RCUDA_RECONNECT asks for.
void report_reconnecting(const std::string& session, std::string_view medium, uint32_t granted_ms,
                         uint32_t asked_ms) {
  const bool is_tcp = medium == "tcp";
  if (!is_tcp) granted_ms = 0;
  if (granted_ms >= asked_ms || medium == "shm") return;
  const auto text = [](uint32_t ms) { return time_text(std::chrono::milliseconds(ms)); };
  RCUDA_WARN("%s: RCUDA_RECONNECT asks for %s, but a lost connection ends the session%s%s",
             session.c_str(), text(asked_ms).c_str(),
             granted_ms == 0 ? "" : (" after " + text(granted_ms)).c_str(),
             is_tcp ? ": reconnect_timeout of the server allows no more"
                    : ": only sessions over tcp can reconnect (RCUDA_TRANSPORT=tcp)");
}

}  // namespace

Session::Session()
    : serial_([] {
        static std::atomic<uint64_t> sessions{0};
        return ++sessions;
      }()) {}

// The connection on which the client requests the session.
struct Session::Approach {
  wire::Connection connection;
  std::string why;  // the reason for the medium; empty: the user has chosen it
};

Result<wire::Hello> make_hello() {
  wire::Hello hello;
  hello.protocol_hash = wire::protocol_hash();
  hello.commands.assign(api::command_hashes().begin(), api::command_hashes().end());
  hello.pid = static_cast<uint32_t>(::getpid());
  hello.uid = ::getuid();
  hello.host = host_name();
  hello.program = program_invocation_short_name;
  // USER is often unset in a container. The name is then not looked up, because a lookup may need
  // the network.
  const char* user = ::secure_getenv("USER");
  hello.user = user && *user ? user : "uid " + std::to_string(hello.uid);
  RCUDA_RETURN_IF_ERROR(fill_randomly(hello.session));
  return hello;
}

// Connects to the server. Over a network, identifies the user, and then chooses the best medium
// unless the user has named a medium.
Result<Session::Approach> Session::reach(const ServerDevices& server, const SessionOptions& options,
                                         const wire::Credentials& credentials) {
  const transport::Medium* const wanted = server.medium ? server.medium : options.medium;
  RCUDA_ASSIGN_OR_RETURN(wire::Connection connection,
                         wire::connect_server(server.host, server.port, wanted,
                                              options.connect_timeout, credentials.trusted.get()));
  Approach approach{std::move(connection), wanted ? "" : "the server is on this machine"};
  if (approach.connection.medium->traits.reach != transport::Reach::kNetwork) return approach;
  RCUDA_RETURN_IF_ERROR(wire::identify(&approach.connection, server.host, server.port, credentials,
                                       Clock::now() + options.answer_timeout)
                            .with_context(address_of(server)));
  if (wanted) return approach;
  approach.why = wire::choose_medium(&approach.connection);
  if (approach.why.empty()) approach.why = "both ends support it";
  return approach;
}

Status Session::connect(const ServerDevices& server, const SessionOptions& options,
                        uint32_t wait_ms) {
  const std::string address = address_of(server);
  const wire::Credentials defaults;
  const wire::Credentials& credentials = options.credentials ? *options.credentials : defaults;
  RCUDA_ASSIGN_OR_RETURN(Approach approach, reach(server, options, credentials));
  server_ = server;
  index_ = options.hello.worker;
  synchronous_ = options.synchronous;
  wake_wait_ = options.wake_wait;
  encrypted_ = approach.connection.key.has_value();
  must_encrypt_ = approach.connection.must_encrypt;

  wire::Hello hello = options.hello;
  hello.devices = server.gpus;
  hello.wait_ms = wait_ms;
  RCUDA_RETURN_IF_ERROR(wire::present_lease(server.host, server.port, credentials,
                                            approach.connection.binding, &hello));
  WaitReport report(address);
  const auto waits = [&](const wire::Queued& queued) {
    report.tell(queued);
    if (options.while_waiting) options.while_waiting();
  };
  Result<wire::Welcome> answer =
      wire::request_session(&approach.connection, hello, options.answer_timeout, waits)
          .with_context(address);
  has_worker_ = approach.connection.has_worker;
  RCUDA_ASSIGN_OR_RETURN(wire::Welcome welcome, std::move(answer));
  if (!welcome.fell_back.empty()) approach.why = "the server: " + welcome.fell_back;
  RCUDA_RETURN_IF_ERROR(keep_welcome(std::move(welcome), hello.taken));
  return link_up(std::move(approach), options);
}

// Checks and stores the worker's Welcome.
Status Session::keep_welcome(wire::Welcome welcome, const std::vector<wire::AddressWindow>& taken) {
  welcome_ = std::move(welcome);
  const std::string address = address_of(server_);
  if (welcome_.devices.size() != server_.gpus.size()) {
    return Status(Code::kProtocol, address + " granted " + std::to_string(welcome_.devices.size()) +
                                       " devices, but " + std::to_string(server_.gpus.size()) +
                                       " were requested");
  }
  RCUDA_RETURN_IF_ERROR(lacking_.set(welcome_.lacking).with_context(address));
  if (!welcome_.lacking.empty()) {
    RCUDA_INFO(
        "%s runs another build of rcuda, which does not support %zu commands of this build: "
        "calls that need them return CUDA_ERROR_NOT_SUPPORTED",
        address.c_str(), welcome_.lacking.size());
  }
  RCUDA_RETURN_IF_ERROR(windows_.reserve(welcome_.windows, taken).with_context(address));
  if (!windows_.are_reserved()) {
    // No warning: a program under such a limit maps so little memory that its mappings do not reach
    // the windows.
    RCUDA_INFO(
        "cannot reserve the device addresses of %s: the address space is limited (ulimit -v); the "
        "session works without the reservation",
        address.c_str());
  }
  return {};
}

Status Session::link_up(Approach approach, const SessionOptions& options) {
  const std::string address = address_of(server_);
  const std::string medium = approach.connection.medium->name();
  name_ = address + " over " + medium;
  transport::LinkOptions link_options = options.link;
  link_options.window_bytes = Window::kBytes;
  link_options.answers = Window::kAnswers;
  reconnect_ms_ = std::min(welcome_.reconnect_ms, options.hello.reconnect_ms);
  link_options.remedy_for_silence =
      options.hello.reconnect_ms == 0
          ? "; with RCUDA_RECONNECT=5m a program survives a lost connection"
          : "; the session cannot survive a lost connection: the server's reconnect_timeout is 0";
  RCUDA_ASSIGN_OR_RETURN(
      link_, wire::link_to_worker(std::move(approach.connection), welcome_.token, link_options,
                                  {options.handshake_timeout, options.connect_timeout,
                                   std::chrono::milliseconds(reconnect_ms_), address})
                 .with_context(name_));
  link_->on_immediate(
      [this](uint32_t immediate, uint64_t bytes) { arrivals_.arrived(immediate, bytes); });
  traits_ = link_->traits();
  name_ = address + " over " + traits_.name;
  // If the Link fell back to another medium, it has logged the reason.
  if (!approach.why.empty() && medium == traits_.name) {
    RCUDA_INFO("%s: %s", name_.c_str(), approach.why.c_str());
  }
  report_reconnecting(name_, traits_.name, welcome_.reconnect_ms, options.hello.reconnect_ms);
  if (link_->peer_window_bytes() < wire::WorkerWindow::kBytes ||
      link_->window().size() < Window::kBytes) {
    return Status(Code::kProtocol,
                  name_ + ": the connection has windows of " +
                      std::to_string(link_->peer_window_bytes()) + " (worker) and " +
                      std::to_string(link_->window().size()) +
                      " bytes (client), which are too small: install the same build of rcuda on "
                      "both sides");
  }
  channel_.emplace(*link_, spin_time(traits_));
  return {};
}

// Within RCUDA_WAIT, also waits for a server that starts, restarts or drains. Once the server has
// assigned a worker, a failure is final: it would repeat, and each attempt would use up a worker.
Result<std::unique_ptr<Session>> Session::open(const ServerDevices& server,
                                               const SessionOptions& options) {
  Retries retries(options.wait_until.value_or(Clock::time_point()));
  // The first attempt waits at least 1 ms in the server's queue, even if earlier servers have used
  // up the time. The last attempt does not wait, so the server reports why it refuses the session.
  for (int64_t least_ms = 1;; least_ms = 0) {
    std::unique_ptr<Session> session(new Session);
    const Status status =
        session->connect(server, options, wait_ms_until(options.wait_until, least_ms));
    if (status.ok()) return begin(std::move(session), options);
    if (session->has_worker_ || !retries.again(status, options.while_waiting)) return status;
  }
}

Result<std::unique_ptr<Session>> Session::begin(std::unique_ptr<Session> session,
                                                const SessionOptions& options) {
  session->events_ = std::make_unique<WorkerEvents>(*session->link_);
  session->events_->set_mirror_hooks(
      [raw = session.get()](uint64_t loan) { raw->mirrors_.host_function_arrived(loan); },
      [raw = session.get()](uint64_t loan) { raw->mirrors_.host_function_leaves(loan); });
  session->events_->set_notice_sink([raw = session.get()](bool ends, const std::string& text) {
    if (ends) {
      (void)raw->lose(Status(Code::kUnavailable, text));
    } else {
      RCUDA_WARN("%s: %s", raw->name_.c_str(), text.c_str());
    }
  });
  session->events_->set_loss_sink(
      [raw = session.get()](const Status& why) { (void)raw->lose(why); });
  RCUDA_RETURN_IF_ERROR(session->events_->start().with_context(session->name_));
  RCUDA_ASSIGN_OR_RETURN(const wire::ReadyEvent ready,
                         session->events_->ready(Clock::now() + options.handshake_timeout)
                             .with_context(session->name_));
  RCUDA_ASSIGN_OR_RETURN(session->staging_,
                         Staging::open(*session, ready).with_context(session->name_));
  session->reached_places_ = std::make_unique<ReachedPlaces>(*session);
  RCUDA_RETURN_IF_ERROR(session->channel_->map_marks(ready).with_context(session->name_));
  if (trace::on()) session->trace();
  session->state_.move(SessionEvent::kReady, session->name_);
  RCUDA_INFO("connected to %s: %zu device(s), driver %u, worker process %u", session->name_.c_str(),
             session->server_.gpus.size(), session->welcome_.driver_version,
             session->welcome_.worker_pid);
  return session;
}

// Adds the worker's reports to the trace. The pings measure the difference of the clocks.
void Session::trace() {
  constexpr int kRoundTrips = 16;
  trace_ = trace::add_server(name_, welcome_.worker_pid,
                             traits_.reach == transport::Reach::kThisMachine);
  events_->set_trace_sink([index = trace_](std::span<const wire::TraceEvent> events) {
    trace::server_events(index, events);
  });
  for (int i = 0; i < kRoundTrips; ++i) {
    (void)call(in_context(0), wire::PingBody{});
  }
}

// ---- the end -----------------------------------------------------------------------------------

// Waits at most kPatience for the last reports, which the worker sends when it is idle. A worker
// that hangs never sends them.
void Session::await_trace() {
  constexpr auto kPatience = std::chrono::seconds(1);
  const uint64_t last = channel_->commands();
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (!lost() && !trace::reported(trace_, last) && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Session::abandon() noexcept { link_->abandon(); }

void Session::keep_alive() { (void)post(in_context(0), wire::PingBody{}); }

void Session::end() {
  if (lost()) return;
  if (trace::on()) await_trace();
  if (!state_.move(SessionEvent::kEnd, name_)) return;
  events_->forget_callbacks();
  // Send no SessionEnd while the connection is lost: it would wait for the next connection.
  if (!link_->is_connected()) return link_->close();
  SentCommand sent;
  (void)send({}, nullptr, wire::SessionEndBody{}, transport::Wake::kNow, &sent);
  if (sent.is_sent()) link_->close();
}

Session::~Session() {
  reached_places_.reset();
  events_.reset();
  staging_.reset();
}

}  // namespace rcuda::client
