#include "tools/rcuda-p2p/live_plan.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include <sys/random.h>
#include <unistd.h>

#include "api/command_hashes.h"
#include "api/opcodes.h"
#include "client/pool/device_list.h"
#include "common/base/host_name.h"
#include "common/base/printable.h"
#include "common/messages/handshake.h"
#include "common/reach/connect.h"
#include "common/reach/identify.h"
#include "common/reach/protocol_hash.h"
#include "common/transport/link.h"
#include "common/wire/address_window.h"
#include "common/wire/channel.h"
#include "common/wire/codec.h"
#include "common/wire/protocol.h"
#include "p2p/plan/plan.h"

namespace rcuda::tools {
namespace {

using Clock = std::chrono::steady_clock;
using Window = wire::ClientWindow;

constexpr auto kTimeout = std::chrono::seconds(30);
constexpr auto kSpin = std::chrono::milliseconds(50);  // a thread that wakes up is late
constexpr uint32_t kCuSuccess = 0, kCuNotReady = 600;

// A session with one worker.
class Worker {
 public:
  static Result<std::unique_ptr<Worker>> open(const client::DeviceAddress& address,
                                              wire::Hello hello);

  const std::vector<wire::AddressWindow>& windows() const { return welcome_.windows; }
  std::string gpu() const { return welcome_.server + " " + welcome_.devices.at(0).name; }

  Status post(const wire::Command& command) { return channel_->send(kHeader, command); }
  // *result: the driver's.
  Status call(const wire::Command& command, uint32_t* result, wire::Reply* reply) {
    return channel_->call(kHeader, command, wire::Channel::kMostReplyBytes, result, reply);
  }
  Result<uint64_t> allocate(uint64_t bytes);
  Status wait_for_copy(const wire::Word& word);

 private:
  static constexpr wire::CommandHeader kHeader{.context = wire::primary_context_id(0), .thread = 1};

  wire::Welcome welcome_;
  std::unique_ptr<transport::Link> link_;
  std::optional<wire::Channel> channel_;
};

Result<std::unique_ptr<Worker>> Worker::open(const client::DeviceAddress& address,
                                             wire::Hello hello) {
  const Clock::time_point deadline = Clock::now() + kTimeout;
  wire::Credentials credentials;
  RCUDA_RETURN_IF_ERROR(credentials.registry.load_environment());
  RCUDA_ASSIGN_OR_RETURN(wire::Connection connection,
                         wire::connect_server(address.host, address.port, address.medium,
                                              std::chrono::seconds(5), credentials.trusted.get()));
  const transport::Medium& medium = *connection.medium;
  hello.devices = {address.gpu};
  if (medium.traits.reach == transport::Reach::kNetwork) {
    RCUDA_RETURN_IF_ERROR(
        wire::identify(&connection, address.host, address.port, credentials, deadline)
            .with_context(address.host));
  }
  RCUDA_RETURN_IF_ERROR(wire::present_lease(address.host, address.port, credentials, &hello));
  Result<wire::Welcome> welcome = wire::request_session(&connection, hello, kTimeout);
  if (!welcome) return Status(welcome.status()).with_context(address.host);
  auto worker = std::make_unique<Worker>();
  worker->welcome_ = *std::move(welcome);
  if (worker->welcome_.devices.empty()) return Status(Code::kProtocol, "the worker has no devices");

  transport::LinkOptions options;
  options.window_bytes = Window::kBytes;
  RCUDA_ASSIGN_OR_RETURN(
      auto link, wire::link_to_worker(std::move(connection), worker->welcome_.token, options,
                                      {kTimeout, kTimeout}));
  worker->link_ = std::move(link);
  worker->channel_.emplace(*worker->link_, kSpin, kTimeout);
  return worker;
}

Result<uint64_t> Worker::allocate(uint64_t bytes) {
  wire::Encoder body(wire::kMaxBodyBytes);
  body.value(bytes);
  uint32_t result = 0;
  wire::Reply reply;
  RCUDA_RETURN_IF_ERROR(call({api::Opcode::cuMemAlloc_v2, body.body()}, &result, &reply));
  uint64_t address = 0;
  if (result != kCuSuccess || reply.body().size() < sizeof address) {
    return Status::from_cuda(static_cast<int>(result),
                             "allocating " + p2p::bytes_text(bytes) + " on " + gpu());
  }
  std::memcpy(&address, reply.body().data(), sizeof address);
  return address;
}

Status Worker::wait_for_copy(const wire::Word& word) {
  uint32_t result = 0;
  RCUDA_RETURN_IF_ERROR(channel_->wait_word(word, &result));
  return result == kCuSuccess ? Status() : Status::from_cuda(static_cast<int>(result), "the copy");
}

// Two workers, introduced to each other.
class Pair {
 public:
  static constexpr uint32_t kLink = 1;

  Status open(const LiveQuery& query, uint64_t most_bytes);
  std::string names() const { return from_->gpu() + " to " + to_->gpu(); }
  // Waits until all legs are measured; each worker has its own. kUnavailable if the two cannot
  // connect.
  Status wait_until_measured();

  struct Forecast {
    double predicted_us = 0;
    bool measured = false;
    std::string text;
    std::vector<LiveMethod> methods;
  };
  // The forecast for copies to the destination's worker.
  Result<Forecast> forecast(uint64_t bytes) { return forecast(*from_, bytes); }
  Result<double> copy_us(uint64_t bytes);

 private:
  Status introduce(const client::DeviceAddress& to);
  static Result<Forecast> forecast(Worker& worker, uint64_t bytes);

  std::unique_ptr<Worker> from_, to_;
  uint64_t source_ = 0, destination_ = 0;
  uint64_t copies_ = 0;
};

Status Pair::open(const LiveQuery& query, uint64_t most_bytes) {
  RCUDA_ASSIGN_OR_RETURN(const auto from, client::parse_device(query.from));
  RCUDA_ASSIGN_OR_RETURN(const auto to, client::parse_device(query.to));
  wire::Hello hello;
  hello.protocol_hash = wire::protocol_hash();
  hello.commands.assign(api::command_hashes().begin(), api::command_hashes().end());
  hello.pid = static_cast<uint32_t>(::getpid());
  hello.uid = ::getuid();
  hello.host = host_name();
  hello.program = "rcuda-p2p";
  hello.p2p_strategy = query.strategy;
  hello.p2p_path = query.path;
  if (::getrandom(hello.session, sizeof hello.session, 0) != sizeof hello.session) {
    return Status::from_errno(errno, "getrandom");
  }
  hello.servers = 2;
  RCUDA_ASSIGN_OR_RETURN(auto source, Worker::open(from, hello));
  from_ = std::move(source);
  hello.taken = from_->windows();
  hello.worker = 1;
  RCUDA_ASSIGN_OR_RETURN(auto destination, Worker::open(to, hello));
  to_ = std::move(destination);
  RCUDA_RETURN_IF_ERROR(introduce(to));
  for (const auto& [worker, address] :
       {std::pair(from_.get(), &source_), std::pair(to_.get(), &destination_)}) {
    RCUDA_ASSIGN_OR_RETURN(const uint64_t memory, worker->allocate(most_bytes));
    *address = memory;
  }
  return {};
}

Status Pair::introduce(const client::DeviceAddress& to) {
  wire::PeerIntroduceBody body{};
  body.link = kLink;
  if (::getrandom(body.token, sizeof body.token, 0) != sizeof body.token) {
    return Status::from_errno(errno, "getrandom");
  }
  body.port = to.port;
  body.host_bytes = static_cast<uint16_t>(to.host.size());
  body.worker = 1;
  body.connects = 1;
  const auto host = std::as_bytes(std::span(to.host));
  RCUDA_RETURN_IF_ERROR(from_->post({body, host}));
  body.worker = 0;
  body.connects = 0;
  return to_->post({body, host});
}

Result<Pair::Forecast> Pair::forecast(Worker& worker, uint64_t bytes) {
  wire::PeerPlanBody body{};
  body.bytes = bytes;
  body.link = kLink;
  uint32_t result = 0;
  wire::Reply reply;
  RCUDA_RETURN_IF_ERROR(worker.call(body, &result, &reply));
  const std::span<const std::byte> answer = reply.body();
  wire::PeerPlanReply plan{};
  constexpr size_t kHead = sizeof plan - sizeof plan.header;
  if (answer.size() < kHead) {
    return Status::from_cuda(static_cast<int>(result), "requesting a plan");
  }
  std::memcpy(reinterpret_cast<std::byte*>(&plan) + sizeof plan.header, answer.data(), kHead);
  Forecast forecast{plan.predicted_us, plan.measured != 0, {}, {}};
  const size_t text = std::min<size_t>(plan.text_bytes, answer.size() - kHead);
  std::istringstream lines(std::string(reinterpret_cast<const char*>(answer.data() + kHead), text));
  std::string line;
  std::getline(lines, line);
  forecast.text = printable(line);
  while (std::getline(lines, line)) {
    const size_t tab = std::min(line.find('\t'), line.size() - 1);
    forecast.methods.push_back({printable(line.substr(0, tab)), printable(line.substr(tab + 1))});
  }
  if (result != kCuSuccess && result != kCuNotReady) {
    return Status::from_cuda(static_cast<int>(result), forecast.text);
  }
  return forecast;
}

Status Pair::wait_until_measured() {
  const Clock::time_point deadline = Clock::now() + kTimeout;
  for (Worker* const worker : {from_.get(), to_.get()}) {
    while (true) {
      const auto now = forecast(*worker, 1);
      if (!now) return now.status();
      if (now->measured) break;
      if (Clock::now() > deadline) return {Code::kTimeout, "not measured in time: " + now->text};
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  return {};
}

Result<double> Pair::copy_us(uint64_t bytes) {
  wire::PeerCopyBody body{};
  body.id = ++copies_;
  body.link = kLink;
  body.flags = wire::kPeerOutgoing;
  body.address = source_;
  body.width_bytes = bytes;
  body.height = body.depth = 1;
  const Clock::time_point begin = Clock::now();
  RCUDA_RETURN_IF_ERROR(from_->post(body));
  body.flags = 0;
  body.address = destination_;
  body.sequence = copies_;
  RCUDA_RETURN_IF_ERROR(to_->post(body));
  RCUDA_RETURN_IF_ERROR(to_->wait_for_copy({0, copies_}));
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

void print_heading(const std::vector<LiveMethod>& methods, std::FILE* out) {
  for (const LiveMethod& method : methods) {
    if (!method.possible()) {
      std::fprintf(out, "%23s  %s\n", method.name.c_str(), method.cost.c_str());
    }
  }
  std::fprintf(out, "%10s", "size");
  for (const LiveMethod& method : methods) {
    if (method.possible()) std::fprintf(out, "  %-28s", method.name.c_str());
  }
  std::fprintf(out, " %11s %8s  plan (*)\n", "measured us", "GB/s");
}

}  // namespace

Status measure_copies(const LiveQuery& query, const std::function<void(const std::string&)>& begun,
                      const std::function<void(const LiveCopy&)>& copied) {
  if (query.sizes.empty()) return {Code::kInvalidArgument, "no sizes"};
  Pair pair;
  RCUDA_RETURN_IF_ERROR(
      pair.open(query, *std::max_element(query.sizes.begin(), query.sizes.end())));
  RCUDA_RETURN_IF_ERROR(pair.wait_until_measured());
  begun(pair.names());
  for (const uint64_t bytes : query.sizes) {
    // During the first copies, the planner makes and corrects its plans for this size.
    constexpr int kCopies = 11;
    std::vector<double> times;
    for (int i = 0; i < kCopies; ++i) {
      RCUDA_ASSIGN_OR_RETURN(const double us, pair.copy_us(bytes));
      times.push_back(us);
    }
    std::nth_element(times.begin(), times.begin() + kCopies / 2, times.end());
    RCUDA_ASSIGN_OR_RETURN(const auto forecast, pair.forecast(bytes));
    copied({bytes, forecast.predicted_us, times[kCopies / 2], forecast.text, forecast.methods});
  }
  return {};
}

Status print_live_plan(const LiveQuery& query, std::FILE* out) {
  const auto begun = [&](const std::string& names) { std::fprintf(out, "%s\n", names.c_str()); };
  bool headed = false;
  const auto copied = [&](const LiveCopy& copy) {
    if (!std::exchange(headed, true)) print_heading(copy.methods, out);
    std::fprintf(out, "%10s", p2p::bytes_text(copy.bytes).c_str());
    for (const LiveMethod& method : copy.methods) {
      if (method.possible()) std::fprintf(out, "  %-28s", method.cost.c_str());
    }
    std::fprintf(out, " %11.1f %8.2f  %s\n", copy.measured_us, copy.gbps(), copy.plan.c_str());
    std::fflush(out);
  };
  return measure_copies(query, begun, copied);
}

}  // namespace rcuda::tools
