"""Uses cuda.core as its users do, with the bindings of CUDA 12 and 13, and compares with NumPy."""

import array
import ctypes

import numpy
from cuda.core import (Buffer, ContextOptions, Device, DeviceMemoryResource, DeviceMemoryResourceOptions, EventOptions,
                       LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, Program, ProgramOptions,
                       SMResourceOptions, StreamOptions, launch)
from cuda.core.graph import GraphBuilder, GraphDefinition

import checks
from checks import equal, raises, section, show

CODE = r"""
extern "C" __global__ void scale(int* data, int factor, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = data[i] * factor + 1;
}
extern "C" __global__ void add(const int* a, const int* b, int* sums, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) sums[i] = a[i] + b[i];
}
extern "C" __global__ void reverse(int* data) {
  extern __shared__ int tile[];
  tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
template <typename T> __global__ void axpy(T a, const T* x, T* y, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""
COUNT = 10000
ALL = LaunchConfig(grid=(COUNT + 255) // 256, block=256)
NAMES = ("axpy<float>", "axpy<double>")

GPU = Device()
GPU.set_current()
STREAM = GPU.create_stream()
PINNED = LegacyPinnedMemoryResource()


def compile_ptx(code, names=(), **options):
    options.setdefault("std", "c++17")
    return Program(code, "c++", ProgramOptions(arch=f"sm_{GPU.arch}", **options)).compile("ptx", name_expressions=names)


MODULE = compile_ptx(CODE, NAMES)


def host_buffer(values):
    """A pinned buffer, and an array that views it."""
    buffer = PINNED.allocate(values.nbytes)
    view = numpy.frombuffer((ctypes.c_char * values.nbytes).from_address(int(buffer.handle)), values.dtype)
    view[...] = values.ravel()
    return buffer, view


def to_device(values, stream=STREAM):
    buffer = GPU.allocate(values.nbytes, stream=stream)
    source, _ = host_buffer(values)
    buffer.copy_from(source, stream=stream)
    stream.sync()
    return buffer


def to_host(buffer, dtype, stream=STREAM):
    host, view = host_buffer(numpy.zeros(buffer.size // numpy.dtype(dtype).itemsize, dtype))
    buffer.copy_to(host, stream=stream)
    stream.sync()
    return view.copy()


@section
def device():
    show("name", GPU.name)
    show("compute_capability", tuple(GPU.compute_capability))
    show("arch", GPU.arch)
    equal("uuid", len(GPU.uuid), 36)
    for name in ("max_threads_per_block", "warp_size", "multiprocessor_count", "unified_addressing",
                 "memory_pools_supported", "max_shared_memory_per_block", "cooperative_launch"):
        show(name, getattr(GPU.properties, name))
    equal("devices", len(Device.get_all_devices()), 1)
    raises("no_such_device", ValueError, lambda: Device(9))


@section
def buffers():
    values = numpy.arange(COUNT, dtype="int32")
    first = to_device(values)
    equal("round_trip", to_host(first, "int32"), values)
    second = GPU.allocate(values.nbytes, stream=STREAM)
    first.copy_to(second, stream=STREAM)
    equal("device_to_device", to_host(second, "int32"), values)
    second.fill(0x5A, stream=STREAM)
    equal("fill_1", to_host(second, "uint8"), numpy.full(values.nbytes, 0x5A, "uint8"))
    second.fill(array.array("i", [123456789]), stream=STREAM)
    equal("fill_4", to_host(second, "int32"), numpy.full(COUNT, 123456789, "int32"))
    equal("accessible", (first.is_device_accessible, first.is_host_accessible, first.device_id), (True, False, 0))
    again = Buffer.from_handle(first.handle, first.size, owner=first)
    equal("foreign_handle", to_host(again, "int32"), values)
    first.close(STREAM)
    second.close(STREAM)
    STREAM.sync()
    options = DeviceMemoryResourceOptions(max_size=1 << 22)
    pool = DeviceMemoryResource(GPU, options)
    inside = pool.allocate(1 << 20, stream=STREAM)
    inside.fill(1, stream=STREAM)
    equal("own_pool", int(to_host(inside, "uint8").sum()), 1 << 20)
    show("own_pool_used", pool.attributes.used_mem_current)
    raises("own_pool_full", Exception, lambda: pool.allocate(1 << 30, stream=STREAM), "OUT_OF_MEMORY")
    inside.close(STREAM)
    STREAM.sync()
    pool.close()


@section
def kernels():
    values = numpy.arange(COUNT, dtype="int32")
    data = to_device(values)
    scale = MODULE.get_kernel("scale")
    launch(STREAM, ALL, scale, data, numpy.int32(3), numpy.uint32(COUNT))
    equal("scale", to_host(data, "int32"), values * 3 + 1)
    data = to_device(values[:512])
    launch(STREAM, LaunchConfig(grid=1, block=512, shmem_size=2048), MODULE.get_kernel("reverse"), data)
    equal("shared", to_host(data, "int32"), values[:512][::-1].copy())
    for name, dtype in zip(NAMES, ("float32", "float64")):
        x, y = numpy.arange(COUNT, dtype=dtype), numpy.full(COUNT, 0.5, dtype)
        there_x, there_y = to_device(x), to_device(y)
        launch(STREAM, ALL, MODULE.get_kernel(name), numpy.dtype(dtype).type(2), there_x, there_y, numpy.uint32(COUNT))
        equal(name, to_host(there_y, dtype), 2 * x + y)
    equal("arguments", scale.num_arguments, 3)
    equal("layout", [(one.offset, one.size) for one in scale.arguments_info], [(0, 8), (8, 4), (12, 4)])
    show("max_threads", scale.attributes.max_threads_per_block)
    show("shared_bytes", scale.attributes.shared_size_bytes)
    equal("occupancy", scale.occupancy.max_active_blocks_per_multiprocessor(256, 0) > 0, True)
    raises("absent", Exception, lambda: MODULE.get_kernel("absent"), "NOT_FOUND")
    raises("block_too_large", Exception,
           lambda: launch(STREAM, LaunchConfig(grid=1, block=4096), scale, data, 1, 1), "INVALID_VALUE")


@section
def modules():
    text = ObjectCode.from_ptx(MODULE.code)
    data = to_device(numpy.ones(4, "int32"))
    launch(STREAM, LaunchConfig(grid=1, block=4), text.get_kernel("scale"), data, numpy.int32(7), numpy.uint32(4))
    equal("from_ptx", to_host(data, "int32"), numpy.full(4, 8, "int32"))
    raises("bad_source", Exception, lambda: compile_ptx("nonsense"), "nonsense")
    raises("bad_ptx", Exception, lambda: ObjectCode.from_ptx(b".version 8.0 nonsense").get_kernel("f"), "INVALID_PTX")


@section
def streams_and_events():
    values = numpy.arange(COUNT, dtype="int32")
    other = GPU.create_stream(options=StreamOptions(nonblocking=True, priority=-1))
    equal("priority", other.priority, -1)
    equal("nonblocking", other.is_nonblocking, True)
    data = to_device(values)
    timed = EventOptions(timing_enabled=True)
    start = STREAM.record(options=timed)
    for _ in range(5):
        launch(STREAM, ALL, MODULE.get_kernel("scale"), data, numpy.int32(2), numpy.uint32(COUNT))
    end = STREAM.record(options=timed)
    other.wait(end)
    launch(other, ALL, MODULE.get_kernel("scale"), data, numpy.int32(1), numpy.uint32(COUNT))
    other.sync()
    equal("ordered", to_host(data, "int32"), values * 32 + 32)
    end.sync()
    equal("done", end.is_done, True)
    equal("elapsed", end - start >= 0, True)
    untimed = STREAM.record()
    raises("untimed", RuntimeError, lambda: untimed - start)
    default = GPU.default_stream
    launch(default, ALL, MODULE.get_kernel("scale"), data, numpy.int32(0), numpy.uint32(COUNT))
    default.sync()
    equal("default_stream", to_host(data, "int32"), numpy.ones(COUNT, "int32"))
    other.close()


@section
def graphs():
    scale, add = MODULE.get_kernel("scale"), MODULE.get_kernel("add")
    a, b, c = (to_device(numpy.zeros(COUNT, "int32")) for _ in range(3))
    n = numpy.uint32(COUNT)
    calls = []
    builder = STREAM.create_graph_builder().begin_building()
    launch(builder, ALL, scale, a, numpy.int32(2), n)
    left, right = builder.split(2)
    launch(left, ALL, scale, a, numpy.int32(3), n)
    launch(right, ALL, scale, b, numpy.int32(5), n)
    joined = GraphBuilder.join(left, right)
    launch(joined, ALL, add, a, b, c, n)
    joined.callback(lambda: calls.append("called"))
    graph = joined.end_building().complete()
    equal("not_yet", int(to_host(c, "int32").sum()), 0)
    graph.upload(STREAM)
    graph.launch(STREAM)
    graph.launch(STREAM)
    STREAM.sync()
    first, second = 1 * 3 + 1, 1
    first, second = (first * 2 + 1) * 3 + 1, second * 5 + 1
    equal("captured", to_host(c, "int32"), numpy.full(COUNT, first + second, "int32"))
    equal("calls", calls, ["called", "called"])


@section
def graphs_by_hand():
    scale, n = MODULE.get_kernel("scale"), numpy.uint32(COUNT)
    data = to_device(numpy.zeros(COUNT, "int32"))
    copy = to_device(numpy.zeros(COUNT, "int32"))

    def definition(factor):
        graph = GraphDefinition()
        node = graph.memset(data.handle, 1, data.size)
        node = node.launch(ALL, scale, data, numpy.int32(factor), n)
        node.memcpy(copy.handle, data.handle, data.size)
        return graph
    made = definition(2)
    equal("nodes", sorted(type(node).__name__ for node in made.nodes()), ["KernelNode", "MemcpyNode", "MemsetNode"])
    graph = made.instantiate()
    graph.launch(STREAM)
    equal("launched", to_host(copy, "int32"), numpy.full(COUNT, 0x01010101 * 2 + 1, "int32"))
    graph.update(definition(3))
    graph.launch(STREAM)
    equal("updated", to_host(copy, "int32"), numpy.full(COUNT, 0x01010101 * 3 + 1, "int32"))


@section
def green_contexts():
    """Two halves of the multiprocessors, each with a stream; memory and code are the primary context's."""
    values, n = numpy.arange(COUNT, dtype="int32"), numpy.uint32(COUNT)
    whole = GPU.resources.sm
    equal("whole", whole.sm_count, GPU.properties.multiprocessor_count)
    show("smallest", whole.min_partition_size)
    (first,), rest = whole.split(SMResourceOptions(count=16))
    equal("first", first.sm_count, 16)
    equal("rest", rest.sm_count, whole.sm_count - 16)
    planned, _ = whole.split(SMResourceOptions(count=16), dry_run=True)
    equal("planned", [one.sm_count for one in planned], [16])
    scale, data = MODULE.get_kernel("scale"), to_device(values)
    contexts = [GPU.create_context(ContextOptions(resources=[part])) for part in (first, rest)]
    equal("green", [context.is_green for context in contexts], [True, True])
    equal("provisioned", [context.resources.sm.sm_count for context in contexts], [16, whole.sm_count - 16])
    left, right = (context.create_stream() for context in contexts)
    equal("of_stream", left.context == contexts[0], True)
    launch(left, ALL, scale, data, numpy.int32(3), n)
    right.wait(left.record())
    launch(right, ALL, scale, data, numpy.int32(5), n)
    right.sync()
    equal("scaled", to_host(data, "int32"), (values * 3 + 1) * 5 + 1)
    before = GPU.set_current(contexts[0])
    inside = to_device(values, left)
    launch(left, ALL, scale, inside, numpy.int32(2), n)
    equal("inside", to_host(inside, "int32", left), values * 2 + 1)
    GPU.set_current(before)
    raises("workqueues", RuntimeError, lambda: GPU.resources.workqueue, "requires CUDA driver")  # of CUDA 13.1 or later
    raises("too_many", Exception, lambda: whole.split(SMResourceOptions(count=100000)))
    for stream in (left, right):
        stream.close()
    for context in contexts:
        context.close()
    equal("closed", [context.is_closed for context in contexts], [True, True])


if __name__ == "__main__":
    checks.main()
