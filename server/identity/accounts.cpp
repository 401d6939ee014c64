#include "server/identity/accounts.h"

#include <cerrno>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include <grp.h>
#include <pwd.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/mutex.h"
#include "common/base/start_thread.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {
namespace {

constexpr auto kKeepAccount = std::chrono::minutes(1);
constexpr auto kKeepError = std::chrono::seconds(10);
constexpr int kMostGroups = 65536;  // of the kernel, for one process

std::string text_of(const AccountKey& key) {
  const uid_t* uid = std::get_if<uid_t>(&key);
  return uid ? "uid " + std::to_string(*uid) : "user " + std::get<std::string>(key);
}

}  // namespace

Result<Account> look_up_account(const AccountKey& key) {
  std::vector<char> text(16u << 10);
  passwd entry{};
  passwd* found = nullptr;
  int error = 0;
  for (;;) {
    const uid_t* uid = std::get_if<uid_t>(&key);
    error = uid ? ::getpwuid_r(*uid, &entry, text.data(), text.size(), &found)
                : ::getpwnam_r(std::get<std::string>(key).c_str(), &entry, text.data(), text.size(),
                               &found);
    if (error == EINTR) continue;
    if (error != ERANGE || text.size() > (1u << 20)) break;
    text.resize(2 * text.size());
  }
  // Some name services report an unknown user as one of these errors.
  const bool unknown = error == ENOENT || error == ESRCH || error == EBADF || error == EPERM;
  if (!found && (error == 0 || unknown)) {
    return Status(Code::kNotFound, "the server's machine knows no " + text_of(key));
  }
  if (!found) return Status::from_errno(error, "looking up " + text_of(key));

  Account account{entry.pw_uid, entry.pw_gid, entry.pw_name, {}};
  int count = 64;
  do {
    account.groups.resize(static_cast<size_t>(count));
  } while (::getgrouplist(entry.pw_name, entry.pw_gid, account.groups.data(), &count) < 0 &&
           count <= kMostGroups);
  account.groups.resize(static_cast<size_t>(std::min(count, kMostGroups)));
  return account;
}

struct Accounts::State {
  struct Answer {
    std::optional<Result<Account>> result;  // none: asked for
    Clock::time_point until;
  };

  LookUp look_up;
  UniqueFd event;
  Mutex mutex;
  std::map<AccountKey, Answer> answers RCUDA_GUARDED_BY(mutex);
  std::deque<AccountKey> asked RCUDA_GUARDED_BY(mutex);
  size_t threads RCUDA_GUARDED_BY(mutex) = 0;
};

Accounts::Accounts(LookUp look_up) : state_(std::make_shared<State>()) {
  state_->look_up = std::move(look_up);
  state_->event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

Accounts::~Accounts() {
  MutexLock lock(state_->mutex);
  state_->asked.clear();
}

std::optional<Result<Account>> Accounts::find(const AccountKey& key, Clock::time_point now) {
  MutexLock lock(state_->mutex);
  auto& answers = state_->answers;
  auto known = answers.find(key);
  if (known != answers.end() && !known->second.result) return std::nullopt;
  if (known != answers.end() && now < known->second.until) return known->second.result;
  if (answers.size() >= kMostKept) {
    std::erase_if(answers, [](const auto& entry) { return entry.second.result.has_value(); });
  }
  answers.insert_or_assign(key, State::Answer{});
  state_->asked.push_back(key);
  if (state_->threads >= kMostAtOnce) return std::nullopt;
  std::thread thread;
  if (Status status = start_thread(&thread, [state = state_] { work(state); }); !status.ok()) {
    if (state_->threads > 0) return std::nullopt;
    state_->asked.clear();
    answers.erase(key);
    return Result<Account>(std::move(status).with_context("looking up " + text_of(key)));
  }
  thread.detach();
  ++state_->threads;
  return std::nullopt;
}

void Accounts::work(const std::shared_ptr<State>& state) {
  MutexLock lock(state->mutex);
  while (!state->asked.empty()) {
    const AccountKey key = std::move(state->asked.front());
    state->asked.pop_front();
    lock.unlock();
    Result<Account> result = state->look_up(key);
    lock.lock();
    const auto until = Clock::now() + (result.ok() ? Clock::duration(kKeepAccount) : kKeepError);
    state->answers.insert_or_assign(key, State::Answer{std::move(result), until});
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(state->event.get(), &one, sizeof one);
  }
  --state->threads;
}

int Accounts::descriptor() const { return state_->event.get(); }

void Accounts::acknowledge() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(state_->event.get(), &count, sizeof count);
}

}  // namespace rcuda::server
