// One session in this process: a worker's SessionLoop on a thread, on softgpu, and a client that
// speaks only the protocol, so that tests can send commands that no real client would send.
//
// The driver is loaded once per process; every harness has its own Link and its own executor. The
// worker's CUDA objects are objects of this process, so tests may also use them in calls of the
// driver.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/transport/link.h"
#include "common/wire/channel.h"
#include "common/wire/codec.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"
#include "server/executor/images/image_cache.h"
#include "server/worker/device_set.h"
#include "server/worker/session_loop.h"
#include "tests/support/link_pair.h"

namespace rcuda::test {

// softgpu with its devices ready. Made on first use and kept until the process ends.
struct TestDriver {
  api::DriverTable table;
  std::unique_ptr<server::DeviceSet> devices;
  static TestDriver& get();
};

// The client end of a session.
class ProtocolClient {
 public:
  explicit ProtocolClient(transport::Link& link);

  // Sends a command without requesting a reply.
  Status post(uint16_t opcode, std::span<const std::byte> body, uint32_t context = 1);
  template <typename Body>
  Status post(wire::Custom opcode, const Body& body, std::span<const std::byte> tail = {},
              uint32_t context = 1) {
    return post(static_cast<uint16_t>(opcode), join(body, tail), context);
  }
  struct Answer {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::vector<std::byte> body;
  };
  // Returns nullopt if the session ended before it answered. Threads may call at the same time.
  std::optional<Answer> call(uint16_t opcode, std::span<const std::byte> body,
                             uint32_t context = 1);
  template <typename Body>
  std::optional<Answer> call(wire::Custom opcode, const Body& body,
                             std::span<const std::byte> tail = {}, uint32_t context = 1) {
    return call(static_cast<uint16_t>(opcode), join(body, tail), context);
  }

  // Blocks until the completion word has reached `sequence` and returns its result; nullopt if the
  // session ended.
  std::optional<CUresult> wait_word(uint32_t word, uint64_t sequence);
  bool word_reached(uint32_t word, uint64_t sequence);
  uint64_t error_word();
  // Returns the next event frame; empty if the session ended.
  std::vector<std::byte> next_event();
  void acknowledge(uint32_t slot, uint64_t sequence);

  transport::Link& link() { return channel_.link(); }
  wire::Channel& channel() { return channel_; }

  template <typename Body>
  static std::vector<std::byte> join(const Body& body, std::span<const std::byte> tail = {}) {
    const auto head = std::as_bytes(std::span(&body, 1));
    std::vector<std::byte> bytes;
    bytes.reserve(head.size() + tail.size());
    bytes.insert(bytes.end(), head.begin(), head.end());
    bytes.insert(bytes.end(), tail.begin(), tail.end());
    return bytes;
  }

 private:
  wire::Channel channel_;
  wire::RingReader events_;
};

class SessionHarness {
 public:
#if defined(__SANITIZE_THREAD__)
  // Over shared memory each end has its own mapping. ThreadSanitizer would take the two for
  // different memory and see no order between the accesses of client and worker.
  static constexpr const char* kMedium = "tcp";
#else
  static constexpr const char* kMedium = "shm";
#endif
  struct Options {
    const Medium* medium = &medium_named(kMedium);
    std::chrono::nanoseconds spin = std::chrono::microseconds(2);  // of the worker
    std::string image_folder;                                      // empty: images are not kept
    std::vector<uint32_t> devices = {0, 1};                        // of the two that softgpu has
    server::SessionLimits limits;
    std::shared_ptr<server::Quota> quota;  // null: no quota
    std::function<uint64_t()> now;         // SessionLoopOptions::now
    bool movable_memory = false;           // SessionResources::movable_memory
    server::Parker* parker = nullptr;      // SessionLoopOptions::parker
    bool oversubscribes = false;           // SessionLoopOptions::oversubscribes
  };
  SessionHarness() : SessionHarness(Options()) {}
  explicit SessionHarness(const Options& options);
  ~SessionHarness();

  ProtocolClient& client() { return *client_; }
  const wire::ReadyEvent& ready() const { return ready_; }  // the worker's first event
  const api::DriverTable& driver() { return TestDriver::get().table; }
  server::SessionLoop& loop() { return *loop_; }
  transport::Link& worker_link() { return *links_.server; }
  std::byte* staging();  // the worker's staging memory, which a real client maps
  // Blocks until the session has ended by itself. Returns its outcome.
  Status wait_end();
  // end() ends the session as a client does; cut() as a broken network does.
  Status end();
  void cut();

 private:
  LinkPair links_;
  std::unique_ptr<server::ImageCache> images_;
  server::SessionResources resources_;
  std::unique_ptr<server::SessionLoop> loop_;
  std::unique_ptr<ProtocolClient> client_;
  wire::ReadyEvent ready_{};
  Status outcome_;
  std::thread thread_;
};

}  // namespace rcuda::test
