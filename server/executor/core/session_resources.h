// SessionResources: the driver, the Link, the devices, the memory and the settings that a worker
// provides to its session. The worker fills it in once and passes it on unchanged. Everything it
// points to outlives the session.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "api/driver_table.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/output_capture.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/images/image_cache.h"
#include "server/executor/nccl/nccl_settings.h"
#include "server/executor/objects/objects.h"
#include "server/executor/peers/peer_settings.h"
#include "server/names/exported_names.h"
#include "server/quota/quota.h"

namespace rcuda::server {

struct SessionResources {
  const api::DriverTable* unmetered = nullptr;  // the driver, for the worker's own calls
  transport::Link* link = nullptr;
  std::vector<SessionDevice> devices;
  // Page-locked memory: the client's staging region, and memory for replies that the GPU writes, as
  // large as all reply slots together.
  std::byte* staging = nullptr;
  size_t staging_bytes = 0;
  int staging_file = -1;  // the memfd of the staging region; -1: it has none
  std::byte* reply_memory = nullptr;
  // GPU-written words: page-locked, after the memory for replies. `wait_marks`: for waits of the
  // client. The client maps these words if it can map the staging region. `marks`: for copies to
  // the client. Either may be empty.
  std::span<std::byte> wait_marks;
  std::span<std::byte> marks;
  std::span<std::byte> arrival_words;  // page-locked, for ArrivalGates; may be empty
  size_t pinned_bytes = 0;             // of all page-locked memory above, which is one block
  ImageCache* images = nullptr;
  OutputCapture* output = nullptr;  // null: device output is not captured
  bool movable_memory = false;      // the worker can move the program's device memory itself
  bool gpudirect = true;            // use it if the Link has an adapter and a probe succeeds
  // The largest number of streams of a device that may have work in progress while one of them is
  // held for another worker. 0: no limit.
  size_t most_streams = 0;
  Exporter exporter;
  std::shared_ptr<Quota> quota = std::make_shared<Quota>();  // never null
  SessionLimits limits;
  PeerSettings peers;
  HostMemory::Options host_memory;
  NcclSettings nccl;
};

inline constexpr size_t kReplyMemoryBytes =
    wire::ClientWindow::kEventRing - wire::ClientWindow::kSmallReplies;
// 512 GPU-written words, one for each of the 512 completion words with the lowest indexes. That is
// enough: a client takes the completion word that it released last for its next wait, so the
// indexes in use stay low.
inline constexpr size_t kWaitMarkBytes = 4096;
inline constexpr size_t kMarkMemoryBytes = 512;   // words for 128 streams with copies in progress
inline constexpr size_t kArrivalWordBytes = 256;  // gates for 64 copies to the device at a time

}  // namespace rcuda::server
