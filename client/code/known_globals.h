// KnownGlobals: what cuLibraryGetGlobal has answered. Runtimes of CUDA 13 ask for a variable at
// every use of its symbol.
//
// An answer holds as long as the Registry has the variable as it was then: it ends with the library
// and with the context.
// Threads: any. Nothing blocks or fails.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "client/objects/code.h"
#include "client/session/target.h"

namespace rcuda::client {

class KnownGlobals {
 public:
  static KnownGlobals& get();
  // The answer for the target's context. False: the worker must be asked.
  bool find(const Library* library, const Target& target, const char* name, Module::Global* found);
  // For a variable that is in the Registry.
  void note(const Library* library, const Target& target, const char* name,
            const Module::Global& found);
  void forget(const Library* library);

 private:
  using Question = std::tuple<const Library*, const Session*, wire::ObjectId, std::string>;
  struct Answer {
    Module::Global global;
    uint64_t buffer_id = 0;  // of the variable in the Registry
  };
  std::mutex mutex_;
  std::map<Question, Answer> answers_;  // guarded by mutex_
};

}  // namespace rcuda::client
