"""Uses cuda.bindings as its users do: the driver, the runtime (which is inside its modules) and NVRTC of CUDA 12 and
13."""

import ctypes

import numpy
from cuda.bindings import driver, nvrtc, runtime

import checks
from checks import equal, raises, section, show

CODE = rb"""
extern "C" __device__ int offset = 5;
extern "C" __global__ void scale(int* data, int factor, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = data[i] * factor + offset;
}
extern "C" __global__ void wild(int* where) { *where = 1; }
"""
COUNT = 5000


class CudaError(Exception):
    pass


def call(result):
    """The values that a binding returned without its error code; raises CudaError if that is an error."""
    error, *values = result
    if error.value:
        raise CudaError(error.name)
    return values[0] if len(values) == 1 else values or None


def compile_code(code, *options):
    program = call(nvrtc.nvrtcCreateProgram(code, b"client.cu", 0, [], []))
    outcome = nvrtc.nvrtcCompileProgram(program, len(options), list(options))[0]
    log = b" " * call(nvrtc.nvrtcGetProgramLogSize(program))
    call(nvrtc.nvrtcGetProgramLog(program, log))
    if outcome.value:
        raise CudaError(f"{outcome.name}: {log.decode()}")
    ptx = b" " * call(nvrtc.nvrtcGetPTXSize(program))
    call(nvrtc.nvrtcGetPTX(program, ptx))
    call(nvrtc.nvrtcDestroyProgram(program))
    return ptx


call(driver.cuInit(0))
GPU = call(driver.cuDeviceGet(0))
CONTEXT = call(driver.cuDevicePrimaryCtxRetain(GPU))
call(driver.cuCtxSetCurrent(CONTEXT))
ARCH = "".join(str(call(driver.cuDeviceGetAttribute(
    getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{which}"), GPU)))
    for which in ("MAJOR", "MINOR"))
PTX = compile_code(CODE, f"--gpu-architecture=compute_{ARCH}".encode())


def launch(function, stream, *arguments, grid=(COUNT + 127) // 128, block=128):
    """Each argument is (value, ctypes type)."""
    values = tuple(value for value, _ in arguments)
    types = tuple(kind for _, kind in arguments)
    call(driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, (values, types), 0))


def scale_arguments(pointer, factor, count=COUNT):
    return (pointer, None), (factor, ctypes.c_int), (count, ctypes.c_uint)


@section
def driver_queries():
    show("driver_version", call(driver.cuDriverGetVersion()))
    show("runtime_version", call(runtime.cudaRuntimeGetVersion()))
    equal("devices", (call(driver.cuDeviceGetCount()), call(runtime.cudaGetDeviceCount())), (1, 1))
    show("name", call(driver.cuDeviceGetName(64, GPU)).rstrip(b"\0").decode())
    properties = call(runtime.cudaGetDeviceProperties(0))
    show("properties", (properties.name.decode(), properties.major, properties.minor, properties.warpSize,
                        properties.multiProcessorCount, properties.totalGlobalMem))
    equal("same_memory", call(driver.cuDeviceTotalMem(GPU)), properties.totalGlobalMem)
    equal("error_name", call(driver.cuGetErrorName(driver.CUresult.CUDA_ERROR_INVALID_VALUE)),
          b"CUDA_ERROR_INVALID_VALUE")
    raises("no_such_device", CudaError, lambda: call(driver.cuDeviceGet(9)), "CUDA_ERROR_INVALID_DEVICE")
    raises("no_such_device_runtime", CudaError, lambda: call(runtime.cudaSetDevice(9)), "cudaErrorInvalidDevice")


@section
def driver_modules():
    module = call(driver.cuModuleLoadData(numpy.frombuffer(PTX, "uint8").ctypes.data))
    scale = call(driver.cuModuleGetFunction(module, b"scale"))
    address, size = call(driver.cuModuleGetGlobal(module, b"offset"))
    equal("global_size", size, 4)
    stream = call(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    host = numpy.arange(COUNT, dtype="int32")
    there = call(driver.cuMemAlloc(host.nbytes))
    call(driver.cuMemcpyHtoDAsync(there, host.ctypes.data, host.nbytes, stream))
    launch(scale, stream, *scale_arguments(there, 2))
    call(driver.cuMemcpyHtoDAsync(address, numpy.array([9], "int32").ctypes.data, 4, stream))
    launch(scale, stream, *scale_arguments(there, 3))
    out = numpy.zeros_like(host)
    call(driver.cuMemcpyDtoHAsync(out.ctypes.data, there, out.nbytes, stream))
    call(driver.cuStreamSynchronize(stream))
    equal("scaled", out, (host * 2 + 5) * 3 + 9)
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    show("max_threads", call(driver.cuFuncGetAttribute(attribute, scale)))
    equal("occupancy", call(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(scale, 128, 0)) > 0, True)
    raises("absent", CudaError, lambda: call(driver.cuModuleGetFunction(module, b"absent")), "CUDA_ERROR_NOT_FOUND")
    raises("block_too_large", CudaError, lambda: launch(scale, stream, *scale_arguments(there, 1), block=4096),
           "CUDA_ERROR_INVALID_VALUE")
    raises("not_an_image", CudaError, lambda: call(driver.cuModuleLoadData(b"nonsense")),
           "CUDA_ERROR_INVALID_")
    raises("bad_address", CudaError, lambda: call(driver.cuMemFree(4096)), "CUDA_ERROR_INVALID_VALUE")
    call(driver.cuMemFree(there))
    call(driver.cuStreamDestroy(stream))
    call(driver.cuModuleUnload(module))


@section
def driver_libraries():
    library = call(driver.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
    kernel = call(driver.cuLibraryGetKernel(library, b"scale"))
    equal("kernels", call(driver.cuLibraryGetKernelCount(library)), 2)
    function = call(driver.cuKernelGetFunction(kernel))
    from_module = call(driver.cuModuleGetFunction(call(driver.cuLibraryGetModule(library)), b"scale"))
    there = call(driver.cuMemAllocManaged(COUNT * 4, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value))
    call(driver.cuMemsetD32(there, 7, COUNT))
    launch(function, 0, *scale_arguments(there, 2))
    launch(from_module, 0, *scale_arguments(there, 2))
    call(driver.cuCtxSynchronize())
    view = (ctypes.c_int * COUNT).from_address(int(there))
    equal("managed", numpy.frombuffer(view, "int32").copy(), numpy.full(COUNT, (7 * 2 + 5) * 2 + 5, "int32"))
    call(driver.cuMemFree(there))
    call(driver.cuLibraryUnload(library))


@section
def driver_graphs():
    module = call(driver.cuModuleLoadData(PTX))
    scale = call(driver.cuModuleGetFunction(module, b"scale"))
    there = call(driver.cuMemAlloc(COUNT * 4))
    stream = call(driver.cuStreamCreate(0))
    call(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    status = call(driver.cuStreamGetCaptureInfo(stream))[0]
    equal("capturing", status, driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE)
    call(driver.cuMemsetD32Async(there, 1, COUNT, stream))
    for factor in (2, 3, 4):
        launch(scale, stream, *scale_arguments(there, factor))
    graph = call(driver.cuStreamEndCapture(stream))
    _, count = call(driver.cuGraphGetNodes(graph))
    equal("nodes", count, 4)
    nodes, _ = call(driver.cuGraphGetNodes(graph, count))
    equal("types", sorted(call(driver.cuGraphNodeGetType(node)).name for node in nodes),
          ["CU_GRAPH_NODE_TYPE_KERNEL"] * 3 + ["CU_GRAPH_NODE_TYPE_MEMSET"])
    executable = call(driver.cuGraphInstantiate(graph, 0))
    for _ in range(3):
        call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    out = numpy.zeros(COUNT, "int32")
    call(driver.cuMemcpyDtoH(out.ctypes.data, there, out.nbytes))
    equal("launched", out, numpy.full(COUNT, ((1 * 2 + 5) * 3 + 5) * 4 + 5, "int32"))
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuGraphDestroy(graph))
    call(driver.cuMemFree(there))


@section
def runtime_memory():
    host = numpy.arange(COUNT, dtype="int32")
    there, other = call(runtime.cudaMalloc(host.nbytes)), call(runtime.cudaMalloc(host.nbytes))
    out = numpy.zeros_like(host)
    kind = runtime.cudaMemcpyKind
    call(runtime.cudaMemcpy(there, host.ctypes.data, host.nbytes, kind.cudaMemcpyHostToDevice))
    call(runtime.cudaMemcpy(other, there, host.nbytes, kind.cudaMemcpyDeviceToDevice))
    call(runtime.cudaMemset(other, 1, 400))
    call(runtime.cudaMemcpy(out.ctypes.data, other, host.nbytes, kind.cudaMemcpyDefault))
    equal("copied", out, numpy.concatenate([numpy.full(100, 0x01010101, "int32"), host[100:]]))
    pinned = call(runtime.cudaHostAlloc(host.nbytes, runtime.cudaHostAllocMapped))
    view = numpy.frombuffer((ctypes.c_int * COUNT).from_address(pinned), "int32")
    call(runtime.cudaMemcpy(pinned, there, host.nbytes, kind.cudaMemcpyDeviceToHost))
    equal("pinned", view.copy(), host)
    equal("mapped", call(runtime.cudaHostGetDevicePointer(pinned, 0)) == pinned, True)
    attributes = call(runtime.cudaPointerGetAttributes(pinned))
    equal("host_pointer", attributes.type, runtime.cudaMemoryType.cudaMemoryTypeHost)
    attributes = call(runtime.cudaPointerGetAttributes(there))
    equal("device_pointer", (attributes.type, attributes.device), (runtime.cudaMemoryType.cudaMemoryTypeDevice, 0))
    call(runtime.cudaFreeHost(pinned))
    stream = call(runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking))
    ordered = call(runtime.cudaMallocAsync(host.nbytes, stream))
    call(runtime.cudaMemcpyAsync(ordered, there, host.nbytes, kind.cudaMemcpyDeviceToDevice, stream))
    out[...] = 0
    call(runtime.cudaMemcpyAsync(out.ctypes.data, ordered, host.nbytes, kind.cudaMemcpyDeviceToHost, stream))
    call(runtime.cudaFreeAsync(ordered, stream))
    call(runtime.cudaStreamSynchronize(stream))
    equal("stream_ordered", out, host)
    free, total = call(runtime.cudaMemGetInfo())
    equal("free", 0 < free < total, True)
    raises("too_much", CudaError, lambda: call(runtime.cudaMalloc(1 << 50)), "cudaErrorMemoryAllocation")
    equal("last_error", (runtime.cudaGetLastError()[0].name, runtime.cudaGetLastError()[0].name),
          ("cudaErrorMemoryAllocation", "cudaSuccess"))
    call(runtime.cudaFree(there))
    call(runtime.cudaFree(other))
    call(runtime.cudaStreamDestroy(stream))


@section
def runtime_order():
    streams = [call(runtime.cudaStreamCreate()) for _ in range(2)]
    start, end = (call(runtime.cudaEventCreate()) for _ in range(2))
    there = call(runtime.cudaMalloc(4096))
    call(runtime.cudaEventRecord(start, streams[0]))
    call(runtime.cudaMemsetAsync(there, 3, 4096, streams[0]))
    call(runtime.cudaEventRecord(end, streams[0]))
    call(runtime.cudaStreamWaitEvent(streams[1], end, 0))
    out = numpy.zeros(4096, "uint8")
    call(runtime.cudaMemcpyAsync(out.ctypes.data, there, 4096, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost,
                                 streams[1]))
    call(runtime.cudaStreamSynchronize(streams[1]))
    equal("waited", out, numpy.full(4096, 3, "uint8"))
    equal("query", (runtime.cudaEventQuery(end)[0].name, runtime.cudaStreamQuery(streams[1])[0].name),
          ("cudaSuccess", "cudaSuccess"))
    equal("elapsed", call(runtime.cudaEventElapsedTime(start, end)) >= 0, True)
    call(runtime.cudaStreamBeginCapture(streams[0], runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed))
    call(runtime.cudaMemsetAsync(there, 8, 2048, streams[0]))
    graph = call(runtime.cudaStreamEndCapture(streams[0]))
    executable = call(runtime.cudaGraphInstantiate(graph, 0))
    call(runtime.cudaGraphLaunch(executable, streams[0]))
    call(runtime.cudaStreamSynchronize(streams[0]))
    call(runtime.cudaMemcpy(out.ctypes.data, there, 4096, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost))
    equal("graph", out, numpy.repeat(numpy.array([8, 3], "uint8"), 2048))
    call(runtime.cudaFree(there))
    call(runtime.cudaDeviceSynchronize())


@section
def compiler():
    show("nvrtc", call(nvrtc.nvrtcVersion()))
    raises("error", CudaError, lambda: compile_code(b"nonsense"), "NVRTC_ERROR_COMPILATION")


@section
def sticky_error():
    # This section is the last one, because the context is unusable after it.
    module = call(driver.cuModuleLoadData(PTX))
    wild = call(driver.cuModuleGetFunction(module, b"wild"))
    launch(wild, 0, (64, ctypes.c_void_p), grid=1, block=1)
    raises("illegal_address", CudaError, lambda: call(driver.cuCtxSynchronize()), "CUDA_ERROR_ILLEGAL_ADDRESS")
    raises("stays", CudaError, lambda: call(driver.cuMemAlloc(64)), "CUDA_ERROR_ILLEGAL_ADDRESS")
    raises("runtime", CudaError, lambda: call(runtime.cudaDeviceSynchronize()), "cudaErrorIllegalAddress")


if __name__ == "__main__":
    checks.main()
