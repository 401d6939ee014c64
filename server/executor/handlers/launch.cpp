// Handlers of launches: kernels, host functions, and the query that the client sends before it
// launches a function.
#include <algorithm>
#include <climits>
#include <cstddef>
#include <string>
#include <vector>

#include "api/server_commands.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/core/custom.h"
#include "server/executor/core/parameters.h"
#include "server/executor/graphs/host_callbacks.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/completions.h"

namespace rcuda::server {
namespace {

void remember_parameters(Object& object, const std::vector<wire::ParameterInfo>& parameters) {
  object.parameters_known = true;
  object.parameter_bytes = 0;
  for (const wire::ParameterInfo& parameter : parameters) {
    object.parameter_bytes =
        std::max(object.parameter_bytes, parameter.offset_bytes + parameter.size_bytes);
  }
}

// Replaces the event id in a launch attribute by the driver's handle. Refuses device-updatable
// nodes, because the driver would return their handle in the attribute, and a Launch command has no
// reply.
CUresult translate(LaunchServices& services, CUlaunchAttribute* attribute) {
  const auto event_of = [&](CUevent* event) {
    const auto id = reinterpret_cast<uintptr_t>(*event);
    if (id > UINT32_MAX) return CUDA_ERROR_INVALID_HANDLE;
    return services.completions.event_for_command(static_cast<wire::ObjectId>(id), event);
  };
  switch (attribute->id) {
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      return event_of(&attribute->value.programmaticEvent.event);
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      return event_of(&attribute->value.launchCompletionEvent.event);
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_SUCCESS;
  }
}

// `separate`, `packed`: the arguments kernelParams and extra of cuLaunchKernel.
CUresult launch_with_attributes(LaunchServices& services, const wire::LaunchBody& body,
                                std::span<const std::byte> attribute_bytes, CUfunction function,
                                CUstream stream, void** separate, void** packed) {
  CUlaunchAttribute attributes[wire::kMaxLaunchAttributes + 1];
  unsigned count = body.attribute_count;
  if (count) std::memcpy(attributes, attribute_bytes.data(), attribute_bytes.size());
  for (unsigned i = 0; i < count; ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(translate(services, &attributes[i]));
  }
  if (body.cooperative) {
    // cuLaunchCooperativeKernel takes no packed parameters. The attribute makes the same launch.
    attributes[count] = {};
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[count].value.cooperative = 1;
    ++count;
  }
  CUlaunchConfig config{};
  config.gridDimX = body.grid[0];
  config.gridDimY = body.grid[1];
  config.gridDimZ = body.grid[2];
  config.blockDimX = body.block[0];
  config.blockDimY = body.block[1];
  config.blockDimZ = body.block[2];
  config.sharedMemBytes = body.shared_bytes;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return services.driver.cuLaunchKernelEx(&config, function, separate, packed);
}

Object* find_function(LaunchServices& services, const wire::LaunchBody& body) {
  return services.objects.of(body.is_kernel ? wire::Kind::kKernel : wire::Kind::kFunction)
      .find(body.function);
}

}  // namespace

// Whether the driver may load the function for this launch. The driver loads a function at its
// first launch in a context, and may then wait for the device.
bool launch_may_wait(LaunchServices& services, const Command& command,
                     const wire::LaunchBody& body) {
  const Object* stream =
      body.stream ? services.objects.of(wire::Kind::kStream).find(body.stream) : nullptr;
  const Object* function = find_function(services, body);
  return function && function->launched_in != (stream ? stream->context : command.header.context);
}

HandlerResult launch(LaunchServices& services, const Command& command,
                     const wire::LaunchBody& body) {
  BodyReader in(command.tail);
  std::span<const std::byte> parameters, attribute_bytes;
  if (body.parameter_bytes > wire::kMaxParameterBytes ||
      body.attribute_count > wire::kMaxLaunchAttributes ||
      !in.bytes((body.parameter_bytes + 7u) & ~7u, &parameters) ||
      !in.bytes(body.attribute_count * sizeof(CUlaunchAttribute), &attribute_bytes)) {
    return kMalformed;
  }
  Object* object = find_function(services, body);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  const api::DriverTable& driver = services.driver;
  if (!object->parameters_known) {
    remember_parameters(*object, parameters_of(driver, object->handle, body.is_kernel));
  }
  // The driver may read all parameters. The client fills in those that the program has left out.
  if (body.parameter_bytes < object->parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto function = static_cast<CUfunction>(object->handle);
  SessionStream stream;
  RCUDA_RETURN_IF_CUDA_ERROR(services.objects.use_stream(body.stream, &stream));
  object->launched_in = stream.context->id;
  size_t parameter_bytes = body.parameter_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(parameters.data()),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &parameter_bytes, CU_LAUNCH_PARAM_END};
  void** packed = parameter_bytes ? extra : nullptr;
  void** separate = nullptr;
  std::vector<void*> pointers;
  if (packed && body.as_array) {
    // The launch may be captured: a query of the graph node then returns the parameters in this
    // form.
    for (const wire::ParameterInfo& parameter :
         parameters_of(driver, object->handle, body.is_kernel)) {
      pointers.push_back(const_cast<std::byte*>(parameters.data()) + parameter.offset_bytes);
    }
    if (!pointers.empty()) {
      separate = pointers.data();
      packed = nullptr;
    }
  }
  if (body.attribute_count == 0 && !body.cooperative) [[likely]] {
    return driver.cuLaunchKernel(function, body.grid[0], body.grid[1], body.grid[2], body.block[0],
                                 body.block[1], body.block[2], body.shared_bytes, stream.handle,
                                 separate, packed);
  }
  return launch_with_attributes(services, body, attribute_bytes, function, stream.handle, separate,
                                packed);
}

namespace {

// One launch of a LaunchOnDevices command, as the driver takes it.
struct DeviceLaunch {
  CUDA_LAUNCH_PARAMS given{};
  std::vector<void*> pointers;
};

// Returns false if the command is malformed.
bool read_device_launch(LaunchServices& services, BodyReader& in, DeviceLaunch* launch,
                        CUresult* result) {
  wire::LaunchBody body;
  std::span<const std::byte> parameters;
  if (!in.read(&body) || body.parameter_bytes > wire::kMaxParameterBytes || body.stream == 0 ||
      !in.bytes((body.parameter_bytes + 7u) & ~7u, &parameters)) {
    return false;
  }
  Object* object = find_function(services, body);
  SessionStream stream;
  *result = object ? services.objects.use_stream(body.stream, &stream) : CUDA_ERROR_INVALID_HANDLE;
  if (*result != CUDA_SUCCESS) return true;
  for (const wire::ParameterInfo& parameter :
       parameters_of(services.driver, object->handle, body.is_kernel)) {
    if (uint64_t{parameter.offset_bytes} + parameter.size_bytes > parameters.size()) {
      *result = CUDA_ERROR_INVALID_VALUE;
      return true;
    }
    launch->pointers.push_back(const_cast<std::byte*>(parameters.data()) + parameter.offset_bytes);
  }
  launch->given = {static_cast<CUfunction>(object->handle),
                   body.grid[0],
                   body.grid[1],
                   body.grid[2],
                   body.block[0],
                   body.block[1],
                   body.block[2],
                   body.shared_bytes,
                   stream.handle,
                   launch->pointers.empty() ? nullptr : launch->pointers.data()};
  return true;
}

}  // namespace

HandlerResult launch_on_devices(LaunchServices& services, const Command& command,
                                const wire::LaunchOnDevicesBody& body) {
  constexpr uint32_t kMaxDevices = 64;
  if (body.count == 0 || body.count > kMaxDevices) return kMalformed;
  BodyReader in(command.tail);
  std::vector<DeviceLaunch> launches(body.count);
  std::vector<CUDA_LAUNCH_PARAMS> given;
  for (DeviceLaunch& launch : launches) {
    CUresult result = CUDA_SUCCESS;
    if (!read_device_launch(services, in, &launch, &result)) return kMalformed;
    if (result != CUDA_SUCCESS) return result;
    given.push_back(launch.given);
  }
  return services.driver.cuLaunchCooperativeKernelMultiDevice(given.data(), body.count, body.flags);
}

HandlerResult note_work(LaunchServices& services, const Command&, const wire::NoteWorkBody& body) {
  SessionStream stream;
  return services.objects.use_stream(body.stream, &stream);
}

HandlerResult launch_host(LaunchServices& services, const Command&,
                          const wire::LaunchHostBody& body) {
  SessionStream stream;
  RCUDA_RETURN_IF_CUDA_ERROR(services.objects.use_stream(body.stream, &stream));
  return services.host_callbacks.launch(stream, body.callback, body.is_stream_callback != 0);
}

HandlerResult function_info(LaunchServices& services, const Command& command,
                            const wire::FunctionInfoBody& body, std::vector<std::byte>* reply) {
  BodyReader in(command.tail);
  std::span<const std::byte> name_bytes;
  if (!in.bytes(body.name_bytes, &name_bytes)) return kMalformed;
  const std::string name(reinterpret_cast<const char*>(name_bytes.data()), name_bytes.size());
  if (name.find('\0') != std::string::npos) return kMalformed;
  const api::DriverTable& driver = services.driver;
  const bool is_kernel = body.is_kernel != 0;

  void* owner = nullptr;
  CUresult result = services.objects.find_handle(
      is_kernel ? wire::Kind::kLibrary : wire::Kind::kModule, body.owner, &owner);
  // The client may send this query together with the load of the owner. If the worker lacks an
  // image, the load has failed, and the owner does not exist.
  if (result != CUDA_SUCCESS || !owner) return CUDA_ERROR_NOT_READY;
  void* handle = nullptr;
  if (is_kernel) {
    result = driver.cuLibraryGetKernel(reinterpret_cast<CUkernel*>(&handle),
                                       static_cast<CUlibrary>(owner), name.c_str());
  } else {
    result = driver.cuModuleGetFunction(reinterpret_cast<CUfunction*>(&handle),
                                        static_cast<CUmodule>(owner), name.c_str());
  }
  if (result != CUDA_SUCCESS) return result;

  const std::vector<wire::ParameterInfo> parameters = parameters_of(driver, handle, is_kernel);
  const wire::Kind kind = is_kernel ? wire::Kind::kKernel : wire::Kind::kFunction;
  // A function ends with its module, without a command, and the client reuses its id. So an object
  // that the table still has under this id has ended.
  services.objects.of(kind).unbind(body.object);
  if (!services.objects.bind(kind, body.object, handle)) return kMalformed;
  Object& bound = *services.objects.of(kind).find(body.object);
  remember_parameters(bound, parameters);
  bound.owner_kind = is_kernel ? wire::Kind::kLibrary : wire::Kind::kModule;
  bound.owner = body.owner;

  wire::FunctionInfoReply info{};
  info.parameter_count = static_cast<uint32_t>(parameters.size());
  CUdevice device = 0;
  driver.cuCtxGetDevice(&device);
  for (uint32_t i = 0; i < wire::kFunctionAttributeCount; ++i) {
    const auto attribute = static_cast<CUfunction_attribute>(i);
    int value = 0;
    CUresult got = CUDA_ERROR_INVALID_VALUE;
    if (i < CU_FUNC_ATTRIBUTE_MAX) {
      got = is_kernel
                ? driver.cuKernelGetAttribute(&value, attribute, static_cast<CUkernel>(handle),
                                              device)
                : driver.cuFuncGetAttribute(&value, attribute, static_cast<CUfunction>(handle));
    }
    info.attributes[i] = got == CUDA_SUCCESS ? value : INT32_MIN;
  }
  // Answers::reply() writes the reply's header; `reply` starts after it.
  const auto* bytes = reinterpret_cast<const std::byte*>(&info);
  reply->insert(reply->end(), bytes + sizeof(wire::ReplyHeader), bytes + sizeof info);
  for (const wire::ParameterInfo& parameter : parameters) append(reply, parameter);
  return {};
}

}  // namespace rcuda::server
