// A server whose worker does what a test programs: the peer for tests of the client library.
//
// It accepts one client, over the medium that the client chooses, and keeps every command that it
// receives. By default it answers each call with success and no body, and completes each completion
// word at once with success. Handlers, which run on the puppet's thread, can answer otherwise. A
// test sends everything else that a worker may send, well-formed or not, through link(). The puppet
// has one thread; its functions may be called from any thread.
//
// A window is mapped twice. ThreadSanitizer takes the mappings for different memory, so it sees no
// order between the client's and the puppet's accesses. The puppet therefore reports the order of
// its handlers to ThreadSanitizer (common/base/peer_order.h, with the puppet as the key).
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
#include "common/messages/handshake.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"

namespace rcuda::test {

class PuppetServer {
 public:
  static constexpr size_t kStagingBytes = 8u << 20;
  static constexpr size_t kMarkBytes = 4096;

  struct Command {
    wire::CommandHeader header{};
    std::vector<std::byte> body;

    // The first bytes of the body, padded with zeros if the body is shorter.
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

  // `welcome` is sent to the client.
  // `reach`: where the puppet listens. Over a network it uses no encryption and accepts any token.
  explicit PuppetServer(wire::Welcome welcome,
                        transport::Reach reach = transport::Reach::kThisMachine);
  ~PuppetServer();
  // Returns a Welcome with one address window. The window of the first call is the base with the
  // number kFirstBase; each further call uses the next base.
  static wire::Welcome welcome_with(uint32_t devices);
  static constexpr uint32_t kFirstBase = 8;

  uint16_t port() const { return port_; }
  // A client that gives up during the handshake does not fail the test.
  void let_client_leave() { client_may_leave_.store(true); }

  // Sets the handler of a command. For a call the handler returns the answer; for a posted command
  // with a completion word, the word's result. If the handler returns no answer, no reply
  // and no word is written.
  void on(uint16_t opcode, Handler handler);
  void on(wire::Custom opcode, Handler handler) { on(static_cast<uint16_t>(opcode), handler); }

  // Removes and returns the commands of this kind received so far. A command that was just posted
  // may still be missing; a round trip after it ensures that it has arrived.
  std::vector<Command> taken(uint16_t opcode);
  std::vector<Command> taken(wire::Custom opcode) { return taken(static_cast<uint16_t>(opcode)); }

  // Reports an asynchronous error, as after a posted command that failed. 0 revokes a sticky error.
  void set_error(CUresult error);
  void send_event(std::span<const std::byte> frame);
  // Answers a call whose handler gave no answer.
  void reply(const wire::CommandHeader& header, const Answer& answer);

  // These block until the client has connected.
  transport::Link& link();
  std::byte* staging();
  // The GPU-written words, after the staging memory. The client maps them if the medium shares
  // pages.
  uint64_t* marks();
  const wire::Hello& hello();

 private:
  void run();
  void await_client();
  Result<UniqueFd> accept();
  Status welcome_client();
  void serve(std::span<const std::byte> frame);
  void put(uint64_t offset, std::span<const std::byte> bytes);

  const wire::Welcome welcome_;
  uint16_t port_ = 0;
  UniqueFd listening_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> client_may_leave_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false;  // true: the four members below no longer change
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
