// The session fuzzer's work on one input. hostile_session_test runs it over fixed mutations, too.
//
// A real session of a worker, from the command ring to the driver's table: the input fills the
// ring, and the session loop serves it until it is empty. The Link is memory without a peer. The
// driver is a table of functions that succeed and do nothing, except that copies touch the host
// memory that they get, so that AddressSanitizer detects a missing bounds check. First byte 0: the
// rest is the ring's memory. Otherwise the rest is a list of commands: u16 that chooses the opcode,
// u8 flags (1: a round trip, 2: with a large reply slot, 4 and 8: context), u16 body size, body.
// First byte 2: the commands follow a well-formed session. 3: the medium is shared memory, where
// the GPU writes words that waits poll (marks).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "api/driver_functions.h"
#include "api/opcodes.h"
#include "api/traits.h"
#include "common/wire/codec.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"
#include "server/executor/core/dispatch.h"
#include "server/executor/images/image_cache.h"
#include "server/worker/session_loop.h"
#include "tests/fuzz/memory_link.h"

namespace rcuda::fuzz {

// Addresses of device memory. No memory is mapped there.
inline constexpr uint64_t kDeviceBase = 0x6000'0000'0000, kDeviceBytes = 1ull << 40;

inline CUresult touch_read(const void* memory, size_t bytes) {
  static volatile unsigned char sink;
  (void)sink;
  for (size_t at = 0; at < bytes; at += 64) sink = static_cast<const unsigned char*>(memory)[at];
  if (bytes != 0) sink = static_cast<const unsigned char*>(memory)[bytes - 1];
  return CUDA_SUCCESS;
}

// Counts calls, so that a test can check how far the corpus gets.
struct Reached {
  int launches = 0, copies = 0, host_functions = 0, marks = 0;
};
inline Reached reached;

inline std::vector<std::byte> wait_marks(server::kWaitMarkBytes);

inline uintptr_t new_handle() {
  static uintptr_t handles = 0x1000;
  return handles += 16;
}

template <typename Handle>
CUresult make(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new_handle());
  return CUDA_SUCCESS;
}

template <typename... Arguments>
void succeed(CUresult (*&function)(Arguments...)) {
  function = [](Arguments...) { return CUDA_SUCCESS; };
}

inline api::DriverTable memory_driver() {
  api::DriverTable table;
  api::visit_functions(table, [](auto& function) { succeed(function); });
  table.cuEventCreate = [](CUevent* event, unsigned) { return make(event); };
  table.cuStreamCreate = [](CUstream* stream, unsigned) { return make(stream); };
  table.cuModuleLoadDataEx = [](CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
    return make(module);
  };
  table.cuLibraryLoadData = [](CUlibrary* library, const void*, CUjit_option*, void**, unsigned,
                               CUlibraryOption*, void**, unsigned) { return make(library); };
  table.cuModuleGetFunction = [](CUfunction* function, CUmodule, const char*) {
    return make(function);
  };
  table.cuLibraryGetKernel = [](CUkernel* kernel, CUlibrary, const char*) { return make(kernel); };
  table.cuFuncGetParamInfo = [](CUfunction, size_t index, size_t* offset, size_t* bytes) {
    *offset = index * 8;
    *bytes = 8;
    return index < 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  table.cuKernelGetParamInfo = [](CUkernel, size_t, size_t*, size_t*) {
    return CUDA_ERROR_INVALID_VALUE;
  };
  table.cuMemHostAlloc = [](void** memory, size_t bytes, unsigned) {
    *memory = std::malloc(bytes);
    return *memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  };
  table.cuMemFreeHost = [](void* memory) {
    std::free(memory);
    return CUDA_SUCCESS;
  };
  table.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  table.cuPointerGetAttribute = [](void* value, CUpointer_attribute which, CUdeviceptr address) {
    if (address - kDeviceBase >= kDeviceBytes) return CUDA_ERROR_INVALID_VALUE;
    if (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
    }
    return CUDA_SUCCESS;
  };
  table.cuMemcpyHtoDAsync_v2 = [](CUdeviceptr, const void* from, size_t bytes, CUstream) {
    ++reached.copies;
    return touch_read(from, bytes);
  };
  table.cuMemcpyDtoHAsync_v2 = [](void* to, CUdeviceptr, size_t bytes, CUstream) {
    ++reached.copies;
    if (bytes != 0) std::memset(to, 0x5a, bytes);
    return CUDA_SUCCESS;
  };
  // Streams are always idle, so a host function runs immediately. The client never acknowledges its
  // host functions, which ends the session.
  table.cuLaunchHostFunc = [](CUstream, CUhostFn function, void* argument) {
    ++reached.host_functions;
    function(argument);
    return CUDA_SUCCESS;
  };
  table.cuStreamAddCallback = [](CUstream, CUstreamCallback, void*, unsigned) {
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  table.cuStreamWriteValue64_v2 = [](CUstream, CUdeviceptr address, cuuint64_t value, unsigned) {
    const uint64_t offset = address - reinterpret_cast<CUdeviceptr>(wait_marks.data());
    // The client may name any address.
    if (offset > wait_marks.size() - sizeof value) return CUDA_SUCCESS;
    ++reached.marks;
    std::memcpy(wait_marks.data() + offset, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  table.cuMemcpyAsync = [](CUdeviceptr, CUdeviceptr, size_t, CUstream) {
    ++reached.copies;
    return CUDA_SUCCESS;
  };
  table.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, CUstream, void**, void** extra) {
    reached.launches += extra != nullptr;  // launches without `extra` are the worker's own
    return extra ? touch_read(extra[1], *static_cast<size_t*>(extra[3])) : CUDA_SUCCESS;
  };
  table.cuLaunchKernelEx = [](const CUlaunchConfig* config, CUfunction, void**, void** extra) {
    (void)touch_read(config->attrs, config->numAttrs * sizeof(CUlaunchAttribute));
    return extra ? touch_read(extra[1], *static_cast<size_t*>(extra[3])) : CUDA_SUCCESS;
  };
  return table;
}

// The opcodes that a command of the input may have. Commands that connect to an address of the
// input and start threads are excluded: the tests of server/peer cover them.
inline const std::vector<uint16_t>& opcodes() {
  static const std::vector<uint16_t> all = [] {
    std::vector<uint16_t> list;
    for (uint32_t opcode = 0; opcode < 0x1000; ++opcode) {
      const auto custom = static_cast<wire::Custom>(opcode);
      if (custom == wire::Custom::kPeerIntroduce || custom == wire::Custom::kPeerPlan) continue;
      if (opcode < std::size(api::kCustomTraits) ||
          server::generated_handler(static_cast<uint16_t>(opcode))) {
        list.push_back(static_cast<uint16_t>(opcode));
      }
    }
    return list;
  }();
  return all;
}

struct World {
  static constexpr size_t kStagingBytes = 1u << 20;
#if defined(__SANITIZE_THREAD__)  // programs with it can map memory in few places
  static constexpr uint64_t kHostRange = 0x10'0000'0000;
#else
  static constexpr uint64_t kHostRange = 0x5000'0000'0000;
#endif
  static constexpr uint64_t kHostRangeBytes = 64u << 20;

  std::vector<std::byte> client_window = std::vector<std::byte>(wire::ClientWindow::kBytes);
  std::vector<std::byte> worker_window = std::vector<std::byte>(wire::WorkerWindow::kBytes);
  std::vector<std::byte> staging = std::vector<std::byte>(kStagingBytes);
  std::vector<std::byte> replies = std::vector<std::byte>(server::kReplyMemoryBytes);
  api::DriverTable driver = memory_driver();
  bool clears_host_range = true;  // after each session; false if a test has its own memory there

  static World& get() {
    static World world;
    return world;
  }

  // Sends the commands of the input through the client's end of the ring.
  void send(const uint8_t* data, size_t size) {
    MemoryLink client(client_window, worker_window);
    wire::RingWriter ring(client, wire::kCommandRingLayout);
    uint32_t call = 0;
    while (size >= 5) {
      const uint16_t choice = static_cast<uint16_t>(data[0] | data[1] << 8);
      const uint8_t flags = data[2];
      const size_t bytes = std::min<size_t>(data[3] | data[4] << 8, size - 5);
      using Window = wire::ClientWindow;
      wire::CommandHeader header{};
      header.opcode = opcodes()[choice % opcodes().size()];
      header.flags = flags & 16 ? wire::kFlagTraced : wire::kFlagNone;
      header.call = flags & 1 ? ++call : 0;
      header.reply_slot = flags & 2 ? Window::kLargeReplies : Window::kSmallReplies;
      header.reply_bytes = flags & 2 ? Window::kLargeReplyBytes : Window::kSmallReplyBytes;
      header.context = flags >> 2 & 3;
      header.thread = 1;
      if (!ring.append(std::as_bytes(std::span(&header, 1)),
                       std::as_bytes(std::span(data + 5, bytes)), transport::Wake::kYes)
               .ok()) {
        return;  // the ring is full
      }
      data += 5 + bytes;
      size -= 5 + bytes;
    }
  }

  server::SessionResources resources(MemoryLink& link, server::ImageCache& images) {
    server::SessionResources resources;
    resources.unmetered = &driver;
    resources.link = &link;
    resources.devices = {{0, reinterpret_cast<CUcontext>(0x100)},
                         {1, reinterpret_cast<CUcontext>(0x200)}};
    resources.staging = staging.data();
    resources.staging_bytes = staging.size();
    resources.reply_memory = replies.data();
    resources.pinned_bytes = staging.size();
    resources.images = &images;
    if (link.traits().shares_pages) {
      resources.devices.pop_back();  // with several devices there are no marks
      resources.wait_marks = wait_marks;
    }
    return resources;
  }

  // Returns false if the session ended because of a malformed command.
  bool serve(bool shares_pages) {
    MemoryLink link(worker_window, client_window, shares_pages);
    server::ImageCache images({}, 0);
    Status status;
    {
      server::SessionLoop loop(resources(link, images), {std::chrono::nanoseconds(0)});
      status = loop.run();
    }
    // As at the end of a worker's process.
    if (clears_host_range) ::munmap(reinterpret_cast<void*>(kHostRange), kHostRangeBytes);
    return status.code() != Code::kProtocol;
  }

  void clear(size_t bytes) {
    std::fill(client_window.begin(), client_window.begin() + wire::ClientWindow::kCompletionWords,
              std::byte{0});
    std::fill(worker_window.begin(), worker_window.begin() + wire::WorkerWindow::kCommandRing,
              std::byte{0});
    const auto ring = worker_window.begin() + wire::WorkerWindow::kCommandRing;
    std::fill(ring,
              ring + static_cast<ptrdiff_t>(
                         std::min<size_t>(bytes, wire::WorkerWindow::kCommandRingBytes)),
              std::byte{0});
    std::fill(client_window.begin() + wire::ClientWindow::kEventRing,
              client_window.begin() + wire::ClientWindow::kEventRing + (64 << 10), std::byte{0});
  }
};

inline std::string command(uint16_t opcode, uint8_t flags, const std::string& body) {
  const auto& all = opcodes();
  const auto choice = std::find(all.begin(), all.end(), opcode) - all.begin();
  std::string text;
  text += static_cast<char>(choice);
  text += static_cast<char>(choice >> 8);
  text += static_cast<char>(flags);
  text += static_cast<char>(body.size());
  text += static_cast<char>(body.size() >> 8);
  return text + body;
}

template <typename Body>
std::string bytes_of(const Body& body) {
  return std::string(reinterpret_cast<const char*>(&body), sizeof body);
}

inline constexpr uint8_t kCall = 1, kContext = 4;

inline uint16_t of(wire::Custom opcode) { return static_cast<uint16_t>(opcode); }

// Exposes memory and makes two mirrors: one whose changes the worker tracks, and one that fits a
// reply. `signalled` is a command before these. The client does not end the second mirror.
inline std::string well_formed_mirrors(const wire::SignalBody& signalled) {
  using wire::Custom;
  constexpr uint64_t kBytes = 256 << 10, kSmallBytes = 4096, kRegion = 2;
  const wire::HostExposeBody exposed{World::kHostRange + (1 << 20), kBytes, kRegion, 0, 0, 0};
  const wire::MirrorBody large{exposed.address, kBytes - kSmallBytes, 3, kBytes, 0};
  const wire::MirrorBody small{large.address + large.bytes, kSmallBytes, 4, 2 * kSmallBytes, 0};
  const wire::MirrorChangesBody changes{large.address};
  const wire::MirrorNoteBody note{large.address, 8, kSmallBytes, signalled.stream, 0};
  const wire::MirrorFetchBehindBody behind{small.address, signalled.sequence, signalled.word, 0};
  std::string text = command(of(Custom::kHostExpose), kCall | kContext, bytes_of(exposed));
  for (const wire::MirrorBody& mirror : {large, small}) {
    text += command(of(Custom::kMirror), kCall | kContext, bytes_of(mirror));
  }
  text += command(of(Custom::kMirrorSent), kContext, "");
  text += command(of(Custom::kMirrorAwait), kContext,
                  bytes_of(wire::MirrorAwaitBody{signalled.stream}));
  text += command(of(Custom::kMirrorNote), kContext, bytes_of(note));
  text += command(of(Custom::kMirrorChanges), kCall | kContext, bytes_of(changes));
  for (const wire::MirrorBody& mirror : {large, small}) {
    text += command(of(Custom::kMirrorFetch), kCall | kContext,
                    bytes_of(wire::MirrorFetchBody{mirror.address}));
  }
  const wire::MirrorNewsBody news{1, signalled.sequence, signalled.word, 0};
  text += command(of(Custom::kMirrorNews), kCall | kContext | 2,
                  bytes_of(news) + bytes_of(wire::MirrorKnown{small.address, 1}));
  text += command(of(Custom::kMirrorFetchBehind), kCall | kContext | 2, bytes_of(behind));
  text += command(of(Custom::kUnmirror), kCall | kContext,
                  bytes_of(wire::MirrorFetchBody{large.address}));
  text += command(of(Custom::kHostUnexpose), kCall | kContext,
                  bytes_of(wire::HostUnexposeBody{exposed.address, exposed.region}));
  return text;
}

// A session with an image, a module, a library, launches, copies, mirrors and a host function, each
// well-formed.
inline std::string well_formed_session() {
  using wire::Custom;
  std::string text(1, '\1');
  const std::string image = ".version 8.0\n.target sm_75\n.address_size 64\n";
  const server::Sha256 hash = server::sha256(std::as_bytes(std::span(image)));
  wire::ImageQueryBody query{};
  std::memcpy(query.sha256, hash.data(), hash.size());
  query.bytes = image.size();
  wire::ImageChunkBody chunk{};
  std::memcpy(chunk.sha256, hash.data(), hash.size());
  chunk.staging_offset = ~0ull;
  chunk.bytes = static_cast<uint32_t>(image.size());
  wire::ModuleLoadBody load{};
  load.object = 1;
  load.image_count = 1;
  wire::FunctionInfoBody info{};
  info.object = 1;
  info.owner = 1;
  info.name_bytes = 8;
  wire::LaunchBody launch{};
  launch.function = 1;
  launch.grid[0] = launch.grid[1] = launch.grid[2] = 1;
  launch.block[0] = launch.block[1] = launch.block[2] = 1;
  launch.parameter_bytes = 24;
  wire::CopyInlineBody in{kDeviceBase, 16, 0};
  wire::CopyToReplyBody out{kDeviceBase, 64, 0};
  wire::CopyStagedBody staged{};
  staged.device_address = kDeviceBase;
  staged.bytes = 4096;
  staged.sequence = 1;
  wire::CopyBody between{};
  between.destination = kDeviceBase;
  between.source = kDeviceBase + 4096;
  between.bytes = 4096;
  wire::CopyShapeBody shape{};
  shape.destination.address = kDeviceBase;
  shape.source.address = kDeviceBase + 65536;
  shape.destination.pitch_bytes = shape.source.pitch_bytes = 512;
  shape.destination.height = shape.source.height = 16;
  shape.destination.type = shape.source.type = wire::MemoryType::kDevice;
  shape.width_bytes = 256;
  shape.height = 16;
  shape.depth = 1;
  wire::SignalBody signal{0, 3, 1};
  wire::HostExposeBody expose{};
  expose.address = World::kHostRange;
  expose.bytes = 65536;
  expose.region = 1;
  const wire::MirrorBody mirror{World::kHostRange, 8192, 1, 16384, 0};
  const wire::MirrorPatchBody patch{World::kHostRange, 4096, 1, 4096, 0};
  text += command(of(Custom::kPing), kCall, "");
  text += command(of(Custom::kImageQuery), kCall | kContext, bytes_of(query));
  text += command(of(Custom::kImageChunk), kContext, bytes_of(chunk) + image);
  text += command(of(Custom::kModuleLoad), kCall | kContext,
                  bytes_of(load) + std::string(hash.begin(), hash.end()));
  text += command(of(Custom::kFunctionInfo), kCall | kContext | 2, bytes_of(info) + "function");
  text += command(of(Custom::kLaunch), kContext, bytes_of(launch) + std::string(24, 'p'));
  text += command(of(Custom::kCopyInline), kContext, bytes_of(in) + std::string(16, 'b'));
  text += command(of(Custom::kCopyToReply), kCall | kContext, bytes_of(out));
  text += command(of(Custom::kCopyStaged), kContext, bytes_of(staged));
  text += command(of(Custom::kCopy), kContext, bytes_of(between));
  text += command(of(Custom::kCopyShape), kContext, bytes_of(shape));
  text += command(of(Custom::kHostExpose), kCall | kContext, bytes_of(expose));
  text += command(of(Custom::kMirror), kCall | kContext, bytes_of(mirror));
  text += command(of(Custom::kMirrorPatch), kContext,
                  bytes_of(patch) + std::string(4096 + 4096 / 8 + 16, 'm'));
  text += command(of(Custom::kSignal), kContext, bytes_of(signal));
  wire::Encoder stream;
  stream.value(unsigned{CU_STREAM_NON_BLOCKING});
  stream.value(wire::ObjectId{1});
  text += command(static_cast<uint16_t>(api::Opcode::cuStreamCreate), kCall | kContext,
                  {reinterpret_cast<const char*>(stream.body().data()), stream.body().size()});
  text += command(of(Custom::kSignal), kContext, bytes_of(wire::SignalBody{1, 4, 1}));
  text += command(of(Custom::kSynchronizeContext), kContext | 16, bytes_of(signal));
  text += well_formed_mirrors(signal);
  info.is_kernel = 1;
  text += command(of(Custom::kLibraryLoad), kCall | kContext,
                  bytes_of(load) + std::string(hash.begin(), hash.end()));
  text += command(of(Custom::kFunctionInfo), kCall | kContext | 2, bytes_of(info) + "function");
  text += command(of(Custom::kNoteWork), kContext, bytes_of(wire::NoteWorkBody{}));
  text += command(of(Custom::kLaunchHost), kContext, bytes_of(wire::LaunchHostBody{1, 0, 0}));
  return text;
}

inline bool fuzz_session(const uint8_t* data, size_t size) {
  if (size == 0 || size > (256u << 10)) return true;
  World& world = World::get();
  // In the ring, each command takes less than this many bytes more than in the input.
  constexpr size_t kOverhead = 64;
  size_t used = size;
  if (data[0] == 0) {
    std::memcpy(world.worker_window.data() + wire::WorkerWindow::kCommandRing, data + 1, size - 1);
  } else {
    std::string commands(reinterpret_cast<const char*>(data) + 1, size - 1);
    if (data[0] == 2) {
      static const std::string before = well_formed_session().substr(1);
      commands.insert(0, before);
    }
    world.send(reinterpret_cast<const uint8_t*>(commands.data()), commands.size());
    used = commands.size() + (commands.size() / 5 + 1) * kOverhead;
  }
  const bool accepted = world.serve(data[0] == 3);
  world.clear(used);
  return accepted;
}

}  // namespace rcuda::fuzz
