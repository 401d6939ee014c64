#include "server/identity/token_uses.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/identity/private_file.h"
#include "common/identity/token.h"

namespace rcuda::server {
namespace {

constexpr auto kPause = std::chrono::minutes(1);
constexpr size_t kMostBytes = 16 << 20;

std::string path_of(const std::string& tokens_path) { return tokens_path + ".used"; }

}  // namespace

Result<UseTimes> read_token_uses(const std::string& tokens_path) {
  UseTimes times;
  const Result<std::string> text = identity::read_private_file(path_of(tokens_path), kMostBytes);
  if (!text.ok()) {
    return text.status().code() == Code::kNotFound ? Result<UseTimes>(times) : text.status();
  }
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, time_text;
    Seconds time;
    if (words >> id >> time_text && identity::is_token_id(id) && parse_time(time_text, &time)) {
      times[id] = time;
    }
  }
  return times;
}

Status TokenUses::note(const std::string& id, Seconds now) {
  Seconds& noted = noted_[id];
  if (now < noted + kPause) return {};
  noted = now;
  const Status written = write(id, now);
  return std::exchange(failed_, !written.ok()) ? Status() : written;
}

Status TokenUses::write(const std::string& id, Seconds now) const {
  // A damaged file is replaced.
  const Result<UseTimes> read = read_token_uses(tokens_path_);
  UseTimes times = read.ok() ? *read : UseTimes();
  times[id] = std::max(times[id], now);
  RCUDA_ASSIGN_OR_RETURN(const StoredTokens tokens, list_tokens(tokens_path_));
  std::string text;
  for (const StoredToken& token : tokens) {
    const auto used = times.find(token.id);
    if (used != times.end()) text += token.id + " " + format_time(used->second) + "\n";
  }
  return identity::replace_private_file(path_of(tokens_path_), text, identity::OnDisk::kLater);
}

}  // namespace rcuda::server
