// What the generated handlers (api/gen) ask of a session. They know the Executor by name only.
//
// The session loop reads a command, checks its header, makes its context current and looks the
// opcode up in the table. The handler decodes the body with wire::Decoder (which bounds every
// read), resolves ids, calls the driver through DriverTable, or a handwritten handler with the
// services of its family, and encodes its outputs.
// Executor thread only. Handlers never block: what has to wait becomes a Completion.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "api/stubs/blob.h"
#include "common/wire/codec.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/handler.h"

namespace rcuda::api {
struct DriverTable;  // generated, api/driver_table.h: one pointer per driver function; null: lacks
                     // it
}

namespace rcuda::server {

class Executor;  // executor.h

using Handler = HandlerResult (*)(Executor& executor, const wire::CommandHeader& header,
                                  wire::Decoder& in, wire::Encoder& out);

struct HandlerEntry {
  Handler handler = nullptr;
  const char* name = nullptr;
  bool posted = false;
};

// Generated: the handler of an opcode >= kFirstGenerated, or nullptr.
const HandlerEntry* generated_handler(uint16_t opcode);

// Ids to the driver's handles. CUDA_ERROR_INVALID_HANDLE for what is not there.
CUresult lookup(Executor& executor, wire::Kind kind, wire::ObjectId id, void** handle);
// Binds a client-minted id; replaces nothing: an id in use is a malformed command (false).
bool bind(Executor& executor, wire::Kind kind, wire::ObjectId id, void* handle);
// The id of a handle that the driver named; minted with kWorkerMinted on first sight, 0 for null.
wire::ObjectId name(Executor& executor, wire::Kind kind, void* handle);
void unbind(Executor& executor, wire::Kind kind, wire::ObjectId id);
// The driver's device for a session's device number: a session has some of the server's devices, in
// the client's order. CUDA_ERROR_INVALID_DEVICE beyond them.
CUresult lookup_device(Executor& executor, uint32_t ordinal, CUdevice* device);
// The session's number of a driver's device, for outputs; -1 when it is not one of the session's.
int32_t device_ordinal(Executor& executor, CUdevice device);
const api::DriverTable& driver(Executor& executor);
// What the handwritten handlers of a family may use: services.h.
struct ContextServices;
struct GraphServices;
struct MemoryServices;
struct ModuleServices;
struct StreamServices;
ContextServices& context_services(Executor& executor);
GraphServices& graph_services(Executor& executor);
MemoryServices& memory_services(Executor& executor);
ModuleServices& module_services(Executor& executor);
StreamServices& stream_services(Executor& executor);
using api::Blob;
// Keeps what a reply cannot carry whole, and returns the number by which BlobRead asks for it.
uint32_t keep_blob(Executor& executor, Blob blob);
// For host nodes of graphs: makes a host function of a callback of the client's. The handler that
// adds the function to a graph takes it (host_callbacks.h); else it is gone when the next one is
// made.
HostFunction host_function(Executor& executor, uint64_t callback);

}  // namespace rcuda::server
