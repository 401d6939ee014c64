#include "client/memory/host_writes.h"

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

namespace rcuda::client::host_writes {
namespace {

using Key = std::tuple<const Session*, wire::ObjectId, wire::ObjectId>;  // session, context, stream

std::atomic<bool> enabled{false};
std::atomic<uint64_t> count{0};  // of begun(), so that later ones are told from earlier ones
std::atomic<size_t> busy{0};     // streams in `latest`
std::mutex mutex;
std::map<Key, uint64_t>& latest() {  // guarded by mutex
  static auto* instance = new std::map<Key, uint64_t>;
  return *instance;
}

}  // namespace

void enable() { enabled.store(true); }

void begun(const Session& session, wire::ObjectId context, wire::ObjectId stream) {
  if (!enabled.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex);
  latest()[{&session, context, stream}] = count.fetch_add(1) + 1;
  busy.store(latest().size());
}

bool pending() { return busy.load() != 0; }

Settling::Settling(const Session& session, wire::ObjectId context, wire::ObjectId stream,
                   bool whole_context)
    : session_(session),
      context_(context),
      stream_(stream),
      whole_context_(whole_context),
      upto_(pending() ? count.load() : 0) {}

void Settling::over() const {
  if (upto_ == 0) return;
  std::lock_guard lock(mutex);
  std::erase_if(latest(), [&](const auto& item) {
    const auto& [session, context, stream] = item.first;
    return session == &session_ && context == context_ && (whole_context_ || stream == stream_) &&
           item.second <= upto_;
  });
  busy.store(latest().size());
}

}  // namespace rcuda::client::host_writes
