// Handlers of copies: between device memory and commands, replies, the staging region, exposed
// client memory and other devices.
#include <initializer_list>
#include <limits>
#include <optional>

#include "api/server_commands.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/answers/answers.h"
#include "server/executor/answers/device_output.h"
#include "server/executor/graphs/copy_range.h"
#include "server/executor/core/custom.h"
#include "server/executor/core/session_resources.h"
#include "server/executor/graphs/graph_keeper.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/host_memory/transfers.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/capture.h"
#include "server/executor/streams/completions.h"

namespace rcuda::server {
namespace {

// Whether a copy may touch the memory: the driver knows it, or the client exposed it. Any other
// address belongs to this process itself, and a wrong pointer would crash the worker.
bool reachable(CopyServices& services, CUstream stream, uint64_t address, uint64_t bytes) {
  return services.host_memory.find(address, bytes) ||
         services.graph_keeper.is_known(address, stream);
}

// For a captured copy: makes the graph the owner of the stand-ins (client/copy/stand_in.h) at these
// addresses.
void hand_to_graph(CopyServices& services, const SessionStream& stream,
                   std::initializer_list<uint64_t> addresses) {
  if (!services.host_memory.any_for_graphs()) return;
  for (const uint64_t address : addresses) {
    if (auto resource = services.host_memory.claim(address)) {
      (void)services.graph_keeper.retain(captured_into(services.driver, stream.handle),
                                         std::move(resource));
    }
  }
}

// Whether `immediate` is valid: 0 (none), or the immediate of a write over a medium that has
// immediates.
bool may_write(const CopyServices& services, uint32_t immediate) {
  return immediate == 0 || services.resources.link->traits().has_immediates;
}

// Signals `error` when the stream has reached this point.
void signal_behind(CopyServices& services, const SessionStream& stream, WordSignal signal,
                   CUresult error) {
  services.completions.add(stream, [&answers = services.answers, signal, error](CUresult) {
    answers.signal(signal, error);
  });
}

}  // namespace

HandlerResult copy_inline(CopyServices& services, const Command& command,
                          const wire::CopyInlineBody& body) {
  BodyReader in(command.tail);
  std::span<const std::byte> bytes;
  if (!in.bytes(body.bytes, &bytes) || body.bytes > wire::kMaxInlineBytes) {
    return kMalformed;
  }
  SessionStream stream;
  RCUDA_RETURN_IF_CUDA_ERROR(services.objects.use_stream(body.stream, &stream));
  // The source is pageable, so the driver copies the bytes before it returns.
  const CUresult result = services.driver.cuMemcpyHtoDAsync_v2(body.destination, bytes.data(),
                                                               bytes.size(), stream.handle);
  if (result == CUDA_SUCCESS) services.done.copied(wire::Counter::kBytesToDevice, body.bytes);
  return result;
}

HandlerResult copy_to_reply(CopyServices& services, const Command& command,
                            const wire::CopyToReplyBody& body) {
  if (body.bytes > command.target.capacity()) return kMalformed;
  SessionStream stream;
  RCUDA_RETURN_IF_CUDA_ERROR(services.objects.use_stream(body.stream, &stream));
  // Each reply slot has its own part of the page-locked memory, so replies in progress never share
  // memory.
  std::byte* const memory =
      services.resources.reply_memory + (command.target.slot - wire::ClientWindow::kSmallReplies);
  const CUresult result =
      services.driver.cuMemcpyDtoHAsync_v2(memory, body.source, body.bytes, stream.handle);
  if (result != CUDA_SUCCESS) return result;
  services.done.copied(wire::Counter::kBytesToHost, body.bytes);
  ContextState* const context = stream.context;
  services.completions.add(
      stream, [&output = services.output, &answers = services.answers, context, memory,
               bytes = body.bytes, target = command.target](CUresult done) {
        output.flush(*context);
        answers.reply(target, done,
                      done == CUDA_SUCCESS ? std::span<const std::byte>(memory, bytes)
                                           : std::span<const std::byte>());
      });
  return kDeferred;
}

HandlerResult copy_staged(CopyServices& services, const Command&,
                          const wire::CopyStagedBody& body) {
  if (body.to_device > 1) return kMalformed;
  const uint64_t limit = services.resources.staging_bytes;
  if (body.bytes > limit || body.staging_offset > limit - body.bytes) return kMalformed;
  if (!may_write(services, body.immediate) || (body.immediate != 0 && body.bytes == 0)) {
    return kMalformed;
  }
  const bool comes = body.to_device && body.immediate != 0;
  const WordSignal signal{body.word, body.sequence};
  SessionStream stream;
  CUresult result = services.objects.use_stream(body.stream, &stream);
  const bool has_stream = result == CUDA_SUCCESS;
  if (comes && has_stream) {
    result = services.transfers.await_write(stream, body.immediate, body.bytes);
  }
  if (result == CUDA_SUCCESS) {
    const api::DriverTable& driver = services.driver;
    std::byte* const staging = services.resources.staging + body.staging_offset;
    result =
        body.to_device
            ? driver.cuMemcpyHtoDAsync_v2(body.device_address, staging, body.bytes, stream.handle)
            : driver.cuMemcpyDtoHAsync_v2(staging, body.device_address, body.bytes, stream.handle);
  }
  if (result != CUDA_SUCCESS) {
    // The client may reuse the slot after the signal. So the signal waits until the client's writes
    // into the slot have arrived.
    if (comes && has_stream) {
      signal_behind(services, stream, signal, result);
    } else if (comes) {
      services.arrivals.expect(body.immediate, transport::RegionId::kNone, body.bytes,
                               [&answers = services.answers, signal, result](const Status&) {
                                 answers.signal(signal, result);
                               });
    } else {
      services.answers.signal(signal, result);
    }
    // The word of a copy to the device only reports that the slot is free, so the error also
    // becomes the session's error.
    return body.to_device ? result : CUDA_SUCCESS;
  }
  services.done.copied(body.to_device ? wire::Counter::kBytesToDevice : wire::Counter::kBytesToHost,
                       body.bytes);
  if (body.to_device || body.immediate == 0) {
    services.completions.add(stream, signal, body.to_device == 0);
    return {};
  }
  ContextState* const context = stream.context;
  services.completions.add(stream, [&services, context, body, signal](CUresult done) {
    services.output.flush(*context);
    if (done == CUDA_SUCCESS) {
      // The signal need not wait for this write: the client reuses the slot only after it has the
      // bytes.
      services.resources.link->write_with_immediate(
          static_cast<transport::RegionId>(body.region), body.region_offset,
          services.resources.staging + body.staging_offset, body.bytes, body.immediate,
          transport::Company::kAwaited, [](const Status&) {});
    }
    services.answers.signal(signal, done);
  });
  return {};
}

namespace {

// A copy within the client's memory also counts as kBytesOnServer.
wire::Counter direction(bool from_client, bool to_client) {
  if (from_client == to_client) return wire::Counter::kBytesOnServer;
  return from_client ? wire::Counter::kBytesToDevice : wire::Counter::kBytesToHost;
}

wire::Counter direction_of(const HostMemory& host_memory, const wire::CopyBody& body) {
  return direction(host_memory.find(body.source, body.bytes) != nullptr,
                   host_memory.find(body.destination, body.bytes) != nullptr);
}

// Queues a copy of memory that the driver knows. If exactly one side is client memory, calls the
// driver's function for this direction. So the driver need not look up both addresses, and the node
// of a captured copy has the memory types that the application expects.
CUresult queue_linear(CopyServices& services, const wire::CopyBody& body, wire::Counter direction,
                      CUstream stream, bool captured) {
  const api::DriverTable& driver = services.driver;
  if (direction == wire::Counter::kBytesToDevice) {
    return driver.cuMemcpyHtoDAsync_v2(body.destination, reinterpret_cast<void*>(body.source),
                                       body.bytes, stream);
  }
  if (direction == wire::Counter::kBytesToHost) {
    return driver.cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(body.destination), body.source,
                                       body.bytes, stream);
  }
  if (captured && services.host_memory.find(body.source, body.bytes) == nullptr) {
    return driver.cuMemcpyDtoDAsync_v2(body.destination, body.source, body.bytes, stream);
  }
  return driver.cuMemcpyAsync(body.destination, body.source, body.bytes, stream);
}

// Queues a copy between contexts: the driver cannot find the contexts by the addresses alone.
CUresult copy_between(CopyServices& services, const wire::CopyBody& body, CUstream stream) {
  ContextState* const destination = services.objects.find_context(body.destination_context);
  ContextState* const source = services.objects.find_context(body.source_context);
  if (!destination || !source) return CUDA_ERROR_INVALID_CONTEXT;
  return services.driver.cuMemcpyPeerAsync(body.destination, destination->handle, body.source,
                                           source->handle, body.bytes, stream);
}

CUresult queue_copy(CopyServices& services, const wire::CopyBody& body,
                    const SessionStream& stream) {
  if (!reachable(services, stream.handle, body.destination, body.bytes) ||
      !reachable(services, stream.handle, body.source, body.bytes)) {
    if (body.immediate != 0) services.transfers.await_writes(stream, body);
    return CUDA_ERROR_INVALID_VALUE;
  }
  const wire::Counter direction = direction_of(services.host_memory, body);
  // The transfers of captured copies are added when the graph is instantiated (graph_copies.h).
  const bool captured = captured_into(services.driver, stream.handle) != nullptr;
  std::optional<CUresult> moved;
  if (!captured) moved = services.transfers.copy(stream, body);
  CUresult result = CUDA_SUCCESS;
  if (moved) {
    result = *moved;
  } else if (captured || (body.destination_context == 0 && body.source_context == 0)) {
    // A driver cannot capture cuMemcpyPeerAsync. A captured copy needs no contexts: the driver
    // finds the devices by the addresses.
    result = queue_linear(services, body, direction, stream.handle, captured);
    if (result == CUDA_SUCCESS) hand_to_graph(services, stream, {body.destination, body.source});
  } else {
    result = copy_between(services, body, stream.handle);
  }
  if (result == CUDA_SUCCESS && !captured) services.done.copied(direction, body.bytes);
  return result;
}

// Ends a command that may carry a completion word. If it carries one, a thread of the client waits
// for this word, so an error goes into the word. Otherwise the command returns the error.
HandlerResult signal_or_fail(CopyServices& services, const SessionStream& stream, WordSignal signal,
                             CUresult result) {
  if (signal.sequence == 0) return result;
  if (result != CUDA_SUCCESS) {
    services.answers.signal(signal, result);
  } else {
    services.completions.add(stream, signal, true);
  }
  return {};
}

}  // namespace

HandlerResult copy(CopyServices& services, const Command&, const wire::CopyBody& body) {
  if (!may_write(services, body.immediate)) return kMalformed;
  SessionStream stream;
  CUresult result = services.objects.use_stream(body.stream, &stream);
  if (result == CUDA_SUCCESS && body.bytes != 0) result = queue_copy(services, body, stream);
  const WordSignal signal{body.word, body.sequence};
  // The client may reuse the source after it receives the error, so no bytes may be in flight then.
  const bool comes = body.immediate != 0 || (body.flags & wire::kSourceReady) != 0;
  if (result != CUDA_SUCCESS && comes && stream.context && signal.sequence != 0) {
    signal_behind(services, stream, signal, result);
    return {};
  }
  return signal_or_fail(services, stream, signal, result);
}

// ---- shapes ------------------------------------------------------------------------------------

namespace {

// Returns the address of the first byte of linear memory that the copy touches, or 0 if it touches
// none. This byte may lie far after `side.address`.
uint64_t first_byte_of(const wire::CopyShapeSide& side, const wire::CopyShapeBody& body) {
  if (side.type == wire::MemoryType::kArray) return 0;
  const std::optional<CopyRange> range = range_of(side_of(side), extent_of(body));
  return range && range->bytes != 0 ? range->first : 0;
}

struct Side {
  CUmemorytype type = CU_MEMORYTYPE_DEVICE;
  void* host = nullptr;
  CUdeviceptr device = 0;
  CUarray array = nullptr;
  CUcontext context = nullptr;
};

// Checks one side and converts it to the driver's types. Sets `malformed` if a staged side lies
// outside of the staging region. No correct client sends such a side.
CUresult resolve_side(CopyServices& services, CUstream stream, const wire::CopyShapeSide& side,
                      bool staged, const wire::CopyShapeBody& body, Side* out, bool* malformed) {
  if (side.context != 0) {
    ContextState* context = services.objects.find_context(side.context);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    out->context = context->handle;
  }
  if (side.type == wire::MemoryType::kArray) {
    void* handle = nullptr;
    if (side.address > std::numeric_limits<wire::ObjectId>::max()) return CUDA_ERROR_INVALID_HANDLE;
    const CUresult result = services.objects.find_handle(
        wire::Kind::kArray, static_cast<wire::ObjectId>(side.address), &handle);
    if (result != CUDA_SUCCESS || !handle) return CUDA_ERROR_INVALID_HANDLE;
    out->type = CU_MEMORYTYPE_ARRAY;
    out->array = static_cast<CUarray>(handle);
    return CUDA_SUCCESS;
  }
  // The client always sends the pitch and the height, so range_of() fails only for overflows.
  const std::optional<CopyRange> range = range_of(side_of(side), extent_of(body));
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  if (staged) {
    const uint64_t limit = services.resources.staging_bytes;
    if (range->first > limit || range->bytes > limit - range->first) {
      *malformed = true;
      return CUDA_ERROR_INVALID_VALUE;
    }
    out->type = CU_MEMORYTYPE_HOST;
    out->host = services.resources.staging + side.address;
    return CUDA_SUCCESS;
  }
  if (!reachable(services, stream, range->first, range->bytes)) return CUDA_ERROR_INVALID_VALUE;
  switch (side.type) {
    case wire::MemoryType::kHost:
      out->type = CU_MEMORYTYPE_HOST;
      out->host = reinterpret_cast<void*>(side.address);
      return CUDA_SUCCESS;
    case wire::MemoryType::kDevice:
      out->type = CU_MEMORYTYPE_DEVICE;
      break;
    case wire::MemoryType::kUnified:
      out->type = CU_MEMORYTYPE_UNIFIED;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  out->device = side.address;
  return CUDA_SUCCESS;
}

// CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER name their common fields alike.
template <typename Shape>
Shape shape_of(const wire::CopyShapeBody& body, const Side& source, const Side& destination) {
  Shape shape{};
  shape.srcXInBytes = body.source.x_bytes;
  shape.srcY = body.source.y;
  shape.srcZ = body.source.z;
  shape.srcLOD = body.source.lod;
  shape.srcMemoryType = source.type;
  shape.srcHost = source.host;
  shape.srcDevice = source.device;
  shape.srcArray = source.array;
  shape.srcPitch = body.source.pitch_bytes;
  shape.srcHeight = body.source.height;
  shape.dstXInBytes = body.destination.x_bytes;
  shape.dstY = body.destination.y;
  shape.dstZ = body.destination.z;
  shape.dstLOD = body.destination.lod;
  shape.dstMemoryType = destination.type;
  shape.dstHost = destination.host;
  shape.dstDevice = destination.device;
  shape.dstArray = destination.array;
  shape.dstPitch = body.destination.pitch_bytes;
  shape.dstHeight = body.destination.height;
  shape.WidthInBytes = body.width_bytes;
  shape.Height = body.height;
  shape.Depth = body.depth;
  return shape;
}

// Appends the rows of one side if they lie in a shadow and have to be moved over the Link. Appends
// nothing for other memory, or if the bytes are already `here`. Returns false if there are too many
// rows to move one by one.
bool shadow_rows(CopyServices& services, const wire::CopyShapeSide& side, bool here,
                 const wire::CopyShapeBody& body, std::vector<Transfers::Piece>* rows) {
  constexpr uint64_t kMostRows = 1u << 20;
  if (here || side.type == wire::MemoryType::kArray) return true;
  const CopySide linear = side_of(side);
  const std::optional<CopyRange> touched = range_of(linear, extent_of(body));
  if (!touched || touched->bytes == 0) return true;
  const HostMemory::Range* range = services.host_memory.find(touched->first, touched->bytes);
  if (!range || !range->shadow) return true;
  if (body.height > kMostRows || body.depth > kMostRows / body.height) return false;
  for (uint64_t z = 0; z < body.depth; ++z) {
    for (uint64_t y = 0; y < body.height; ++y) {
      rows->push_back({linear.row(y, z), body.width_bytes});
    }
  }
  return true;
}

bool is_clients(const HostMemory& host_memory, const Side& side) {
  return side.type == CU_MEMORYTYPE_HOST ||
         (side.type != CU_MEMORYTYPE_ARRAY && host_memory.find(side.device, 1) != nullptr);
}

CUresult queue_shape(CopyServices& services, const wire::CopyShapeBody& body,
                     const SessionStream& stream, const Side& source, const Side& destination) {
  const api::DriverTable& driver = services.driver;
  const bool captured = captured_into(services.driver, stream.handle) != nullptr;
  CUresult result = CUDA_SUCCESS;
  if (!captured && (source.context || destination.context)) {  // see queue_copy()
    auto shape = shape_of<CUDA_MEMCPY3D_PEER>(body, source, destination);
    CUcontext current =
        services.objects.current_context() ? services.objects.current_context()->handle : nullptr;
    shape.srcContext = source.context ? source.context : current;
    shape.dstContext = destination.context ? destination.context : current;
    result = driver.cuMemcpy3DPeerAsync(&shape, stream.handle);
  } else {
    const auto shape = shape_of<CUDA_MEMCPY3D>(body, source, destination);
    result = driver.cuMemcpy3DAsync_v2(&shape, stream.handle);
  }
  if (result == CUDA_SUCCESS && !captured) {
    services.done.copied(direction(is_clients(services.host_memory, source),
                                   is_clients(services.host_memory, destination)),
                         extent_of(body).volume());
  }
  return result;
}

}  // namespace

HandlerResult copy_shape(CopyServices& services, const Command&, const wire::CopyShapeBody& body) {
  bool malformed = false;
  Side source, destination;
  SessionStream stream;
  CUresult result = services.objects.use_stream(body.stream, &stream);
  if (result == CUDA_SUCCESS) {
    result = resolve_side(services, stream.handle, body.source, body.source_staged, body, &source,
                          &malformed);
  }
  if (result == CUDA_SUCCESS) {
    result = resolve_side(services, stream.handle, body.destination, body.destination_staged, body,
                          &destination, &malformed);
  }
  if (malformed) return kMalformed;
  const bool source_here = body.source_staged || (body.flags & wire::kSourceMirrored);
  const bool destination_here =
      body.destination_staged || (body.flags & wire::kDestinationMirrored);
  std::vector<Transfers::Piece> pulled, pushed;
  if (result == CUDA_SUCCESS &&
      (!shadow_rows(services, body.source, source_here, body, &pulled) ||
       !shadow_rows(services, body.destination, destination_here, body, &pushed))) {
    result = CUDA_ERROR_NOT_SUPPORTED;
  }
  if (result == CUDA_SUCCESS && !pulled.empty()) {
    result = services.transfers.move(stream, false, pulled);
  }
  if (result == CUDA_SUCCESS) result = queue_shape(services, body, stream, source, destination);
  if (result == CUDA_SUCCESS && !pushed.empty()) {
    result = services.transfers.move(stream, true, pushed);
  }
  if (result == CUDA_SUCCESS && body.source_staged == 0 && body.destination_staged == 0) {
    hand_to_graph(services, stream,
                  {first_byte_of(body.source, body), first_byte_of(body.destination, body)});
  }
  const HandlerResult ended = signal_or_fail(services, stream, {body.word, body.sequence}, result);
  // The word of a copy from the staging region only reports that the slot is free, so the error
  // also becomes the session's error.
  return body.source_staged ? HandlerResult(result) : ended;
}

}  // namespace rcuda::server
