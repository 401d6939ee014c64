#include "tests/unit/api/loopback.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "api/print_command.h"
#include "client/code/handles.h"
#include "client/route/find_route.h"
#include "server/executor/core/dispatch.h"

namespace rcuda::server {
class Executor {};
// Never read, because the recording driver replaces the code that uses services.
struct ContextServices {};
struct GraphServices {};
struct InterprocessServices {};
struct MemoryServices {};
struct ModuleServices {};
struct StreamServices {};
}  // namespace rcuda::server

namespace rcuda::loopback {

Recorded& Recorded::get() {
  static Recorded recorded;
  return recorded;
}

void Record::bytes(const void* data, size_t size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  for (size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<const unsigned char*>(data)[i];
    text_ += kDigits[byte >> 4];
    text_ += kDigits[byte & 15];
  }
  text_ += ' ';
}

void Record::handle(const void* handle, wire::Kind kind) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  const auto id = static_cast<uint32_t>(number & 0xffffff);
  if (handle == nullptr) {
    text_ += "#null ";
  } else if (number == handle_number(side_, kind, id)) {
    text_ += "#" + std::to_string(static_cast<int>(kind)) + ":" + std::to_string(id) + " ";
  } else {
    text_ += "foreign ";
  }
}

void Record::device(CUdevice device) {
  const CUdevice own = side_ == Side::kClient ? kClientDevice : kDriverDevice;
  text_ += device == own ? "device " : "another device ";
}

void Record::plain_location(CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) device(location.id);
  location.id = 0;
}

void Record::plain_devices(unsigned& mask) {
  for (CUdevice each = 0; each < 32; ++each) {
    if (mask >> each & 1) device(each);
  }
  mask = 0;
}

unsigned client_devices() { return 1u << kClientDevice; }

CUmemLocation client_location() {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = kClientDevice;
  return location;
}

server::HandlerResult run_handler(uint16_t opcode, std::span<const std::byte> body,
                                  std::vector<uint64_t>* reply, size_t* reply_bytes) {
  // malloc aligns like the worker's copy of a command, and the block ends where the body ends.
  const std::unique_ptr<void, decltype(&std::free)> exact(
      body.empty() ? nullptr : std::malloc(body.size()), &std::free);
  if (!body.empty()) std::memcpy(exact.get(), body.data(), body.size());
  const std::span received(static_cast<const std::byte*>(exact.get()), body.size());
  Recorded::get().printed = api::print_command(opcode, received);
  const server::HandlerEntry* entry = server::generated_handler(opcode);
  if (entry == nullptr) return {CUDA_ERROR_NOT_FOUND, true, false};
  wire::Decoder in(received);
  wire::Encoder out(api::kMaxReplyBytes);
  server::Executor executor;
  wire::CommandHeader header{};
  header.opcode = opcode;
  const server::HandlerResult result = entry->handler(executor, header, in, out);
  EXPECT_TRUE(out.ok() || result.malformed);
  reply->assign((out.size() + 7) / 8, 0);
  if (out.size() != 0) std::memcpy(reply->data(), out.body().data(), out.size());
  *reply_bytes = out.size();
  return result;
}

void expect_destroyed(const void* handle, wire::Kind kind) {
  const auto id = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(handle) & 0xffffff);
  EXPECT_TRUE(Recorded::get().unbound.contains({kind, id}));
  EXPECT_TRUE(Recorded::get().retired.contains({kind, id}));
}

}  // namespace rcuda::loopback

// ---- the client's end ---------------------------------------------------------------------------

namespace rcuda::client {

class Session {};  // replaces the real one

namespace {

using loopback::handle_number;
using loopback::Recorded;
using loopback::Side;

Session the_session;
// Replies are valid until the next call and aligned as in a reply slot.
std::vector<uint64_t> reply_memory;

Route the_route() { return {&the_session, 1, loopback::kClientDevice}; }

CUresult carry(uint16_t opcode, std::span<const std::byte> body, Reply* reply) {
  if (auto* const replies = Recorded::get().replies; replies && reply) {
    static std::vector<std::byte> current;
    current.clear();
    current.shrink_to_fit();
    if (!replies->empty()) {
      current = std::move(replies->front());
      replies->erase(replies->begin());
    }
    *reply = Reply(current);
    return CUDA_SUCCESS;
  }
  const server::HandlerEntry* entry = server::generated_handler(opcode);
  EXPECT_TRUE(entry != nullptr && entry->posted == (reply == nullptr));
  Recorded::get().opcode = opcode;
  Recorded::get().body.assign(body.begin(), body.end());
  size_t reply_bytes = 0;
  const auto result = loopback::run_handler(opcode, body, &reply_memory, &reply_bytes);
  EXPECT_EQ(Recorded::get().printed.find("malformed"), std::string::npos)
      << Recorded::get().printed;
  Recorded::get().malformed = result.malformed;
  if (reply != nullptr) {
    *reply = Reply(std::as_bytes(std::span(reply_memory)).first(reply_bytes));
    Recorded::get().reply.assign(reply->body().begin(), reply->body().end());
  }
  return result.result;
}

}  // namespace

CudaResult<Route> find_current_route() { return the_route(); }

CudaResult<Route> find_device_route(CUdevice device, uint32_t* ordinal) {
  if (device != loopback::kClientDevice) return CUDA_ERROR_INVALID_DEVICE;
  *ordinal = loopback::kOrdinal;
  return the_route();
}

int client_ordinal(const Route&, uint32_t worker_ordinal) {
  return worker_ordinal == loopback::kOrdinal ? loopback::kClientDevice : -1;
}

CudaResult<Route> find_address_route(CUdeviceptr) { return the_route(); }

CudaResult<Route> find_any_route() { return the_route(); }

CudaResult<Route> find_handle_route(const void*, wire::Kind) { return the_route(); }

CUresult resolve_handle(const void* handle, wire::Kind kind, const Route&, wire::ObjectId* id) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  *id = static_cast<wire::ObjectId>(number & 0xffffff);
  if (handle == nullptr) return CUDA_SUCCESS;
  return number == handle_number(Side::kClient, kind, *id) ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_HANDLE;
}

bool is_kernel(CUfunction handle) {
  wire::ObjectId id;
  return resolve_handle(handle, wire::Kind::kKernel, the_route(), &id) == CUDA_SUCCESS;
}

CudaResult<StreamRoute> find_stream_route(CUstream stream, const Route& route) {
  wire::ObjectId id;
  const CUresult result = resolve_handle(stream, wire::Kind::kStream, route, &id);
  if (result != CUDA_SUCCESS) return result;
  return StreamRoute{route, id, nullptr};
}

CudaResult<StreamRoute> find_stream_route(CUstream stream) {
  return find_stream_route(stream, the_route());
}

void pace(const Route&) {}

CUresult mint(const Route&, wire::Kind kind, void** handle, wire::ObjectId* id) {
  *id = Recorded::get().next_id++;
  *handle = reinterpret_cast<void*>(handle_number(Side::kClient, kind, *id));
  return CUDA_SUCCESS;
}

void* wrap_id(const Route&, wire::Kind kind, wire::ObjectId id) {
  return id == 0 ? nullptr : reinterpret_cast<void*>(handle_number(Side::kClient, kind, id));
}

void retire(const void* handle, wire::Kind kind) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  Recorded::get().retired.insert({kind, static_cast<uint32_t>(number & 0xffffff)});
}

CUresult post(const Route&, const wire::Command& command, bool*) {
  ++Recorded::get().posted;
  return carry(command.opcode, command.body, nullptr);
}

CUresult call(const Route&, const wire::Command& command, size_t reply_bytes, Reply* reply) {
  ++Recorded::get().called;
  const CUresult result = carry(command.opcode, command.body, reply);
  if (!Recorded::get().replies) {
    EXPECT_LE(reply->body().size(), reply_bytes);
  }
  return result;
}

CUresult malformed_reply(const Route&, uint16_t) { return CUDA_ERROR_UNKNOWN; }

}  // namespace rcuda::client

// ---- the worker's end ---------------------------------------------------------------------------

namespace rcuda::server {

using loopback::handle_number;
using loopback::Recorded;
using loopback::Side;

CUresult lookup(Executor&, wire::Kind kind, wire::ObjectId id, void** handle) {
  *handle = id == 0 ? nullptr : reinterpret_cast<void*>(handle_number(Side::kWorker, kind, id));
  return id < 0x100'0000 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

bool bind(Executor&, wire::Kind kind, wire::ObjectId id, void* handle) {
  return Recorded::get().bound.emplace(std::pair(kind, id), handle).second;
}

void unbind(Executor&, wire::Kind kind, wire::ObjectId id) {
  Recorded::get().unbound.insert({kind, id});
}

wire::ObjectId name(Executor&, wire::Kind kind, void* handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  const auto id = static_cast<wire::ObjectId>(number & 0xffffff);
  if (handle != nullptr) {
    EXPECT_EQ(number, handle_number(Side::kWorker, kind, id));
  }
  return id;
}

CUresult lookup_device(Executor&, uint32_t ordinal, CUdevice* device) {
  if (ordinal != loopback::kOrdinal) return CUDA_ERROR_INVALID_DEVICE;
  *device = loopback::kDriverDevice;
  return CUDA_SUCCESS;
}

int32_t device_ordinal(Executor&, CUdevice device) {
  return device == loopback::kDriverDevice ? static_cast<int32_t>(loopback::kOrdinal) : -1;
}

const api::DriverTable& driver(Executor&) { return Recorded::get().driver; }

namespace {
template <typename Services>
Services& no_services() {
  static Services services;
  return services;
}
}  // namespace

ContextServices& context_services(Executor&) { return no_services<ContextServices>(); }
GraphServices& graph_services(Executor&) { return no_services<GraphServices>(); }
InterprocessServices& interprocess_services(Executor&) {
  return no_services<InterprocessServices>();
}
MemoryServices& memory_services(Executor&) { return no_services<MemoryServices>(); }
ModuleServices& module_services(Executor&) { return no_services<ModuleServices>(); }
StreamServices& stream_services(Executor&) { return no_services<StreamServices>(); }

uint32_t keep_blob(Executor&, Blob) { return 1; }

HostFunction host_function(Executor&, uint64_t callback) {
  static const CUhostFn kRun = [](void*) {};
  return {kRun, reinterpret_cast<void*>(callback + 0x1000)};
}

}  // namespace rcuda::server
