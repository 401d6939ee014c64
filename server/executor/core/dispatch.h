// The functions of a session that the generated handlers (api/gen) call. These handlers know the
// Executor by name only.
//
// The session loop reads a command, checks its header, makes its context current and looks the
// opcode up in the table. The handler decodes the body with wire::Decoder, which bounds every read,
// and resolves ids. Then it calls the driver through DriverTable, or a handwritten handler with the
// services of its family, and encodes the outputs.
// Executor thread only. Handlers do not wait for a GPU: work that has to wait becomes a Completion.
// custom.h lists the exceptions, and the handlers that wait for something else.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "api/blob.h"
#include "common/wire/codec.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/handler.h"

namespace rcuda::api {
// Generated (api/driver_table.h): one pointer per driver function. Null: the driver lacks it.
struct DriverTable;
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

// Resolves an id to the driver's handle: for events with Completions::event_for_command(), for
// other objects with SessionObjects::find_handle(). CUDA_ERROR_INVALID_HANDLE if the id names no
// object.
CUresult lookup(Executor& executor, wire::Kind kind, wire::ObjectId id, void** handle);
// Binds an id that the client minted. Returns false if the id is in use or may not be minted by a
// client; the command is then malformed.
bool bind(Executor& executor, wire::Kind kind, wire::ObjectId id, void* handle);
// Returns the id of a handle that the driver reported. The first call mints the id, with
// kWorkerMinted. 0 for a null handle.
wire::ObjectId name(Executor& executor, wire::Kind kind, void* handle);
void unbind(Executor& executor, wire::Kind kind, wire::ObjectId id);
// Returns the driver's device for a device number of the session. A session has some of the
// server's devices, in the client's order. CUDA_ERROR_INVALID_DEVICE if it has no such number.
CUresult lookup_device(Executor& executor, uint32_t ordinal, CUdevice* device);
// Returns the session's number of a driver's device, for outputs. -1 if the session does not have
// the device.
int32_t device_ordinal(Executor& executor, CUdevice device);
const api::DriverTable& driver(Executor& executor);
using api::Blob;
// Keeps a blob that is too large for one reply. Returns the number by which BlobRead reads it.
uint32_t keep_blob(Executor& executor, Blob blob);
// For host nodes of graphs: makes a host function from a callback of the client. The handler that
// adds the function to a graph takes ownership of it (HostCallbacks::take()). If no handler takes
// it, the next host_function() destroys it.
HostFunction host_function(Executor& executor, uint64_t callback);

}  // namespace rcuda::server
