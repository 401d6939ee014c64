"""NVIDIA's cuda-python: cuda.bindings (driver, runtime, nvrtc) and cuda.core."""

import lines

numpy = lines.need("numpy")
driver = lines.need("cuda.bindings.driver")
runtime = lines.need("cuda.bindings.runtime")
nvrtc = lines.need("cuda.bindings.nvrtc")

SOURCE = r"""
extern "C" __global__ void scale(float* x, float factor, unsigned count) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) x[i] = x[i] * factor + threadIdx.x;
}
template <typename T> __global__ void fill(T* x, T value, size_t count) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) x[i] = value;
}
"""


class Failed(Exception):
    pass


def check(result):
    """The values that a call of the bindings returned, without the error code. Raises an exception for an error."""
    code, *values = result
    if code.value:
        raise Failed(str(code.name))
    return values[0] if len(values) == 1 else values or None


def compiled(kind):
    """SOURCE as cubin or PTX for the device."""
    major = check(runtime.cudaDeviceGetAttribute(
        runtime.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor, 0))
    minor = check(runtime.cudaDeviceGetAttribute(
        runtime.cudaDeviceAttr.cudaDevAttrComputeCapabilityMinor, 0))
    program = check(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"kernels.cu", 0, [], []))
    which = "sm" if kind == "CUBIN" else "compute"
    check(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={which}_{major}{minor}".encode()]))
    size = check(getattr(nvrtc, f"nvrtcGet{kind}Size")(program))
    image = b" " * size
    check(getattr(nvrtc, f"nvrtcGet{kind}")(program, image))
    return image


def start():
    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))
    check(driver.cuCtxSetCurrent(context))


@lines.case
def bindings_driver(say):
    import ctypes
    start()
    say("name", check(driver.cuDeviceGetName(100, 0)).split(b"\0")[0].decode())
    for kind in ("PTX", "CUBIN"):
        try:
            module = check(driver.cuModuleLoadData(compiled(kind)))
        except Failed as error:
            say(kind, error)
            continue
        kernel = check(driver.cuModuleGetFunction(module, b"scale"))
        host = numpy.arange(1000, dtype=numpy.float32)
        there = check(driver.cuMemAlloc(host.nbytes))
        check(driver.cuMemcpyHtoD(there, host.ctypes.data, host.nbytes))
        stream = check(driver.cuStreamCreate(1))
        arguments = ((int(there), 2.5, 1000), (ctypes.c_void_p, ctypes.c_float, ctypes.c_uint))
        check(driver.cuLaunchKernel(kernel, 8, 1, 1, 128, 1, 1, 0, stream, arguments, 0))
        check(driver.cuStreamSynchronize(stream))
        check(driver.cuMemcpyDtoH(host.ctypes.data, there, host.nbytes))
        say(kind, lines.hash_of(host))
        check(driver.cuMemFree(there))
        check(driver.cuModuleUnload(module))
    try:
        check(driver.cuModuleLoadData(b"no image"))
    except Failed as error:
        say("no image", error)


@lines.case
def bindings_runtime(say):
    say("devices", check(runtime.cudaGetDeviceCount()))
    properties = check(runtime.cudaGetDeviceProperties(0))
    say("properties", f"{properties.name.decode()} {properties.major}.{properties.minor} "
                      f"{properties.multiProcessorCount} {properties.totalGlobalMem}")
    host = numpy.arange(50_000, dtype=numpy.int32)
    back = numpy.empty_like(host)
    there = check(runtime.cudaMalloc(host.nbytes))
    kind = runtime.cudaMemcpyKind
    check(runtime.cudaMemcpy(there, host.ctypes.data, host.nbytes, kind.cudaMemcpyHostToDevice))
    check(runtime.cudaMemset(there, 0, 400))
    check(runtime.cudaMemcpy(back.ctypes.data, there, host.nbytes, kind.cudaMemcpyDeviceToHost))
    say("copied", lines.hash_of(back))
    check(runtime.cudaFree(there))
    stream = check(runtime.cudaStreamCreate())
    pooled = check(runtime.cudaMallocAsync(1 << 20, stream))
    check(runtime.cudaFreeAsync(pooled, stream))
    check(runtime.cudaStreamSynchronize(stream))
    say("pooled", "done")
    say("bad device", runtime.cudaSetDevice(99)[0].name)
    say("last error", runtime.cudaGetLastError()[0].name)
    say("runtime version", check(runtime.cudaRuntimeGetVersion()))
    say("driver version", check(runtime.cudaDriverGetVersion()))


@lines.case
def bindings_graph(say):
    stream = check(runtime.cudaStreamCreate())
    there = check(runtime.cudaMalloc(4096))
    mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal
    check(runtime.cudaStreamBeginCapture(stream, mode))
    check(runtime.cudaMemsetAsync(there, 7, 4096, stream))
    check(runtime.cudaMemsetAsync(there, 9, 100, stream))
    graph = check(runtime.cudaStreamEndCapture(stream))
    say("nodes", check(runtime.cudaGraphGetNodes(graph, 0))[-1])
    ready = check(runtime.cudaGraphInstantiate(graph, 0))
    check(runtime.cudaGraphLaunch(ready, stream))
    check(runtime.cudaStreamSynchronize(stream))
    back = numpy.empty(4096, dtype=numpy.uint8)
    check(runtime.cudaMemcpy(back.ctypes.data, there, 4096, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost))
    say("bytes", lines.hash_of(back))
    check(runtime.cudaGraphExecDestroy(ready))
    check(runtime.cudaGraphDestroy(graph))
    check(runtime.cudaFree(there))


def core_module():
    """Imports cuda.core, whose name depends on its version."""
    try:
        from cuda import core
        if hasattr(core, "Device"):
            return core
        from cuda.core import experimental
        return experimental
    except ImportError:
        raise lines.Skip("no cuda.core")


@lines.case
def core_device(say):
    core = core_module()
    device = core.Device(0)
    device.set_current()
    say("name", device.name)
    say("capability", tuple(device.compute_capability))
    say("processors", device.properties.multiprocessor_count)
    say("uuid", device.uuid)
    device.sync()


def core_launch(say, kind):
    core = core_module()
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    capability = "".join(str(part) for part in device.compute_capability)
    program = core.Program(SOURCE, code_type="c++",
                           options=core.ProgramOptions(std="c++17", arch=f"sm_{capability}"))
    module = program.compile(kind, name_expressions=("scale", "fill<int>", "fill<double>"))
    buffer = device.allocate(4000, stream=stream)
    host = numpy.empty(1000, dtype=numpy.int32)
    core.launch(stream, core.LaunchConfig(grid=4, block=64), module.get_kernel("fill<int>"), buffer,
                numpy.int32(42), numpy.uint64(1000))
    stream.sync()
    check(driver.cuMemcpyDtoH(host.ctypes.data, int(buffer.handle), 4000))
    say("filled", lines.hash_of(host))
    ones = numpy.ones(1000, dtype=numpy.float32)
    check(driver.cuMemcpyHtoD(int(buffer.handle), ones.ctypes.data, 4000))
    core.launch(stream, core.LaunchConfig(grid=8, block=128), module.get_kernel("scale"), buffer,
                numpy.float32(3), numpy.uint32(1000))
    stream.sync()
    scaled = numpy.empty(1000, dtype=numpy.float32)
    check(driver.cuMemcpyDtoH(scaled.ctypes.data, int(buffer.handle), 4000))
    say("scaled", lines.hash_of(scaled))
    buffer.close(stream)
    stream.close()


@lines.case
def core_launch_cubin(say):
    core_launch(say, "cubin")


@lines.case
def core_launch_ptx(say):
    core_launch(say, "ptx")


@lines.case
def core_streams_and_events(say):
    core = core_module()
    device = core.Device(0)
    device.set_current()
    first, second = device.create_stream(), device.create_stream()
    source = device.allocate(1 << 16, stream=first)
    check(driver.cuMemsetD32Async(int(source.handle), 5, 1 << 14, int(first.handle)))
    event = first.record()
    second.wait(event)
    target = device.allocate(1 << 16, stream=second)
    source.copy_to(target, stream=second)
    second.sync()
    host = numpy.empty(1 << 14, dtype=numpy.int32)
    check(driver.cuMemcpyDtoH(host.ctypes.data, int(target.handle), 1 << 16))
    say("copied", lines.hash_of(host))
    say("event is done", event.is_done)
    pinned = core.LegacyPinnedMemoryResource().allocate(1 << 12) if hasattr(
        core, "LegacyPinnedMemoryResource") else None
    if pinned is not None:
        say("pinned", pinned.is_host_accessible)
        pinned.close()


if __name__ == "__main__":
    if driver.cuInit(0)[0].value:
        lines.missing("no GPU for cuda-python", driver.cuInit(0)[0].name)
    lines.run()
