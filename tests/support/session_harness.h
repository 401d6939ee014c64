// One session in this process: a worker's SessionLoop on a thread, on the software driver, and a
// client that is nothing but the protocol, so that tests can send what no real client would.
//
// The driver is loaded once per process; every harness has its own Link and its own executor.
// Client and worker share this address space, and so do their CUDA objects: tests may call the
// driver themselves.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/transport/link.h"
#include "common/wire/codec.h"
#include "common/wire/handshake.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"
#include "server/executor/images/image_cache.h"
#include "server/worker/device_set.h"
#include "server/worker/session_loop.h"
#include "tests/support/link_pair.h"

namespace rcuda::test {

// The software driver with its devices ready; made on first use, for the life of the process.
struct TestDriver {
  api::DriverTable table;
  std::unique_ptr<server::DeviceSet> devices;
  static TestDriver& get();
};

// The client's side of a session.
class ProtocolClient {
 public:
  explicit ProtocolClient(transport::Link& link);

  // Raw bytes as one frame.
  Status send_frame(std::span<const std::byte> frame);
  // A command: the header is filled in. `call` false: posted.
  Status post(uint16_t opcode, std::span<const std::byte> body, uint32_t context = 1);
  template <typename Body>
  Status post(wire::Custom opcode, const Body& body, std::span<const std::byte> tail = {},
              uint32_t context = 1) {
    return post(static_cast<uint16_t>(opcode), join(body, tail), context);
  }
  struct Answer {
    CUresult result = CUDA_ERROR_UNKNOWN;
    uint32_t events_before = 0;
    std::vector<std::byte> body;
  };
  // nullopt when the session ended before it answered.
  std::optional<Answer> call(uint16_t opcode, std::span<const std::byte> body,
                             uint32_t context = 1);
  template <typename Body>
  std::optional<Answer> call(wire::Custom opcode, const Body& body,
                             std::span<const std::byte> tail = {}, uint32_t context = 1) {
    return call(static_cast<uint16_t>(opcode), join(body, tail), context);
  }

  // With a header of the caller's making; safe beside another thread's calls if the slots differ.
  std::optional<Answer> call_with(const wire::CommandHeader& header,
                                  std::span<const std::byte> body);

  // The result in a completion word once it reached `sequence`; nullopt when the session ended.
  std::optional<CUresult> wait_word(uint32_t word, uint64_t sequence);
  bool word_reached(uint32_t word, uint64_t sequence);
  uint64_t error_word();
  // The next event frame; empty when the session ended.
  std::vector<std::byte> next_event();
  void acknowledge(uint32_t slot, uint64_t sequence);

  transport::Link& link() { return link_; }

  template <typename Body>
  static std::vector<std::byte> join(const Body& body, std::span<const std::byte> tail = {}) {
    const auto head = std::as_bytes(std::span(&body, 1));
    std::vector<std::byte> bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), tail.begin(), tail.end());
    return bytes;
  }

 private:
  uint64_t load(uint64_t offset);

  transport::Link& link_;
  std::mutex mutex_;  // commands_
  wire::RingWriter commands_;
  wire::RingReader events_;
  uint32_t next_call_ = 1;
};

class SessionHarness {
 public:
#if defined(__SANITIZE_THREAD__)
  // Over shared memory each end has a mapping of its own, which ThreadSanitizer takes for other
  // memory and sees no order in.
  static constexpr const char* kMedium = "tcp";
#else
  static constexpr const char* kMedium = "shm";
#endif
  struct Options {
    const Medium* medium = &medium_named(kMedium);
    bool allow_faults = false;
    std::chrono::nanoseconds spin = std::chrono::microseconds(2);  // of the worker
    std::string image_folder;                                      // empty: images are not kept
  };
  SessionHarness() : SessionHarness(Options()) {}
  explicit SessionHarness(const Options& options);
  ~SessionHarness();

  ProtocolClient& client() { return *client_; }
  const api::DriverTable& driver() { return TestDriver::get().table; }
  transport::Link& worker_link() { return *links_.server; }
  std::byte* staging();  // the worker's, which a real client maps
  // Waits for the session to end by itself.
  Status wait_end();
  // Ends it as a client does, or as a network does.
  Status end();
  void cut();

 private:
  LinkPair links_;
  std::unique_ptr<server::ImageCache> images_;
  server::SessionResources resources_;
  std::unique_ptr<server::SessionLoop> loop_;
  std::unique_ptr<ProtocolClient> client_;
  Status outcome_;
  std::thread thread_;
};

}  // namespace rcuda::test
