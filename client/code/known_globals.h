// KnownGlobals: a cache of cuLibraryGetGlobal, because runtimes of CUDA 13 look a variable up at
// every use of its symbol.
//
// An answer is valid while the Registry has the same variable: until the library or the context
// ends.
// Threads: any. Nothing blocks or fails.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "client/objects/code.h"
#include "client/session/route.h"
#include "common/base/mutex.h"

namespace rcuda::client {

class KnownGlobals {
 public:
  static KnownGlobals& get();
  // Finds the answer for the route's context. Returns false if the caller must query the worker.
  bool find(const Library* library, const Route& route, const char* name, Module::Global* found);
  // Stores the answer for a variable that is in the Registry.
  void note(const Library* library, const Route& route, const char* name,
            const Module::Global& found);
  void forget(const Library* library);

 private:
  using Question = std::tuple<const Library*, const Session*, wire::ObjectId, std::string>;
  struct Answer {
    Module::Global global;
    uint64_t buffer_id = 0;  // Allocation::buffer_id of the variable
  };
  Mutex mutex_;
  std::map<Question, Answer> answers_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
