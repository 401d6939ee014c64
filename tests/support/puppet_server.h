// A server whose worker does what a test says: the other side for tests of the client library.
//
// Listens on this machine, shakes hands with one client over shared memory and keeps every command
// that comes. By itself it answers each call with success and no body, and each completion word at
// once with success; handlers, which run on the puppet's thread, say otherwise. All the rest of
// what a worker may send, well-formed or not, tests write themselves through link(). Threads: one
// of its own; the functions here may be called from any. ThreadSanitizer, which takes the two
// mappings of a window for different memory, is told of the order of handlers by
// common/base/peer_order.h, with the puppet as key.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>

#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "common/wire/handshake.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"

namespace rcuda::test {

class PuppetServer {
 public:
  static constexpr size_t kStagingBytes = 8u << 20;

  struct Command {
    wire::CommandHeader header{};
    std::vector<std::byte> body;

    // The body's first bytes; zeros where it is shorter.
    template <typename Body>
    Body as() const {
      Body read{};
      std::memcpy(&read, body.data(), std::min(sizeof read, body.size()));
      return read;
    }
    template <typename Body>
    std::span<const std::byte> behind() const {
      return std::span(body).subspan(std::min(sizeof(Body), body.size()));
    }
  };
  struct Answer {
    CUresult result = CUDA_SUCCESS;
    std::vector<std::byte> body;
  };
  using Handler = std::function<std::optional<Answer>(const Command&)>;

  // What it says of itself; the window stays unreserved when it has no bytes.
  explicit PuppetServer(wire::Welcome welcome);
  ~PuppetServer();
  static wire::Welcome welcome_with(uint32_t devices);

  uint16_t port() const { return port_; }
  // A client that gives up in the middle of the handshake is no failure of the test.
  void let_client_leave() { client_may_leave_.store(true); }

  // For a call: the answer. For a posted command that carries a completion word: the word's result.
  // Without an answer neither is written.
  void on(uint16_t opcode, Handler handler);
  void on(wire::Custom opcode, Handler handler) { on(static_cast<uint16_t>(opcode), handler); }

  // The commands of this kind that came and were not taken yet. Whoever wants to see what was just
  // posted waits for an answer first.
  std::vector<Command> taken(uint16_t opcode);
  std::vector<Command> taken(wire::Custom opcode) { return taken(static_cast<uint16_t>(opcode)); }

  // An asynchronous error, as of a posted command that failed. 0 takes a sticky one back.
  void set_error(CUresult error);
  void send_event(std::span<const std::byte> frame);

  // These wait for the client to come.
  transport::Link& link();
  std::byte* staging();
  const wire::Hello& hello();

 private:
  void run();
  void await_client();
  Status welcome_client();
  void serve(std::span<const std::byte> frame);
  void put(uint64_t offset, std::span<const std::byte> bytes);
  void reply(const wire::CommandHeader& header, const Answer& answer);

  const wire::Welcome welcome_;
  uint16_t port_ = 0;
  UniqueFd listening_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> client_may_leave_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false;  // the four below do not change any more
  wire::Hello hello_;
  std::byte* staging_ = nullptr;
  std::unique_ptr<transport::Link> link_;
  std::unique_ptr<wire::RingWriter> events_;
  std::map<uint16_t, Handler> handlers_;
  std::vector<Command> commands_;
  uint64_t errors_ = 0;

  std::thread thread_;
};

}  // namespace rcuda::test
