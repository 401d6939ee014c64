#include "softgpu/driver/launch.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/occupancy.h"
#include "softgpu/driver/stream.h"
#include "softgpu/exec/program.h"

namespace softgpu::driver {
namespace {

constexpr uint32_t kMaxGrid[3] = {0x7fffffff, 65535, 65535};
constexpr uint32_t kMaxBlock[3] = {1024, 1024, 64};

std::atomic<uint64_t> next_grid_id{1};

bool fits_device(const LaunchShape& shape) {
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.grid[i] > kMaxGrid[i]) return false;
    if (shape.block[i] == 0 || shape.block[i] > kMaxBlock[i]) return false;
  }
  return true;
}

bool fits_kernel(const exec::Kernel& kernel, const LaunchShape& shape) {
  const uint64_t threads = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
  if (threads > kernel.max_threads_per_block) return false;
  return kernel.required_block[0] == 0 ||
         std::equal(
             shape.block, shape.block + 3, kernel.required_block,
             [](uint32_t given, uint32_t required) { return given == std::max(required, 1u); });
}

// Whether all blocks of the launch can run at the same time in the context.
bool is_resident(const Context& context, Function& function, const LaunchShape& shape) {
  const uint64_t blocks = uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
  const uint32_t threads = shape.block[0] * shape.block[1] * shape.block[2];
  return blocks <=
         uint64_t{active_blocks_per_multiprocessor(function, threads, shape.dynamic_shared_bytes)} *
             static_cast<uint64_t>(context.multiprocessors());
}

CUresult read_extra(const exec::Kernel& kernel, void* const* extra,
                    std::vector<std::byte>* packed) {
  const std::byte* buffer = nullptr;
  const size_t* size = nullptr;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<const std::byte*>(extra[1]);
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size = static_cast<const size_t*>(extra[1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (buffer == nullptr || size == nullptr) {
    return kernel.parameters.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (*size > kernel.parameter_bytes) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  std::copy_n(buffer, *size, packed->data());  // missing bytes stay zero, as on hardware
  return CUDA_SUCCESS;
}

// An event of a CUlaunchConfig's attributes, which is recorded when the kernel is done.
struct LaunchEvent {
  CUevent event;
  unsigned flags;
};

CUresult check_cluster(const LaunchShape& shape, const uint32_t (&cluster)[3]) {
  if (!cluster[0] && !cluster[1] && !cluster[2]) return CUDA_SUCCESS;  // as without the attribute
  bool single = true;
  for (int i = 0; i < 3; ++i) {
    if (cluster[i] == 0 || shape.grid[i] % cluster[i] != 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    single = single && cluster[i] == 1;
  }
  if (single) return CUDA_SUCCESS;
  RCUDA_ERROR("launch refused: thread block clusters (%u x %u x %u) are not supported", cluster[0],
              cluster[1], cluster[2]);
  return CUDA_ERROR_NOT_SUPPORTED;
}

// An event that a launch records must not have timing; hardware returns this code.
CUresult add_event(CUevent handle, int flags, std::vector<LaunchEvent>* events) {
  const auto event = event_from_handle(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->has_timing()) return CUDA_ERROR_NOT_SUPPORTED;
  events->push_back({handle, static_cast<unsigned>(flags)});
  return CUDA_SUCCESS;
}

CUresult read_attribute(const CUlaunchAttribute& attribute, LaunchShape* shape,
                        std::vector<LaunchEvent>* events) {
  const CUlaunchAttributeValue& value = attribute.value;
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      shape->cooperative = value.cooperative != 0;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      return check_cluster(*shape, {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z});
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      return add_event(value.programmaticEvent.event, value.programmaticEvent.flags, events);
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      return add_event(value.launchCompletionEvent.event, value.launchCompletionEvent.flags,
                       events);
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return value.deviceUpdatableKernelNode.deviceUpdatable != 0 ? CUDA_ERROR_NOT_SUPPORTED
                                                                  : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      return value.syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC ? CUDA_ERROR_INVALID_VALUE
                                                             : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    // The next attribute permits an early start. softgpu starts a kernel only when all earlier work
    // has finished.
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// With CUDA_LAUNCH_BLOCKING=1 a launch returns after its kernel.
CUresult finish_launch(Stream& stream) {
  if (!configuration().variables.launch_blocking || stream.capturing()) return CUDA_SUCCESS;
  stream.synchronize();
  return stream.context().sticky();
}

CUresult launch_on(Stream& stream, CUfunction handle, const LaunchShape& shape,
                   void* const* parameters, void* const* extra) {
  KernelOperation operation;
  if (CUresult result =
          make_kernel_operation(stream.context(), handle, shape, parameters, extra, &operation)) {
    invalidate_capture_of(stream);
    return result;
  }
  if (CUresult result = submit(stream, std::move(operation))) return result;
  return finish_launch(stream);
}

CUresult launch(CUfunction handle, const LaunchShape& shape, CUstream stream_handle,
                void* const* parameters, void* const* extra) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(stream_handle, &context, &stream)) return result;
  return launch_on(*stream, handle, shape, parameters, extra);
}

}  // namespace

CUresult function_in_context(CUfunction handle, Context& context,
                             std::shared_ptr<Function>* function) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto kernel = kernel_from_handle(reinterpret_cast<CUkernel>(handle))) {
    return kernel->function_in(context.owner(), function);
  }
  if (CUresult result = function_from_handle(handle, function)) return result;
  return &(*function)->context() == &context.owner() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult check_launch(Function& function, const LaunchShape& shape) {
  const exec::Kernel& kernel = function.kernel();
  if (!fits_device(shape) || !fits_kernel(kernel, shape)) return CUDA_ERROR_INVALID_VALUE;
  if (shape.dynamic_shared_bytes >
      max_dynamic_shared_bytes(function.kernel(), function.settings())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const FunctionSettings& settings = function.settings();
  if (settings.cluster_width > 1 || settings.cluster_height > 1 || settings.cluster_depth > 1) {
    RCUDA_ERROR("kernel %s cannot run: thread block clusters are not supported",
                kernel.name.c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!kernel.unsupported.empty()) {
    RCUDA_ERROR("kernel %s cannot run: %s is not supported", kernel.name.c_str(),
                kernel.unsupported.c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (shape.cooperative && !is_resident(function.context(), function, shape)) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return CUDA_SUCCESS;
}

CUresult pack_parameters(const exec::Kernel& kernel, void* const* parameters, void* const* extra,
                         std::vector<std::byte>* packed) {
  if (parameters != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  packed->assign(kernel.parameter_bytes, std::byte{0});
  if (extra != nullptr) return read_extra(kernel, extra, packed);
  if (kernel.parameters.empty()) return CUDA_SUCCESS;
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const exec::KernelParameter& parameter = kernel.parameters[i];
    if (parameters[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(packed->data() + parameter.offset_bytes, parameters[i], parameter.size_bytes);
  }
  return CUDA_SUCCESS;
}

CUresult make_kernel_operation(Context& context, CUfunction handle, const LaunchShape& shape,
                               void* const* parameters, void* const* extra,
                               KernelOperation* operation) {
  if (CUresult result = function_in_context(handle, context, &operation->function)) return result;
  if (CUresult result = check_launch(*operation->function, shape)) return result;
  if (shape.cooperative && !is_resident(context, *operation->function, shape)) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  if (CUresult result = pack_parameters(operation->function->kernel(), parameters, extra,
                                        &operation->parameters)) {
    return result;
  }
  std::copy(shape.grid, shape.grid + 3, operation->grid);
  std::copy(shape.block, shape.block + 3, operation->block);
  operation->dynamic_shared_bytes = shape.dynamic_shared_bytes;
  operation->cooperative = shape.cooperative;
  const auto kernel = reinterpret_cast<CUkernel>(handle);
  if (kernel_from_handle(kernel)) operation->kernel = kernel;
  operation->came_packed = extra != nullptr;
  return CUDA_SUCCESS;
}

CUresult execute_kernel(Context& context, const KernelOperation& operation) {
  exec::Launch launch;
  launch.kernel = &operation.function->kernel();
  launch.grid = {operation.grid[0], operation.grid[1], operation.grid[2]};
  launch.block = {operation.block[0], operation.block[1], operation.block[2]};
  launch.dynamic_shared_bytes = operation.dynamic_shared_bytes;
  launch.parameters = operation.parameters;
  launch.cooperative = operation.cooperative;
  launch.grid_id = next_grid_id.fetch_add(1, std::memory_order_relaxed);
  const exec::Fault fault = exec::run(launch, context.environment(), &context.stopping());
  if (fault.code == CUDA_SUCCESS) return CUDA_SUCCESS;
  if (context.stopping().load(std::memory_order_relaxed)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  context.fail(fault.code, fault.message);
  return fault.code;
}

}  // namespace softgpu::driver

using namespace softgpu::driver;

extern "C" {

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                unsigned int gridDimZ, unsigned int blockDimX,
                                unsigned int blockDimY, unsigned int blockDimZ,
                                unsigned int sharedMemBytes, CUstream hStream, void** kernelParams,
                                void** extra) {
  return launch(f,
                {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes},
                hStream, kernelParams, extra);
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX,
                                           unsigned int gridDimY, unsigned int gridDimZ,
                                           unsigned int blockDimX, unsigned int blockDimY,
                                           unsigned int blockDimZ, unsigned int sharedMemBytes,
                                           CUstream hStream, void** kernelParams) {
  return launch(f,
                {{gridDimX, gridDimY, gridDimZ},
                 {blockDimX, blockDimY, blockDimZ},
                 sharedMemBytes,
                 /*cooperative=*/true},
                hStream, kernelParams, nullptr);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                  void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult result = enter_stream(config->hStream, &context, &stream)) return result;
  if (config->numAttrs != 0 && config->attrs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LaunchShape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                    {config->blockDimX, config->blockDimY, config->blockDimZ},
                    config->sharedMemBytes};
  std::vector<LaunchEvent> events;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (CUresult result = read_attribute(config->attrs[i], &shape, &events)) {
      invalidate_capture_of(*stream);
      return result;
    }
  }
  if (CUresult result = launch_on(*stream, f, shape, kernelParams, extra)) return result;
  for (const auto& [event, event_flags] : events) {
    if (CUresult result = cuEventRecordWithFlags(event, config->hStream, event_flags)) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

// Unless the flags say otherwise, each kernel of the list waits for the earlier work in all streams
// of the list, and later work in any of these streams waits for all kernels.
CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launchParamsList,
                                                      unsigned int numDevices, unsigned int flags) {
  constexpr unsigned kFlags = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                              CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  if (CUresult result = check_initialized()) return result;
  if (launchParamsList == nullptr || numDevices == 0 ||
      numDevices > static_cast<unsigned>(device_count()) || (flags & ~kFlags) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<KernelOperation> operations(numDevices);
  for (unsigned i = 0; i < numDevices; ++i) {
    const CUDA_LAUNCH_PARAMS& entry = launchParamsList[i];
    // The handles of default streams stand for streams of the current context, not of the entry's
    // device.
    if (entry.hStream == nullptr || entry.hStream == CU_STREAM_LEGACY ||
        entry.hStream == CU_STREAM_PER_THREAD) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    std::shared_ptr<Stream>& stream = streams.emplace_back();
    if (CUresult result = resolve_stream(entry.hStream, &stream)) return result;
    for (unsigned j = 0; j < i; ++j) {
      if (&streams[j]->context().device() == &stream->context().device()) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    if (CUresult result = refuse_on_capturing(*stream)) return result;
    const LaunchShape shape{{entry.gridDimX, entry.gridDimY, entry.gridDimZ},
                            {entry.blockDimX, entry.blockDimY, entry.blockDimZ},
                            entry.sharedMemBytes,
                            /*cooperative=*/true};
    if (CUresult result = make_kernel_operation(stream->context(), entry.function, shape,
                                                entry.kernelParams, nullptr, &operations[i])) {
      return result;
    }
  }
  auto meet = [&]() -> CUresult {
    std::vector<Point> points(numDevices);
    for (unsigned i = 0; i < numDevices; ++i) {
      if (CUresult result = streams[i]->enqueue(EmptyOperation{}, {}, &points[i])) return result;
    }
    for (const auto& stream : streams) {
      if (CUresult result = stream->enqueue(EmptyOperation{}, points)) return result;
    }
    return CUDA_SUCCESS;
  };
  if ((flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC) == 0) {
    if (CUresult result = meet()) return result;
  }
  for (unsigned i = 0; i < numDevices; ++i) {
    if (CUresult result = streams[i]->enqueue(std::move(operations[i]))) return result;
  }
  if ((flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC) == 0) {
    if (CUresult result = meet()) return result;
  }
  for (const auto& stream : streams) {
    if (CUresult result = finish_launch(*stream)) return result;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
