#include "client/settings/settings.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/base/usable_processors.h"
#include "common/transport/media.h"

namespace rcuda::client {
namespace {

std::vector<const char*> transports() {
  std::vector<const char*> words{"auto"};
  for (const transport::Medium& medium : transport::media()) words.push_back(medium.name());
  return words;
}

// The first element has the defaults; load_settings() adds the loaded settings. Never destroyed,
// because threads may read settings until the process ends.
std::deque<Settings>& all() {
  static auto* const made = new std::deque<Settings>(1);
  return *made;
}

}  // namespace

Settings::Settings()
    : transport(registry, "RCUDA_TRANSPORT", transports(),
                "the transport of sessions; auto: shm on this machine, else verbs or tcp"),
      copy_threads(registry, "RCUDA_COPY_THREADS", std::clamp<int64_t>(usable_processors(), 1, 8),
                   1, 64, "threads that copy pageable memory") {}

const Settings& settings() { return all().back(); }

Status load_settings() {
  const Status status = all().emplace_back().registry.load_environment();
  if (!status.ok()) all().pop_back();
  return status;
}

Status configure_log() {
  const std::string text = settings().log.get();
  if (text.empty()) return {};
  const size_t colon = std::min(text.find(':'), text.size());
  if (!set_log_level(text.substr(0, colon).c_str())) {
    return Status(
        Code::kInvalidArgument,
        "RCUDA_LOG=" + text +
            " is not a level; use trace, debug, info, warn, error or off, and :FILE for a file");
  }
  if (colon == text.size()) return {};
  const std::string file = text.substr(colon + 1);
  if (set_log_file(file.c_str())) return {};
  return Status::from_errno(errno, "RCUDA_LOG: cannot write to " + file);
}

}  // namespace rcuda::client
