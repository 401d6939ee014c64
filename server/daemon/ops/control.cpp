#include "server/daemon/ops/control.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <signal.h>

#include "common/base/list_text.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace rcuda::server {
namespace {

bool concerns_session(wire::ControlOperation operation) {
  using Operation = wire::ControlOperation;
  return operation == Operation::kEnd || operation == Operation::kPark ||
         operation == Operation::kWake;
}

}  // namespace

Result<wire::ControlAnswer> Control::handle(const std::vector<std::byte>& body,
                                            const Identity& who) {
  RCUDA_ASSIGN_OR_RETURN(const wire::ControlRequest request,
                         wire::decode<wire::ControlRequest>(body));
  const bool is_operator = authenticator_.is_operator(who);
  std::string text;
  if (concerns_session(request.operation)) {
    RCUDA_RETURN_IF_ERROR(handle_session(request, who));
  } else if (!is_operator) {
    return authenticator_.not_operator(who,
                                       "drain this server, reload its settings or move sessions");
  } else if (request.operation == wire::ControlOperation::kMove) {
    RCUDA_ASSIGN_OR_RETURN(const uint32_t gpu, move_session(request, who));
    text = "the session of worker " + std::to_string(request.worker_pid) + " wakes on GPU " +
           std::to_string(gpu) + " at its next call";
  } else if (request.operation == wire::ControlOperation::kDrain && request.from) {
    RCUDA_RETURN_IF_ERROR(drain_gpu(*request.from, who));
  } else if (request.operation == wire::ControlOperation::kResume) {
    RCUDA_RETURN_IF_ERROR(resume(who));
  } else if (request.operation == wire::ControlOperation::kReload) {
    RCUDA_ASSIGN_OR_RETURN(text, reload_.run(who));
  } else if (request.operation != wire::ControlOperation::kAsk) {
    RCUDA_RETURN_IF_ERROR(set_draining(true, who, "as " + who.user + " requested"));
  }
  return wire::ControlAnswer{static_cast<uint32_t>(pool_.sessions()), std::move(text), draining_};
}

Status Control::handle_session(const wire::ControlRequest& request, const Identity& who) {
  const bool is_operator = authenticator_.is_operator(who);
  const auto mine = [&](const Identity& owner) { return is_operator || same_user(owner, who); };
  Status done;
  const char* what = "end";
  if (request.operation == wire::ControlOperation::kPark) {
    what = "park";
    done = pool_.park_session(request.worker_pid, mine, who);
  } else if (request.operation == wire::ControlOperation::kWake) {
    what = "wake";
    done = pool_.wake_session(request.worker_pid, mine, who);
  } else {
    done = pool_.end_session(request.worker_pid, mine, who.user + " ended the session");
    if (done.ok()) audit_.control("end", who, request.worker_pid);
  }
  if (done.code() == Code::kNotFound && !is_operator) {
    done = {Code::kNotFound,
            done.context() + "; only operators may " + what + " sessions of other users"};
  }
  return done;
}

Result<uint32_t> Control::move_session(const wire::ControlRequest& request, const Identity& who) {
  if (request.to) {
    RCUDA_RETURN_IF_ERROR(check_draining({*request.to}));
    RCUDA_RETURN_IF_ERROR(admission_.check_devices({*request.to}, ""));
  }
  const auto may_take = [&](uint32_t gpu) {
    return !drained_.contains(gpu) && admission_.check_devices({gpu}, "").ok();
  };
  return pool_.move_session(request.worker_pid, request.from, request.to, may_take, who);
}

Status Control::drain_gpu(uint32_t gpu, const Identity& by) {
  const std::vector<uint32_t> offered = pool_.offer().ordinals();
  if (!offered.empty() && std::ranges::find(offered, gpu) == offered.end()) {
    return {Code::kInvalidArgument, "the server does not offer GPU " + std::to_string(gpu) +
                                        ": it offers " + list_of(offered)};
  }
  if (!drained_.insert(gpu).second) return {};
  audit_.control("drain", by, {});
  RCUDA_INFO("GPU %u drains, as %s requested: no new sessions", gpu, by.user.c_str());
  return {};
}

// Ends the drain of the server and of its GPUs.
Status Control::resume(const Identity& by) {
  RCUDA_RETURN_IF_ERROR(set_draining(false, by, "as " + by.user + " requested"));
  if (drained_.empty()) return {};
  audit_.control("resume", by, {});
  RCUDA_INFO("the drain of GPU %s has ended, as %s requested",
             list_of(std::vector<uint32_t>(drained_.begin(), drained_.end())).c_str(),
             by.user.c_str());
  drained_.clear();
  return {};
}

Status Control::set_draining(bool draining, const std::optional<Identity>& by,
                             const std::string& why) {
  if (!draining && drain_until_) {
    return Status(Code::kUnavailable,
                  "this server is stopping because of a signal and cannot be resumed: start it "
                  "again when it has ended");
  }
  const bool changes = std::exchange(draining_, draining) != draining;
  if (changes || !by) audit_.control(draining ? "drain" : "resume", by, {});
  if (!changes) return {};
  if (draining) {
    RCUDA_INFO("draining, %s: no new sessions; %zu in progress", why.c_str(), pool_.sessions());
  } else {
    RCUDA_INFO("no longer draining, %s", why.c_str());
  }
  return {};
}

void Control::report(wire::ServerStatus* status) const {
  status->draining = draining_;
  for (auto& device : status->devices) device.draining = drained_.contains(device.ordinal);
}

Status Control::check_draining(const std::vector<uint32_t>& devices) const {
  const auto drained =
      std::ranges::find_if(devices, [this](uint32_t device) { return drained_.contains(device); });
  if (!draining_ && drained != devices.end()) {
    return {Code::kUnavailable,
            "GPU " + std::to_string(*drained) +
                " of the server is draining: name another GPU, or let an operator run rcuda-smi "
                "resume; RCUDA_WAIT=10m waits for the server"};
  }
  if (!draining_) return {};
  return Status(Code::kUnavailable,
                std::string("the server is draining: it takes no new sessions and stops when the "
                            "last session has ended; name another server") +
                    (drain_until_ ? "" : ", or let an operator run rcuda-smi resume") +
                    "; RCUDA_WAIT=10m waits for the server");
}

bool Control::take_signal(int number) {
  if (number == SIGHUP) {
    (void)reload_.run({});  // logs its errors
    return true;
  }
  signal_ = number;
  if (settings_.drain_timeout.get().count() == 0 || drain_until_) return false;
  const auto most = std::chrono::ceil<std::chrono::seconds>(settings_.drain_timeout.get());
  drain_until_ = Clock::now() + most;
  const std::string why =
      "after signal " + std::to_string(number) + ", for at most " + time_text(most);
  if (draining_) RCUDA_INFO("still draining, %s", why.c_str());
  return set_draining(true, {}, why).ok();
}

std::string Control::why_stopped() const {
  if (signal_ == 0) return "the server was drained";
  const char* const name = ::sigabbrev_np(signal_);
  const std::string by = name ? std::string("SIG") + name : "signal " + std::to_string(signal_);
  if (!drain_until_ || Clock::now() < *drain_until_) return "the server was stopped (" + by + ")";
  return "the server was drained (" + by + "), and its drain timeout is over";
}

void Control::carry(CarriedState* state) const {
  state->draining = draining_;
  state->signal = signal_;
  state->drained.assign(drained_.begin(), drained_.end());
  if (drain_until_) {
    state->drain_until = std::chrono::nanoseconds(drain_until_->time_since_epoch()).count();
  }
}

void Control::restore(const CarriedState& state) {
  draining_ = state.draining;
  signal_ = state.signal;
  drained_.insert(state.drained.begin(), state.drained.end());
  if (state.drain_until) {
    drain_until_ = Clock::time_point(std::chrono::nanoseconds(*state.drain_until));
  }
}

bool Control::may_stop() const {
  return draining_ && (pool_.sessions() == 0 || (drain_until_ && Clock::now() >= *drain_until_));
}

}  // namespace rcuda::server
