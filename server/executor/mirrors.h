// Mirrors: memory of this worker that the client has a copy of and keeps alike
// (client/memory/mirror.h).
//
// Ordinarily the client does it all, before launches and after waiting. In between the worker has
// to: a host function of the application sees what the stream has done so far, and what it writes
// the stream sees next. Around each the bytes of all mirrors go to regions of the client's, which
// merges them, and come back from there; only bytes that the client changed are taken. Threads:
// add(), remove() and fetch() on the executor thread, lend() on the driver's threads, which host
// functions block anyway. remove() waits for bytes under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common/wire/protocol.h"
#include "server/executor/custom.h"

namespace rcuda::server {

class Executor;

class Mirrors {
 public:
  explicit Mirrors(Executor& executor) : executor_(executor) {}
  ~Mirrors();

  CUresult add(const wire::MirrorBody& body);
  CUresult remove(uint64_t address);
  // Whether one of them holds all of [address, address + bytes). Any thread.
  bool covers(uint64_t address, uint64_t bytes) const;
  // Answers when the bytes are with the client.
  HandlerResult fetch(uint64_t address, const ReplyTarget& target);

  // From construction to destruction the client's regions have the bytes; none when `held` is
  // false.
  class Loan {
   public:
    explicit Loan(Mirrors& mirrors);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    bool held() const { return !sent_.empty(); }

   private:
    struct Sent;
    Mirrors& mirrors_;
    std::unique_lock<std::mutex> one_at_a_time_;
    std::vector<Sent> sent_;
  };

 private:
  struct Mirror {
    uint64_t address = 0, bytes = 0, region = 0, fetch_offset = 0;
    std::mutex mutex;  // held while its bytes are touched
    bool removed = false;
  };
  bool send(Mirror& mirror, const void* bytes, uint64_t offset);

  Executor& executor_;
  std::mutex lent_;           // one host function at a time, as the client runs them
  mutable std::mutex mutex_;  // of the map
  std::map<uint64_t, std::shared_ptr<Mirror>> mirrors_;
};

}  // namespace rcuda::server
