#include "tools/rcuda-p2p/live_plan.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>

#include "api/opcodes.h"
#include "client/pool/device_list.h"
#include "client/pool/pool_uuids.h"
#include "client/session/session.h"
#include "common/base/printable.h"
#include "common/base/random_bytes.h"
#include "common/base/units.h"
#include "common/cuda/status_of.h"
#include "common/wire/codec.h"
#include "common/wire/protocol.h"
#include "p2p/plan/plan.h"

namespace rcuda::tools {
namespace {

using client::Session;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = std::chrono::seconds(30);

client::Route route_in(Session& session) { return session.in_context(wire::primary_context_id(0)); }

std::string gpu_of(const Session& session) {
  return session.welcome().server + " " + session.welcome().devices.at(0).name;
}

Result<uint64_t> allocate(Session& session, uint64_t bytes) {
  wire::Encoder body(wire::kMaxBodyBytes);
  body.value(bytes);
  uint64_t address = 0;
  wire::Reply reply;
  CUresult result = session.call(route_in(session), {api::Opcode::cuMemAlloc_v2, body.body()},
                                 sizeof address, &reply);
  if (result == CUDA_SUCCESS && reply.body().size() < sizeof address) result = CUDA_ERROR_UNKNOWN;
  RCUDA_RETURN_IF_ERROR(
      status_of(result, "cannot allocate " + bytes_text(bytes) + " on " + gpu_of(session)));
  std::memcpy(&address, reply.body().data(), sizeof address);
  return address;
}

// Two sessions whose workers are introduced to each other for copies.
class Pair {
 public:
  static constexpr uint32_t kLink = 1;

  Status open(const LiveQuery& query, uint64_t most_bytes);
  std::string names() const { return gpu_of(*from_) + " to " + gpu_of(*to_); }
  // Waits until each worker has measured its own legs. kUnavailable if the workers cannot connect
  // to each other.
  Status wait_until_measured();

  struct Forecast {
    double predicted_us = 0;
    bool measured = false;
    std::string text;
    std::vector<LiveMethod> methods;
  };
  // Returns the source worker's forecast for a copy to the destination.
  Result<Forecast> forecast(uint64_t bytes) { return forecast(*from_, bytes); }
  Result<double> copy_us(uint64_t bytes);

 private:
  static Result<std::unique_ptr<Session>> open(const client::DeviceAddress& device,
                                               const client::SessionOptions& options);
  Status introduce(const client::DeviceAddress& to);
  static Result<Forecast> forecast(Session& session, uint64_t bytes);

  std::unique_ptr<Session> from_, to_;
  uint64_t source_ = 0, destination_ = 0;
  uint64_t copies_ = 0;
};

Status Pair::open(const LiveQuery& query, uint64_t most_bytes) {
  std::vector<client::DeviceAddress> devices;
  for (const std::string& text : {query.from, query.to}) {
    RCUDA_ASSIGN_OR_RETURN(devices.emplace_back(), client::parse_device(text));
  }
  RCUDA_RETURN_IF_ERROR(
      client::resolve_uuids(&devices, std::chrono::steady_clock::now() + kTimeout));
  const client::DeviceAddress &from = devices[0], &to = devices[1];
  wire::Credentials credentials;
  RCUDA_RETURN_IF_ERROR(credentials.registry.load_environment());
  client::SessionOptions options;
  options.credentials = &credentials;
  options.answer_timeout = kTimeout;
  RCUDA_ASSIGN_OR_RETURN(options.hello, client::make_hello());
  options.hello.program = "rcuda-p2p";
  options.hello.p2p_strategy = query.strategy;
  options.hello.p2p_path = query.path;
  options.hello.servers = 2;
  RCUDA_ASSIGN_OR_RETURN(from_, open(from, options));
  options.hello.taken = from_->welcome().windows;
  options.hello.worker = 1;
  RCUDA_ASSIGN_OR_RETURN(to_, open(to, options));
  RCUDA_RETURN_IF_ERROR(introduce(to));
  RCUDA_ASSIGN_OR_RETURN(source_, allocate(*from_, most_bytes));
  RCUDA_ASSIGN_OR_RETURN(destination_, allocate(*to_, most_bytes));
  return {};
}

Result<std::unique_ptr<Session>> Pair::open(const client::DeviceAddress& device,
                                            const client::SessionOptions& options) {
  return Session::open({device.medium, device.host, device.port, {device.gpu}, {0}}, options);
}

Status Pair::introduce(const client::DeviceAddress& to) {
  wire::PeerIntroduceBody body{};
  body.link = kLink;
  RCUDA_RETURN_IF_ERROR(fill_randomly(body.token));
  body.port = to.port;
  body.host_bytes = static_cast<uint16_t>(to.host.size());
  body.worker = 1;
  body.connects = 1;
  const auto host = std::as_bytes(std::span(to.host));
  RCUDA_RETURN_IF_ERROR(
      status_of(from_->post(route_in(*from_), {body, host}),
                "cannot introduce the destination's worker to the source's worker"));
  body.worker = 0;
  body.connects = 0;
  return status_of(to_->post(route_in(*to_), {body, host}),
                   "cannot introduce the source's worker to the destination's worker");
}

Result<Pair::Forecast> Pair::forecast(Session& session, uint64_t bytes) {
  wire::PeerPlanBody body{};
  body.bytes = bytes;
  body.link = kLink;
  wire::Reply reply;
  const CUresult result =
      session.call(route_in(session), body, wire::Channel::kMostReplyBytes, &reply);
  const std::span<const std::byte> answer = reply.body();
  wire::PeerPlanReply plan{};
  constexpr size_t kHead = sizeof plan - sizeof plan.header;
  if (answer.size() < kHead)
    return Status::from_cuda(result, "the worker sent no plan for a copy of " + bytes_text(bytes));
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
  if (result == CUDA_ERROR_NOT_READY) return forecast;
  RCUDA_RETURN_IF_ERROR(status_of(result, forecast.text));
  return forecast;
}

Status Pair::wait_until_measured() {
  const Clock::time_point deadline = Clock::now() + kTimeout;
  for (Session* const session : {from_.get(), to_.get()}) {
    while (true) {
      RCUDA_ASSIGN_OR_RETURN(const Forecast latest, forecast(*session, 1));
      if (latest.measured) break;
      if (Clock::now() > deadline)
        return {Code::kTimeout,
                "the servers did not measure the paths between the GPUs in time: " + latest.text};
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  return {};
}

Result<double> Pair::copy_us(uint64_t bytes) {
  wire::PeerCopyBody body{};
  const client::WaitWord word(to_->words());
  body.id = ++copies_;
  body.link = kLink;
  body.flags = wire::kPeerOutgoing;
  body.address = source_;
  body.width_bytes = bytes;
  body.height = body.depth = 1;
  const Clock::time_point begin = Clock::now();
  RCUDA_RETURN_IF_ERROR(
      status_of(from_->post(route_in(*from_), body), "cannot start a copy on the source's server"));
  body.flags = 0;
  body.address = destination_;
  body.word = word.get().index;
  body.sequence = word.get().sequence;
  RCUDA_RETURN_IF_ERROR(status_of(to_->post(route_in(*to_), body),
                                  "cannot start a copy on the destination's server"));
  // Polls: a sleeping thread would notice the end of the copy late.
  CUresult result = CUDA_SUCCESS;
  while (!to_->word_reached(word.get(), &result)) {
    if (Clock::now() > begin + kTimeout)
      return Status(Code::kTimeout, "a copy of " + bytes_text(bytes) +
                                        " did not end in time: see the logs of both servers");
  }
  RCUDA_RETURN_IF_ERROR(status_of(result, "a copy of " + bytes_text(bytes) + " failed"));
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
  std::fprintf(out, " %8s %8s  plan (*)\n", "measured", "GB/s");
}

}  // namespace

Status measure_copies(const LiveQuery& query, const std::function<void(const std::string&)>& begun,
                      const std::function<void(const LiveCopy&)>& copied) {
  if (query.sizes.empty())
    return {Code::kInvalidArgument, "--sizes names no copy size: write for example --sizes 64K,1M"};
  Pair pair;
  RCUDA_RETURN_IF_ERROR(
      pair.open(query, *std::max_element(query.sizes.begin(), query.sizes.end())));
  RCUDA_RETURN_IF_ERROR(pair.wait_until_measured());
  begun(pair.names());
  for (const uint64_t bytes : query.sizes) {
    // Takes the median, because the first copy takes longer: it waits for its plan.
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
    std::fprintf(out, "%10s", bytes_text(copy.bytes).c_str());
    for (const LiveMethod& method : copy.methods) {
      if (method.possible()) std::fprintf(out, "  %-28s", method.cost.c_str());
    }
    std::fprintf(out, " %8s %8.2f  %s\n", microseconds_text(copy.measured_us).c_str(), copy.gbps(),
                 copy.plan.c_str());
    std::fflush(out);
  };
  return measure_copies(query, begun, copied);
}

}  // namespace rcuda::tools
