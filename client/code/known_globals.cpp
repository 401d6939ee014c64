#include "client/code/known_globals.h"

#include "client/process/process.h"

namespace rcuda::client {

KnownGlobals& KnownGlobals::get() {
  static auto* instance = new KnownGlobals;
  return *instance;
}

bool KnownGlobals::find(const Library* library, const Route& route, const char* name,
                        Module::Global* found) {
  MutexLock lock(mutex_);
  const auto known = answers_.find(Question{library, route.session, route.context, name});
  if (known == answers_.end()) return false;
  const auto now = Process::get().memory().find(known->second.global.address);
  if (!now || now->buffer_id != known->second.buffer_id) return false;
  *found = known->second.global;
  return true;
}

void KnownGlobals::note(const Library* library, const Route& route, const char* name,
                        const Module::Global& found) {
  const auto now = Process::get().memory().find(found.address);
  if (!now || now->base != found.address) return;
  MutexLock lock(mutex_);
  answers_[Question{library, route.session, route.context, name}] = {found, now->buffer_id};
}

void KnownGlobals::forget(const Library* library) {
  MutexLock lock(mutex_);
  std::erase_if(answers_, [&](const auto& known) { return std::get<0>(known.first) == library; });
}

}  // namespace rcuda::client
