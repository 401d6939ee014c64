// Launches. The client checks the shape and the parameters in the call, with the worker's data
// about the device and the function. Only the worker's driver checks launch attributes, so a launch
// with attributes is a round trip until the driver has accepted them. A launch on several devices
// is always a round trip. Any other launch is posted, and its errors are asynchronous. The client
// packs the parameters in the kernel's layout, so the command carries plain bytes.

#include <cstring>
#include <span>
#include <string>

#include <cuda.h>

#include "client/code/functions.h"
#include "client/code/launch_shape.h"
#include "client/code/parameters.h"
#include "client/hostmem/host_memory.h"
#include "client/mirror/mirror.h"
#include "client/objects/named.h"
#include "client/process/driver_variables.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "client/route/host_functions.h"
#include "client/session/wait.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// The tail of a launch command: parameters, then attributes. Allocates only if the tail is larger
// than `inline_`.
class LaunchTail {
 public:
  void reserve(size_t bytes) {
    if (bytes <= sizeof inline_) {
      data_ = inline_;
    } else {
      heap_.resize(bytes);
      data_ = heap_.data();
    }
    size_ = bytes;
  }
  std::span<std::byte> bytes() { return {data_, size_}; }

 private:
  alignas(8) std::byte inline_[4096];
  std::vector<std::byte> heap_;
  std::byte* data_ = inline_;
  size_t size_ = 0;
};

// Checks that all blocks of a cooperative launch fit on the device at the same time.
CUresult check_cooperative(CUfunction function, const LaunchShape& shape, const StreamRoute& route,
                           const Device& device) {
  int blocks = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      &blocks, function, static_cast<int>(shape.block[0] * shape.block[1] * shape.block[2]),
      shape.shared_bytes, 0));
  const Context* const context =
      context_of(route.stream ? route_of(*route.stream) : static_cast<const Route&>(route));
  const auto multiprocessors =
      context && context->green
          ? context->multiprocessors
          : static_cast<unsigned>(device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  const uint64_t resident = static_cast<uint64_t>(blocks) * multiprocessors;
  const uint64_t wanted = uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
  return wanted > resident ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

// Copies the attributes to `out`. In two kinds of attributes, replaces the event's handle by its
// id.
CUresult pack_attributes(const CUlaunchAttribute* attributes, unsigned count, const Route& route,
                         std::byte* out) {
  for (unsigned i = 0; i < count; ++i) {
    CUlaunchAttribute attribute = attributes[i];
    CUevent* event = nullptr;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
      event = &attribute.value.programmaticEvent.event;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      event = &attribute.value.launchCompletionEvent.event;
    }
    if (event) {
      auto* recorded = find<Event>(*event);
      if (!recorded || recorded->session != route.session) return CUDA_ERROR_INVALID_HANDLE;
      recorded->state.leave_to_worker();  // the launch records the event
      *event = reinterpret_cast<CUevent>(static_cast<uintptr_t>(recorded->id));
    }
    std::memcpy(out + i * sizeof attribute, &attribute, sizeof attribute);
  }
  return CUDA_SUCCESS;
}

// Returns the key of a launch for `accepted_launches`. The key has the attributes, without events
// and without the address of an access-policy window. It also has the parts of the shape that a
// driver checks together with attributes: the block, the shared memory, and whether the grid
// consists of whole clusters. Only a cooperative launch has its grid in the key, because programs
// launch with many different grids.
std::string attributes_key(const LaunchShape& shape, const CUlaunchAttribute* attributes,
                           unsigned count) {
  std::string key;
  const auto append = [&key](std::span<const std::byte> bytes) {
    key.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  append(std::as_bytes(std::span(shape.block)));
  append(std::as_bytes(std::span(&shape.shared_bytes, 1)));
  for (unsigned i = 0; i < count; ++i) {
    const CUlaunchAttribute& attribute = attributes[i];
    append(std::as_bytes(std::span(&attribute.id, 1)));
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        break;  // pack_attributes() checks the event
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        append(std::as_bytes(std::span(shape.grid)));  // the driver checks that all blocks fit
        append(value_of(attribute));
        break;
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:  // laid out like clusterDim
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
        const auto& cluster = attribute.value.clusterDim;
        const bool is_whole[] = {cluster.x && shape.grid[0] % cluster.x == 0,
                                 cluster.y && shape.grid[1] % cluster.y == 0,
                                 cluster.z && shape.grid[2] % cluster.z == 0};
        append(std::as_bytes(std::span(is_whole)));
        append(value_of(attribute));
        break;
      }
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: {
        const CUaccessPolicyWindow& window = attribute.value.accessPolicyWindow;
        append(std::as_bytes(std::span(&window.num_bytes, 1)));
        append(std::as_bytes(std::span(&window.hitRatio, 1)));
        append(std::as_bytes(std::span(&window.hitProp, 1)));
        append(std::as_bytes(std::span(&window.missProp, 1)));
        break;  // the window's address may differ in each launch
      }
      default:
        append(value_of(attribute));
        break;
    }
  }
  return key;
}

// Returns the result of a launch. With CUDA_LAUNCH_BLOCKING=1, waits until the kernel has ended. A
// capture in another stream forbids waits by the application, but not this wait.
CUresult finish(CUresult launched, const Route& route, CUstream stream) {
  if (launched != CUDA_SUCCESS || !driver_variables().launch_blocking) [[likely]]
    return launched;
  return may_capture(stream) ? CUDA_SUCCESS : synchronize(route);
}

struct LaunchCommand {
  explicit LaunchCommand(const StreamRoute& to) : route(to) { body.stream = to.id; }

  const StreamRoute route;
  Callable callable;
  wire::LaunchBody body{};
  size_t packed_bytes = 0;  // of parameters in the tail; the attributes follow
  LaunchTail tail;

  LaunchParameters packed() {
    return {tail.bytes().first(packed_bytes), callable.info->parameters};
  }
  CUresult post() {
    RCUDA_RETURN_IF_CUDA_ERROR(route.session->post(route, {body, tail.bytes()}));
    return route.session->take_error();
  }
  CUresult call() { return route.session->call(route, {body, tail.bytes()}); }
};

// Checks for the errors that a driver returns in the call.
CUresult check(CUfunction function, const LaunchShape& shape, bool cooperative,
               unsigned attribute_count, LaunchCommand* command) {
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_callable(function, command->route, &command->callable));
  const Device& device = *Process::get().device(static_cast<CUdevice>(command->route.device));
  RCUDA_RETURN_IF_CUDA_ERROR(check_shape(shape, device, *command->callable.info));
  if (cooperative) {
    RCUDA_RETURN_IF_CUDA_ERROR(check_cooperative(function, shape, command->route, device));
  }
  return attribute_count > wire::kMaxLaunchAttributes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult fill_tail(void** parameters, void** extra, const CUlaunchAttribute* attributes,
                   unsigned attribute_count, LaunchCommand* command) {
  const FunctionInfo& info = *command->callable.info;
  size_t exact_bytes;
  RCUDA_RETURN_IF_CUDA_ERROR(parameter_bytes(info, parameters, extra, &exact_bytes));
  command->packed_bytes = (exact_bytes + 7) & ~size_t{7};
  command->body.parameter_bytes = static_cast<uint32_t>(exact_bytes);
  command->body.attribute_count = static_cast<uint16_t>(attribute_count);
  command->tail.reserve(command->packed_bytes + attribute_count * sizeof(CUlaunchAttribute));
  const auto bytes = command->tail.bytes();
  RCUDA_RETURN_IF_CUDA_ERROR(
      pack_parameters(info, parameters, extra, bytes.first(command->packed_bytes)));
  return pack_attributes(attributes, attribute_count, command->route,
                         bytes.subspan(command->packed_bytes).data());
}

// Posts the launch if the driver has already accepted these attributes for this kernel and shape.
// Otherwise the launch is a round trip.
CUresult send_with_attributes(LaunchCommand& command, const LaunchShape& shape,
                              const CUlaunchAttribute* attributes, unsigned attribute_count) {
  // The most keys per function. Launches with further keys are always round trips.
  constexpr size_t kMaxKept = 1024;
  FunctionInfo& info = *command.callable.info;
  std::string key = attributes_key(shape, attributes, attribute_count);
  const bool was_accepted = [&] {
    MutexLock lock(info.launches_mutex);
    return info.accepted_launches.contains(key);
  }();
  if (was_accepted) return command.post();
  const CUresult result = command.call();
  if (result == CUDA_SUCCESS) {
    MutexLock lock(info.launches_mutex);
    if (info.accepted_launches.size() < kMaxKept) info.accepted_launches.insert(std::move(key));
  }
  return result;
}

CUresult launch_kernel(CUfunction function, const LaunchShape& shape, CUstream stream,
                       void** parameters, void** extra, bool cooperative,
                       const CUlaunchAttribute* attributes = nullptr,
                       unsigned attribute_count = 0) {
  RCUDA_ASSIGN_OR_RETURN(const Route context, find_work_route(stream));
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_stream_route(stream, context));
  LaunchCommand command(route);
  wire::LaunchBody& body = command.body;
  CUresult result = check(function, shape, cooperative, attribute_count, &command);
  if (result == CUDA_SUCCESS) {
    result = fill_tail(parameters, extra, attributes, attribute_count, &command);
  }
  if (result != CUDA_SUCCESS) {
    invalidate_capture(stream);
    return result;
  }
  pace(route);
  body.function = command.callable.info->id;
  body.is_kernel = command.callable.is_kernel;
  body.cooperative = cooperative;
  body.as_array = parameters && any_capture();
  std::memcpy(body.grid, shape.grid, sizeof body.grid);
  std::memcpy(body.block, shape.block, sizeof body.block);
  body.shared_bytes = shape.shared_bytes;
  const LaunchParameters packed = command.packed();
  mirror_reachable(command.route, packed);
  // In a capture, each launch of the graph pushes the mirrors instead.
  if (any_mirrored() && !may_capture(stream)) {
    RCUDA_RETURN_IF_CUDA_ERROR(push_mirrors(command.route, &packed));
  }
  command.callable.info->note_launch(command.route.context);
  result = attribute_count == 0 ? command.post()
                                : send_with_attributes(command, shape, attributes, attribute_count);
  return finish(result, command.route, stream);
}

// ---- one kernel on several devices -------------------------------------------------------------

// Appends one launch to the tail of a LaunchOnDevices command.
CUresult append_launch(const CUDA_LAUNCH_PARAMS& given, const StreamRoute& route,
                       std::vector<std::byte>* tail) {
  LaunchCommand command(route);
  const LaunchShape shape{{given.gridDimX, given.gridDimY, given.gridDimZ},
                          {given.blockDimX, given.blockDimY, given.blockDimZ},
                          given.sharedMemBytes};
  const InContext in_its_context(command.route);
  RCUDA_RETURN_IF_CUDA_ERROR(check(given.function, shape, true, 0, &command));
  RCUDA_RETURN_IF_CUDA_ERROR(fill_tail(given.kernelParams, nullptr, nullptr, 0, &command));
  wire::LaunchBody& body = command.body;
  body.function = command.callable.info->id;
  body.is_kernel = command.callable.is_kernel;
  std::memcpy(body.grid, shape.grid, sizeof body.grid);
  std::memcpy(body.block, shape.block, sizeof body.block);
  body.shared_bytes = shape.shared_bytes;
  command.callable.info->note_launch(command.route.context);
  const LaunchParameters packed = command.packed();
  mirror_reachable(command.route, packed);
  if (any_mirrored()) RCUDA_RETURN_IF_CUDA_ERROR(push_mirrors(command.route, &packed));
  const auto head = std::as_bytes(std::span(&body, 1));
  tail->insert(tail->end(), head.begin(), head.end());
  tail->insert(tail->end(), command.tail.bytes().begin(), command.tail.bytes().end());
  return CUDA_SUCCESS;
}

// Finds the streams of the launches. Default streams are refused, and so are two streams of one
// device. The devices must be of one server, because the kernels may wait for each other, and
// kernels on two servers cannot.
CUresult find_streams(std::span<const CUDA_LAUNCH_PARAMS> launches,
                      std::vector<StreamRoute>* streams) {
  for (const CUDA_LAUNCH_PARAMS& launch : launches) {
    if (!find<Stream>(launch.hStream)) return CUDA_ERROR_INVALID_HANDLE;
    RCUDA_ASSIGN_OR_RETURN(const StreamRoute stream, find_stream_route(launch.hStream));
    for (const StreamRoute& other : *streams) {
      if (other.device == stream.device) return CUDA_ERROR_INVALID_DEVICE;
      if (other.session != stream.session) return CUDA_ERROR_NOT_SUPPORTED;
    }
    streams->push_back(stream);
  }
  return CUDA_SUCCESS;
}

CUresult launch_on_devices(std::span<const CUDA_LAUNCH_PARAMS> launches, unsigned flags) {
  std::vector<StreamRoute> streams;
  RCUDA_RETURN_IF_CUDA_ERROR(find_streams(launches, &streams));
  std::vector<std::byte> tail;
  for (size_t i = 0; i < launches.size(); ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(append_launch(launches[i], streams[i], &tail));
  }
  for (const StreamRoute& stream : streams) pace(stream);
  const wire::LaunchOnDevicesBody body{static_cast<uint32_t>(launches.size()), flags};
  CUresult result = streams.front().session->call(streams.front(), {body, tail});
  // The command above counts in the timeline of the first stream only. NoteWork makes the timelines
  // of the other streams count their launch.
  for (size_t i = 1; i < streams.size() && result == CUDA_SUCCESS; ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(post(streams[i], wire::NoteWorkBody{streams[i].id}));
  }
  for (size_t i = 0; i < streams.size() && result == CUDA_SUCCESS; ++i) {
    result = finish(result, streams[i], launches[i].hStream);
  }
  return result;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** parameters, void** extra) {
  return launch_kernel(function,
                       {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes},
                       stream, parameters, extra, false);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
  if (!config || (config->numAttrs > 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  return launch_kernel(function,
                       {{config->gridDimX, config->gridDimY, config->gridDimZ},
                        {config->blockDimX, config->blockDimY, config->blockDimZ},
                        config->sharedMemBytes},
                       config->hStream, parameters, extra, false, config->attrs, config->numAttrs);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared_bytes, CUstream stream,
                                   void** parameters) {
  return launch_kernel(function,
                       {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes},
                       stream, parameters, nullptr, true);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches, unsigned count,
                                              unsigned flags) {
  constexpr unsigned kFlags = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                              CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!launches || count == 0 || count > Process::get().device_count() || (flags & ~kFlags)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return launch_on_devices({launches, count}, flags);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user_data) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  return launch_host_function(stream, function, user_data);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* user_data,
                             unsigned flags) {
  if (!callback || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return launch_stream_callback(stream,
                                [=](CUresult status) { callback(stream, status, user_data); });
}

}  // extern "C"
