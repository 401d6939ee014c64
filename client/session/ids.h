// Ids of the objects that the client creates on one worker. The ids of each kind are dense from 1;
// ids of contexts start at kFirstCreatedContext, after the ids of primary contexts. mint() prefers
// the id that was released last. A destroyed object's id may be reused immediately: commands are
// ordered, so the worker unbinds the id before it binds it again. Threads: any.
#pragma once

#include <array>
#include <vector>

#include "common/base/mutex.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

class Ids {
 public:
  // Returns 0 if all ids of the kind are in use.
  wire::ObjectId mint(wire::Kind kind) {
    PerKind& ids = kinds_[static_cast<size_t>(kind)];
    MutexLock lock(ids.mutex);
    if (!ids.free.empty()) {
      const wire::ObjectId id = ids.free.back();
      ids.free.pop_back();
      return id;
    }
    const wire::ObjectId first = kind == wire::Kind::kContext ? wire::kFirstCreatedContext : 1;
    const wire::ObjectId id = first + ids.used;
    if (id >= wire::kMaxObjectId) return 0;
    ++ids.used;
    return id;
  }

  void release(wire::Kind kind, wire::ObjectId id) {
    if (id == 0 || (id & wire::kWorkerMinted)) return;
    PerKind& ids = kinds_[static_cast<size_t>(kind)];
    MutexLock lock(ids.mutex);
    ids.free.push_back(id);
  }

 private:
  struct PerKind {
    Mutex mutex;
    wire::ObjectId used RCUDA_GUARDED_BY(mutex) = 0;
    std::vector<wire::ObjectId> free RCUDA_GUARDED_BY(mutex);
  };
  std::array<PerKind, static_cast<size_t>(wire::Kind::kCount)> kinds_;
};

}  // namespace rcuda::client
