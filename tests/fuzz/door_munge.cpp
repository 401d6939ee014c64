#include "tests/fuzz/door_munge.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "common/identity/munge_library.h"

namespace rcuda::fuzz {
namespace {

struct Minted {
  std::mutex mutex;
  std::map<std::string, std::pair<uid_t, std::vector<std::byte>>> credentials;
  size_t last = 0;
};

Minted& minted() {
  static Minted& all = *new Minted;  // the daemon's threads may outlive static objects
  return all;
}

}  // namespace

std::string mint_credential(uid_t user, std::vector<std::byte> payload) {
  std::lock_guard lock(minted().mutex);
  std::string text = "MUNGE:" + std::to_string(++minted().last) + ":";
  minted().credentials[text] = {user, std::move(payload)};
  return text;
}

void forget_credentials() {
  std::lock_guard lock(minted().mutex);
  minted().credentials.clear();
}

}  // namespace rcuda::fuzz

namespace rcuda::identity::munge {
namespace {

Error take_option(Context*, int, ...) { return Error::kSuccess; }

Error make_answer(char** credential, Context*, const void*, int) {
  *credential = ::strdup("MUNGE:answer:");
  return Error::kSuccess;
}

Error open_minted(const char* credential, Context*, void** payload, int* bytes, uid_t* user,
                  gid_t*) {
  auto& all = fuzz::minted();
  std::lock_guard lock(all.mutex);
  const auto found = all.credentials.find(credential);
  if (found == all.credentials.end()) return Error::kInvalid;
  *user = found->second.first;
  *bytes = static_cast<int>(found->second.second.size());
  *payload = std::malloc(found->second.second.size());
  std::memcpy(*payload, found->second.second.data(), found->second.second.size());
  all.credentials.erase(found);
  return Error::kSuccess;
}

}  // namespace

const Result<Library>& library() {
  static char context;
  static const auto& fake = *new Result<Library>(Library{
      .create = [] { return reinterpret_cast<Context*>(&context); },
      .destroy = [](Context*) {},
      .error_of = [](Context*) -> const char* { return nullptr; },
      .get = take_option,
      .set = take_option,
      .text_of = [](Error) { return "no text"; },
      .encode = make_answer,
      .decode = open_minted,
  });
  return fake;
}

}  // namespace rcuda::identity::munge
