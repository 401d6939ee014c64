#include "common/identity/munge.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string_view>

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/identity/munge_library.h"

namespace rcuda::identity::munge {
namespace {

constexpr std::string_view kCredentialPrefix = "MUNGE:";

// libmunge writes to its socket with writev(), which raises SIGPIPE in this thread if munged has
// closed its end. The signal would end a program that does not ignore it.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigset_t pending;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

using ContextPointer = std::unique_ptr<Context, void (*)(Context*)>;
using Allocated = std::unique_ptr<void, decltype([](void* memory) { std::free(memory); })>;

ContextPointer make_context(const Library& library, const Settings& settings) {
  ContextPointer context(library.create(), library.destroy);
  if (context && !settings.socket.empty() &&
      library.set(context.get(), static_cast<int>(Option::kSocket), settings.socket.c_str()) !=
          Error::kSuccess) {
    context.reset();
  }
  return context;
}

Status no_context() {
  return Status(Code::kOutOfMemory,
                "MUNGE: libmunge cannot make a context: out of memory, or the path of munged's "
                "socket is invalid");
}

std::string socket_of(const Library& library, Context* context) {
  const char* path = nullptr;
  library.get(context, static_cast<int>(Option::kSocket), &path);
  return path != nullptr ? path : "";
}

// Returns the cause and remedy of an error, for an administrator. Null: use libmunge's own text.
const char* meaning_of(Error error) {
  switch (error) {
    case Error::kInvalid:
      return "the credential was made with another key: munged of both machines needs the same "
             "/etc/munge/munge.key, and a restart after it was copied";
    case Error::kExpired:
      return "the credential has expired: it was delayed, or the clocks of the two machines "
             "differ; "
             "check NTP on both (timedatectl)";
    case Error::kRewound:
      return "the credential was made in the future: the clocks of the two machines differ; check "
             "NTP on both (timedatectl)";
    case Error::kReplayed:
      return "the credential was used before, and a credential is valid once: somebody may have "
             "copied it; start the program again to make a new credential";
    case Error::kBadCredential:
      return "the credential is malformed";
    case Error::kBadVersion:
    case Error::kBadCipher:
    case Error::kBadMac:
    case Error::kBadZip:
    case Error::kBadRealm:
      return "munged of the two machines differ in version or configuration: install the same "
             "version with the same options on both";
    default:
      return nullptr;
  }
}

Status refused(const Library& library, Context* context, Error error) {
  const char* own = library.error_of(context);
  const std::string text = own != nullptr ? own : library.text_of(error);
  switch (error) {
    case Error::kSocket:
    case Error::kTimeout:
      return Status(Code::kUnavailable, "munged does not answer at " + socket_of(library, context) +
                                            " (" + text + "): start it (systemctl start munge)");
    case Error::kNoMemory:
      return Status(Code::kOutOfMemory, "MUNGE: " + text);
    case Error::kUnauthorized:
      return Status(
          Code::kDenied,
          "MUNGE: the peer made the credential for another user than this process's (uid " +
              std::to_string(::geteuid()) +
              "): do not change the program's user after its start, do not run it in a "
              "user namespace, or use a token");
    default:
      break;
  }
  const char* meaning = meaning_of(error);
  return Status(meaning != nullptr ? Code::kDenied : Code::kInternal,
                "MUNGE: " + (meaning != nullptr ? std::string(meaning) : text));
}

// munged logs each malformed text, so only texts that look like a credential are sent to it.
bool looks_like_credential(std::string_view text) {
  if (text.size() > kMostCredentialBytes || !text.starts_with(kCredentialPrefix)) return false;
  text.remove_prefix(kCredentialPrefix.size());
  if (text.size() < 2 || text.back() != ':') return false;
  text.remove_suffix(1);
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/' || c == '=';
  });
}

}  // namespace

bool available(const Settings& settings) {
  const Result<Library>& munge = library();
  if (!munge.ok()) return false;
  const ContextPointer context = make_context(*munge, settings);
  struct stat status;
  return context && ::stat(socket_of(*munge, context.get()).c_str(), &status) == 0 &&
         S_ISSOCK(status.st_mode);
}

Result<std::string> encode(std::span<const std::byte> payload, std::optional<uid_t> only_for,
                           const Settings& settings) {
  if (payload.size() > kMostPayloadBytes || only_for == kAnyUid) {
    return Status(Code::kInvalidArgument,
                  "MUNGE: cannot make a credential: its uid is invalid, or its payload of " +
                      std::to_string(payload.size()) + " bytes is too long (the limit is " +
                      std::to_string(kMostPayloadBytes) + ")");
  }
  const Result<Library>& munge = library();
  if (!munge.ok()) return munge.status();
  const NoSigpipe no_sigpipe;
  const ContextPointer context = make_context(*munge, settings);
  if (!context) return no_context();
  Error error = munge->set(context.get(), static_cast<int>(Option::kTtl),
                           static_cast<int>(settings.lifetime.count()));
  if (error == Error::kSuccess && only_for) {
    error = munge->set(context.get(), static_cast<int>(Option::kUidRestriction), *only_for);
  }
  char* text = nullptr;
  if (error == Error::kSuccess) {
    error = munge->encode(&text, context.get(), payload.data(), static_cast<int>(payload.size()));
  }
  const Allocated owned(text);
  if (error != Error::kSuccess) return refused(*munge, context.get(), error);
  return std::string(text);
}

Result<Credential> decode(const std::string& credential, const Settings& settings) {
  if (!looks_like_credential(credential)) {
    return Status(Code::kProtocol, "MUNGE: the peer sent a text that is not a credential");
  }
  const Result<Library>& munge = library();
  if (!munge.ok()) return munge.status();
  const NoSigpipe no_sigpipe;
  const ContextPointer context = make_context(*munge, settings);
  if (!context) return no_context();
  void* payload = nullptr;
  int bytes = 0;
  Credential decoded{kAnyUid, static_cast<gid_t>(-1), {}};
  const Error error = munge->decode(credential.c_str(), context.get(), &payload, &bytes,
                                    &decoded.uid, &decoded.gid);
  const Allocated owned(payload);
  if (error != Error::kSuccess) return refused(*munge, context.get(), error);
  if (payload != nullptr && bytes > 0) {
    const auto* data = static_cast<const std::byte*>(payload);
    decoded.payload.assign(data, data + bytes);
  }
  return decoded;
}

}  // namespace rcuda::identity::munge
