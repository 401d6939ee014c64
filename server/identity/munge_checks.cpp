#include "server/identity/munge_checks.h"

#include <algorithm>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/mutex.h"
#include "common/base/start_thread.h"
#include "common/base/unique_fd.h"
#include "common/messages/handshake.h"

namespace rcuda::server {
namespace {

struct Request {
  uint64_t number = 0;
  std::string credential;
  tls::Key nonce{};
};

Result<MungeChecks::Outcome> check(const Request& request,
                                   const identity::munge::Settings& settings) {
  uint8_t nonce[32];
  std::copy(request.nonce.begin(), request.nonce.end(), nonce);
  const auto client = identity::munge::decode(request.credential, settings);
  if (!client.ok()) return Status(client.status()).with_context("its MUNGE credential");
  if (!wire::is_munge_payload(client->payload, wire::MungeSide::kClient, nonce)) {
    return Status(Code::kDenied,
                  "its MUNGE credential is for another connection: connect to the server itself, "
                  "not through something that ends the encryption");
  }
  auto answer = identity::munge::encode(wire::munge_payload(wire::MungeSide::kServer, nonce),
                                        client->uid, settings);
  if (!answer.ok()) return answer.status();
  return MungeChecks::Outcome{client->uid, std::move(answer).value()};
}

}  // namespace

struct MungeChecks::State {
  identity::munge::Settings settings;
  UniqueFd event;
  Mutex mutex;
  std::deque<Request> asked RCUDA_GUARDED_BY(mutex);
  // By number; without a result while it is being checked.
  std::map<uint64_t, std::optional<Result<Outcome>>> checks RCUDA_GUARDED_BY(mutex);
  uint64_t last RCUDA_GUARDED_BY(mutex) = 0;
  size_t threads RCUDA_GUARDED_BY(mutex) = 0;
};

MungeChecks::MungeChecks(identity::munge::Settings settings) : state_(std::make_shared<State>()) {
  state_->settings = std::move(settings);
  state_->event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

MungeChecks::~MungeChecks() {
  MutexLock lock(state_->mutex);
  state_->asked.clear();
}

Result<uint64_t> MungeChecks::begin(std::string credential, const tls::Key& nonce) {
  MutexLock lock(state_->mutex);
  if (state_->asked.size() >= kMostWaiting) {
    return Status(Code::kUnavailable, "too many clients wait for munged: try again");
  }
  if (state_->threads < kMostAtOnce) {
    std::thread thread;
    const Status started = start_thread(&thread, [state = state_] { work(state); });
    if (!started.ok() && state_->threads == 0) return started;
    if (started.ok()) {
      thread.detach();
      ++state_->threads;
    }
  }
  const uint64_t number = ++state_->last;
  state_->asked.push_back({number, std::move(credential), nonce});
  state_->checks[number];
  return number;
}

void MungeChecks::work(const std::shared_ptr<State>& state) {
  MutexLock lock(state->mutex);
  while (!state->asked.empty()) {
    const Request request = std::move(state->asked.front());
    state->asked.pop_front();
    lock.unlock();
    Result<Outcome> outcome = check(request, state->settings);
    lock.lock();
    const auto found = state->checks.find(request.number);
    if (found == state->checks.end()) continue;
    found->second = std::move(outcome);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(state->event.get(), &one, sizeof one);
  }
  --state->threads;
}

std::optional<Result<MungeChecks::Outcome>> MungeChecks::take(uint64_t number) {
  MutexLock lock(state_->mutex);
  const auto found = state_->checks.find(number);
  if (found == state_->checks.end() || !found->second) return std::nullopt;
  std::optional<Result<Outcome>> outcome = std::move(found->second);
  state_->checks.erase(found);
  return outcome;
}

void MungeChecks::forget(uint64_t number) {
  MutexLock lock(state_->mutex);
  state_->checks.erase(number);
  std::erase_if(state_->asked, [&](const Request& request) { return request.number == number; });
}

int MungeChecks::descriptor() const { return state_->event.get(); }

void MungeChecks::acknowledge() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(state_->event.get(), &count, sizeof count);
}

}  // namespace rcuda::server
