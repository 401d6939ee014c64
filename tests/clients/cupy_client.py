"""Uses CuPy for CUDA 11, 12 and 13 as its users do, and compares with NumPy.

Needs CUPY_COMPILE_WITH_PTX=1 if the driver loads PTX only, as softgpu does.
"""

import os
import subprocess
import sys
import tempfile
import threading

import cupy
import cupyx
import cupyx.scipy.ndimage
import numpy

import checks
from checks import equal, near, raises, section, show

NEW = int(cupy.__version__.split(".")[0]) >= 14
RANDOM = numpy.random.default_rng(23)


def integers(*shape, low=-1000, high=1000, dtype=numpy.int32):
    return RANDOM.integers(low, high, shape, dtype=dtype)


def floats(*shape, dtype=numpy.float32):
    return RANDOM.random(shape, dtype=dtype)


@section
def device():
    equal("count", cupy.cuda.runtime.getDeviceCount(), 1)
    with cupy.cuda.Device(0) as current:
        show("compute_capability", current.compute_capability)
        free, total = current.mem_info
        equal("free_memory", 0 < free <= total, True)
        show("multiprocessors", current.attributes["MultiProcessorCount"])
        current.synchronize()
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    show("name", properties["name"].decode())
    show("warp", properties["warpSize"])
    raises("no_such_device", cupy.cuda.runtime.CUDARuntimeError, lambda: cupy.cuda.Device(7).use(),
           "cudaErrorInvalidDevice")


@section
def arrays():
    for dtype in ("bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64", "complex64"):
        host = integers(7, 33).astype(dtype)
        equal(f"round_trip_{dtype}", cupy.asnumpy(cupy.asarray(host)), host)
    host = integers(12, 40)
    there = cupy.asarray(host)
    equal("slice", there[2:10:3, ::-2].get(), host[2:10:3, ::-2].copy())
    equal("transpose", cupy.ascontiguousarray(there.T).get(), host.T.copy())
    equal("take", there[cupy.asarray([3, 0, 11])].get(), host[[3, 0, 11]])
    equal("mask", there[there > 0].get(), host[host > 0])
    equal("where", cupy.where(there > 0, there, -there).get(), numpy.where(host > 0, host, -host))
    equal("concatenate", cupy.concatenate([there, there + 1]).get(), numpy.concatenate([host, host + 1]))
    equal("full", cupy.full((5, 5), 7, "int16").get(), numpy.full((5, 5), 7, "int16"))
    equal("arange", cupy.arange(3, 3000, 7).get(), numpy.arange(3, 3000, 7))
    there[1:3] = 42
    host[1:3] = 42
    equal("assigned", there.get(), host)
    there[cupy.asarray([5, 6]), cupy.asarray([1, 2])] = -1
    host[[5, 6], [1, 2]] = -1
    equal("scattered", there.get(), host)


@section
def ufuncs():
    a, b = integers(1000), integers(1000, low=1)
    there_a, there_b = cupy.asarray(a), cupy.asarray(b)
    for name in ("add", "subtract", "multiply", "floor_divide", "remainder", "bitwise_and", "left_shift",
                 "maximum", "greater", "true_divide"):
        right = b % 8 if name == "left_shift" else b
        equal(name, getattr(cupy, name)(there_a, cupy.asarray(right)).get(), getattr(numpy, name)(a, right))
    equal("broadcast", (there_a[:50, None] * there_b[None, :30]).get(), a[:50, None] * b[None, :30])
    x, y = floats(1000), floats(1000) + 1
    there_x, there_y = cupy.asarray(x), cupy.asarray(y)
    equal("divide_f32", (there_x / there_y).get(), x / y)
    equal("sqrt_f32", cupy.sqrt(there_x).get(), numpy.sqrt(x))
    for name in ("sin", "exp", "log1p", "tanh", "arctan2", "power", "hypot"):
        values = (there_x, there_y) if name in ("arctan2", "power", "hypot") else (there_x,)
        near(name, getattr(cupy, name)(*values).get(), getattr(numpy, name)(*(v.get() for v in values)))
    x, there_x = x.astype("float64"), there_x.astype("float64")
    for name in ("cos", "expm1", "cbrt", "arcsin"):
        near(f"{name}_f64", getattr(cupy, name)(there_x).get(), getattr(numpy, name)(x), 1e-13)
    z = floats(100) + 1j * floats(100)
    near("complex", cupy.exp(cupy.asarray(z)).get(), numpy.exp(z))
    halves = floats(500).astype("float16")
    equal("half", (cupy.asarray(halves) * cupy.float16(3)).get(), halves * numpy.float16(3))


@section
def fusion():
    @cupy.fuse()
    def scaled_difference(a, b, factor):
        return (a - b) * factor + a
    a, b = integers(777), integers(777)
    equal("fused", scaled_difference(cupy.asarray(a), cupy.asarray(b), numpy.int32(3)).get(), (a - b) * 3 + a)
    norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = a", "0", "sum_of_squares")
    equal("reduction_kernel", norm(cupy.asarray(a.astype("int64")), axis=0).get(),
          numpy.asarray((a.astype("int64") ** 2).sum()))
    step = cupy.ElementwiseKernel("raw T x, int64 n", "T y", "y = x[n - 1 - i] + i", "reverse_and_add")
    equal("elementwise_kernel", step(cupy.asarray(a), a.size, size=a.size).get(),
          (a[::-1] + numpy.arange(a.size)).astype("int32"))


def use_accelerators(names):
    """Makes CuPy use the reductions of these accelerators (CUB); without any, it uses its own."""
    set_routine = getattr(cupy._core, "set_routine_accelerators")
    set_reduction = getattr(cupy._core, "set_reduction_accelerators")
    set_routine(names)
    set_reduction(names)


def reductions_with(prefix):
    a = integers(64, 1000)
    there = cupy.asarray(a)
    equal(f"{prefix}_sum", there.sum().get(), numpy.asarray(a.sum()))
    equal(f"{prefix}_sum_rows", there.sum(axis=1).get(), a.sum(axis=1))
    equal(f"{prefix}_sum_columns", there.sum(axis=0).get(), a.sum(axis=0))
    equal(f"{prefix}_max", there.max(axis=1).get(), a.max(axis=1))
    equal(f"{prefix}_argmin", there.argmin(axis=1).get(), a.argmin(axis=1))
    equal(f"{prefix}_argmax", there.argmax().get(), numpy.asarray(a.argmax()))
    equal(f"{prefix}_cumsum", there.ravel().cumsum().get(), a.ravel().cumsum())
    small = integers(5000, low=-1, high=2, dtype=numpy.int64)
    equal(f"{prefix}_count", int(cupy.count_nonzero(cupy.asarray(small))), int(numpy.count_nonzero(small)))
    x = floats(100000)
    near(f"{prefix}_mean_f32", cupy.asarray(x).mean().get(), x.mean())
    near(f"{prefix}_sum_f64", cupy.asarray(x.astype("float64")).sum().get(), x.astype("float64").sum(), 1e-12)
    near(f"{prefix}_var", cupy.asarray(x[:1000]).var().get(), x[:1000].var())


@section
def reductions():
    try:
        use_accelerators([])
        reductions_with("own")
        use_accelerators(["cub"])
        reductions_with("cub")
    finally:
        use_accelerators(["cub"])
    bins = integers(3000, low=0, high=50)
    equal("bincount", cupy.bincount(cupy.asarray(bins)).get(), numpy.bincount(bins))
    counts, _ = cupy.histogram(cupy.asarray(bins), bins=10)
    equal("histogram", counts.get(), numpy.histogram(bins, bins=10)[0])


@section
def sorting():
    for dtype in ("int8", "uint32", "int64", "float32", "float64"):
        a = integers(4000).astype(dtype)
        equal(f"sort_{dtype}", cupy.sort(cupy.asarray(a)).get(), numpy.sort(a))
    a = integers(20, 300)
    equal("sort_rows", cupy.sort(cupy.asarray(a), axis=1).get(), numpy.sort(a, axis=1))
    unique = RANDOM.permutation(3000)
    equal("argsort", cupy.argsort(cupy.asarray(unique)).get(), numpy.argsort(unique))
    keys = numpy.stack([integers(500, low=0, high=4), RANDOM.permutation(500).astype("int32")])[::-1]
    equal("lexsort", cupy.lexsort(cupy.asarray(keys)).get(), numpy.lexsort(keys))
    equal("unique", cupy.unique(cupy.asarray(a)).get(), numpy.unique(a))
    equal("partition", int(cupy.partition(cupy.asarray(unique), 1000)[1000]), 1000)
    edges = numpy.arange(-1000, 1000, 37)
    equal("searchsorted", cupy.searchsorted(cupy.asarray(edges), cupy.asarray(a)).get(),
          numpy.searchsorted(edges, a))
    equal("median", float(cupy.median(cupy.asarray(a))), float(numpy.median(a)))


RAW = r"""
extern "C" __constant__ int weights[4];
extern "C" __device__ int total;
extern "C" __global__ void weigh(const int* in, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    out[i] = in[i] * weights[i % 4];
    atomicAdd(&total, in[i]);
  }
}
extern "C" __global__ void reverse(int* data, int n) {
  extern __shared__ int tile[];
  tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[n - 1 - threadIdx.x];
}
template <typename T> __global__ void fill(T* out, T value) { out[threadIdx.x] = value; }
struct Pair { float x; double y; };
extern "C" __global__ void by_value(Pair pair, double* out) { *out = pair.x + pair.y; }
"""


@section
def raw_kernels():
    add = cupy.RawKernel(r"""
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}""", "add")
    a, b = floats(10000), floats(10000)
    c = cupy.empty_like(cupy.asarray(a))
    add((10,), (128,), (cupy.asarray(a), cupy.asarray(b), c, numpy.int32(a.size)))
    equal("raw_kernel", c.get(), a + b)
    equal("max_threads", add.max_threads_per_block > 0, True)
    equal("shared_bytes", add.shared_size_bytes, 0)
    add.max_dynamic_shared_size_bytes = 100 * 1024
    equal("max_dynamic_shared", add.max_dynamic_shared_size_bytes, 100 * 1024)
    module = cupy.RawModule(code=RAW, options=("-std=c++14",), name_expressions=("fill<short>", "fill<double>"))
    host = integers(1000)
    weights = cupy.ndarray((4,), "int32", module.get_global("weights"))
    weights[...] = cupy.asarray([1, 2, 3, 4], "int32")
    total = cupy.ndarray((), "int32", module.get_global("total"))
    total[...] = 0
    out = cupy.zeros(1000, "int32")
    module.get_function("weigh")((8,), (128,), (cupy.asarray(host), out, numpy.int32(1000)))
    equal("constant", out.get(), host * numpy.resize(numpy.arange(1, 5, dtype="int32"), 1000))
    equal("global", int(total), int(host.sum()))
    data = cupy.arange(512, dtype="int32")
    module.get_function("reverse")((1,), (512,), (data, numpy.int32(512)), shared_mem=2048)
    equal("shared", data.get(), numpy.arange(511, -1, -1, dtype="int32"))
    for name, dtype in (("short", "int16"), ("double", "float64")):
        filled = cupy.zeros(32, dtype)
        module.get_function(f"fill<{name}>")((1,), (32,), (filled, numpy.dtype(dtype).type(5)))
        equal(f"template_{name}", filled.get(), numpy.full(32, 5, dtype))
    pair = numpy.zeros((), numpy.dtype([("x", "f4"), ("y", "f8")], align=True))
    pair["x"], pair["y"] = 1.5, 2.25
    out = cupy.zeros((), "float64")
    module.get_function("by_value")((1,), (1,), (pair, out))
    equal("structure", float(out), 3.75)
    raises("no_such_function", cupy.cuda.driver.CUDADriverError, lambda: module.get_function("absent"),
           "CUDA_ERROR_NOT_FOUND")
    raises("compile_error", cupy.cuda.compiler.CompileException,
           lambda: cupy.RawKernel('extern "C" __global__ void f() { nonsense }', "f").compile(), "nonsense")
    raises("block_too_large", cupy.cuda.driver.CUDADriverError,
           lambda: add((1,), (2048,), (c, c, c, numpy.int32(1))), "CUDA_ERROR_INVALID_VALUE")


@section
def cooperative():
    if not NEW:
        return checks.skip("needs libcudadevrt.a, which CUDA 11's wheels lack")
    code = r"""
#include <cooperative_groups.h>
extern "C" __global__ void two_phases(int* data, int* sums, int n) {
  cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  data[i] = i + 1;
  grid.sync();
  sums[i] = data[n - 1 - i] + data[i];
}"""
    kernel = cupy.RawKernel(code, "two_phases", enable_cooperative_groups=True)
    data, sums = cupy.zeros(512, "int32"), cupy.zeros(512, "int32")
    kernel((4,), (128,), (data, sums, numpy.int32(512)))
    equal("sums", sums.get(), numpy.full(512, 513, "int32"))


@section
def streams_and_events():
    urgent = {"priority": -1} if NEW else {}
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True, **urgent)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    with first:
        a = cupy.arange(100000, dtype="int64")
        start.record()
        for _ in range(20):
            a += 1
        end.record()
    second.wait_event(end)
    with second:
        b = a * 2
    second.synchronize()
    equal("ordered", b.get(stream=second), (numpy.arange(100000) + 20) * 2)
    equal("done", (first.done, second.done, end.done), (True, True, True))
    equal("elapsed", cupy.cuda.get_elapsed_time(start, end) >= 0, True)
    untimed = cupy.cuda.Event(disable_timing=True)
    untimed.record(first)
    untimed.synchronize()
    raises("untimed", cupy.cuda.runtime.CUDARuntimeError, lambda: cupy.cuda.get_elapsed_time(start, untimed),
           "cudaErrorInvalidResourceHandle")
    calls = []
    first.launch_host_func(calls.append, "host function")
    first.add_callback(lambda stream, status, argument: calls.append(argument), "callback")
    first.synchronize()
    equal("callbacks", calls, ["host function", "callback"])
    with cupy.cuda.stream.get_current_stream() as current:
        equal("current", current == cupy.cuda.Stream.null, True)
    per_thread = cupy.cuda.Stream.ptds
    with per_thread:
        c = cupy.ones(1000, "int32")
        c += 1
    per_thread.synchronize()
    equal("per_thread", int(c.sum()), 2000)


@section
def threads():
    sums = [0] * 4

    def work(index):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            values = cupy.full(5000, index + 1, "int64")
            for _ in range(5):
                values += index
            sums[index] = int(values.sum())
            stream.synchronize()
    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    equal("sums", sums, [5000 * (index + 1 + 5 * index) for index in range(4)])


@section
def pools():
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        a = cupy.zeros(1 << 20, "uint8")
        equal("used", pool.used_bytes(), 1 << 20)
        address = a.data.ptr
        del a
        equal("kept", (pool.used_bytes(), pool.total_bytes()), (0, 1 << 20))
        equal("reused", cupy.empty(1 << 20, "uint8").data.ptr == address, True)
        pool.free_all_blocks()
        equal("freed", pool.total_bytes(), 0)
        pool.set_limit(size=1 << 20)
        raises("limit", cupy.cuda.memory.OutOfMemoryError, lambda: cupy.empty(1 << 21, "uint8"))
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            a = cupy.arange(100000, dtype="int32")
            b = a + a
            del a
            equal("stream_ordered", b.get(), numpy.arange(100000, dtype="int32") * 2)
            del b
            stream.synchronize()
    with cupy.cuda.using_allocator(cupy.cuda.memory.malloc_managed):
        managed = cupy.arange(1000, dtype="int32")
        managed *= 3
        equal("managed", managed.get(), numpy.arange(1000, dtype="int32") * 3)
        del managed
    raises("too_much", cupy.cuda.memory.OutOfMemoryError, lambda: cupy.empty(1 << 50, "uint8"))


@section
def pinned_memory():
    memory = cupy.cuda.alloc_pinned_memory(400000)
    host = numpy.frombuffer(memory, "int32", 100000)
    host[...] = numpy.arange(100000)
    stream = cupy.cuda.Stream(non_blocking=True)
    there = cupy.empty(100000, "int32")
    there.set(host, stream=stream)
    with stream:
        there *= 7
    there.get(stream=stream, out=host)
    stream.synchronize()
    equal("copied", host.copy(), numpy.arange(100000, dtype="int32") * 7)
    zeros = cupyx.zeros_pinned((100, 100), "float32")
    equal("zeros", cupy.asarray(zeros).get(), numpy.zeros((100, 100), "float32"))
    view = cupy.ndarray((100000,), "int32", cupy.cuda.MemoryPointer(
        cupy.cuda.UnownedMemory(host.ctypes.data, 400000, memory, 0), 0))
    equal("mapped", int(view.sum()), int(host.sum(dtype="int64")))
    registered = numpy.arange(4096, dtype="int32")
    cupy.cuda.runtime.hostRegister(registered.ctypes.data, registered.nbytes, 0)
    equal("registered", cupy.asarray(registered).get(), registered)
    cupy.cuda.runtime.hostUnregister(registered.ctypes.data)


@section
def copies():
    runtime = cupy.cuda.runtime
    host = integers(64, 100)
    there = cupy.zeros((64, 128), "int32")
    runtime.memcpy2D(there.data.ptr, 512, host.ctypes.data, 400, 400, 64, runtime.memcpyHostToDevice)
    equal("pitched", there[:, :100].get(), host)
    runtime.memset(there.data.ptr, 0x11, there.nbytes)
    equal("memset", there.get(), numpy.full((64, 128), 0x11111111, "int32"))
    attributes = runtime.pointerGetAttributes(there.data.ptr)
    equal("pointer", (attributes.device, attributes.type), (0, 2))
    other = cupy.empty_like(there)
    other.data.copy_from_device_async(there.data, there.nbytes, cupy.cuda.Stream.null)
    equal("device_to_device", other.get(), there.get())
    raises("bad_address", runtime.CUDARuntimeError,
           lambda: runtime.memcpy(1 << 46, there.data.ptr, 16, runtime.memcpyDeviceToDevice),
           "cudaErrorInvalidValue")


@section
def graphs():
    stream = cupy.cuda.Stream(non_blocking=True)
    data = cupy.zeros(1000, "int32")
    scale = cupy.ElementwiseKernel("T x", "T y", "y = x * 2 + 1", "scale_in_graph")
    scale(data, data)  # compiled before the capture
    data[...] = 0
    cupy.cuda.Stream.null.synchronize()
    with stream:
        stream.begin_capture()
        equal("capturing", stream.is_capturing(), True)
        for _ in range(3):
            scale(data, data)
        graph = stream.end_capture()
    equal("not_yet", int(data.sum()), 0)
    graph.upload(stream)
    for _ in range(4):
        graph.launch(stream)
    stream.synchronize()
    equal("launched", data.get(), numpy.full(1000, (1 << 12) - 1, "int32"))
    with stream:
        stream.begin_capture()
        raises("synchronizing", cupy.cuda.runtime.CUDARuntimeError, stream.synchronize,
               "cudaErrorStreamCaptureUnsupported")
        raises("invalidated", cupy.cuda.runtime.CUDARuntimeError, stream.end_capture,
               "cudaErrorStreamCaptureInvalidated")


@section
def scatter():
    a = cupy.asarray(RANDOM.permutation(1000).astype("int32"))
    sums = cupy.zeros(10, "int32")
    cupyx.scatter_add(sums, a % 10, a)
    expected = numpy.zeros(10, "int32")
    numpy.add.at(expected, a.get() % 10, a.get())
    equal("scatter_add", sums.get(), expected)


@section
def images():
    image = integers(32, 32, low=0, high=255)
    eroded = cupyx.scipy.ndimage.grey_erosion(cupy.asarray(image), size=(3, 3)).get()
    padded = numpy.pad(image, 1, mode="symmetric")
    windows = numpy.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    equal("erosion", eroded, windows.min(axis=(2, 3)).astype("int32"))


# The image moved by `down` and `right` parts of a texel: each value is interpolated between a texel and its neighbours.
# Beyond the edge, the outermost texels are repeated.
def between_texels(image, down, right):
    padded = numpy.pad(image, ((0, 1), (0, 1)), mode="edge").astype("float32")
    rows = padded[:-1] * numpy.float32(1 - down) + padded[1:] * numpy.float32(down)
    return rows[:, :-1] * numpy.float32(1 - right) + rows[:, 1:] * numpy.float32(right)


TEXTURES = r"""
extern "C" __global__ void fetch(cudaTextureObject_t texture, float* out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex1Dfetch<float>(texture, i) + 1;
}
extern "C" __global__ void colors(cudaTextureObject_t texture, float4* out, int width, int height) {
    int x = threadIdx.x, y = threadIdx.y;
    out[y * width + x] = tex2D<float4>(texture, (x + 0.5f) / width, (y + 0.5f) / height);
}
extern "C" __global__ void transpose(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {
    int x = threadIdx.x, y = threadIdx.y;
    surf2Dwrite(surf2Dread<float>(from, x * 4, y), to, y * 4, x);
}
"""


@section
def textures():
    texture, runtime = cupy.cuda.texture, cupy.cuda.runtime
    image = integers(24, 40, low=0, high=200).astype("float32")
    there = cupy.asarray(image)
    # For each place of the output, cupyx reads the input at this matrix times the place.
    shift = cupy.eye(3, dtype="float32")
    shift[0, 2], shift[1, 2] = 0.25, 0.5
    moved = cupyx.scipy.ndimage.affine_transform(there, shift, order=1, mode="nearest", texture_memory=True)
    equal("affine_2d", moved.get(), between_texels(image, 0.25, 0.5))
    moved = cupyx.scipy.ndimage.affine_transform(there, shift, order=0, mode="constant", cval=7, texture_memory=True)
    nearest = numpy.pad(image[:, 1:], ((0, 0), (0, 1)), constant_values=7)
    equal("affine_2d_nearest", moved.get(), nearest)
    volume = integers(6, 10, 12, low=0, high=200).astype("float32")
    shift = cupy.eye(4, dtype="float32")
    shift[0, 3] = 0.5
    moved = cupyx.scipy.ndimage.affine_transform(cupy.asarray(volume), shift, order=1, mode="nearest",
                                                 texture_memory=True)
    padded = numpy.pad(volume, ((0, 1), (0, 0), (0, 0)), mode="edge")
    equal("affine_3d", moved.get(), ((padded[:-1] + padded[1:]) / 2).astype("float32"))

    module = cupy.RawModule(code=TEXTURES)
    floats_32 = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    clamp, wrap = runtime.cudaAddressModeClamp, runtime.cudaAddressModeWrap
    line = cupy.asarray(floats(1000))
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeLinear, arr=line, chDesc=floats_32,
                                          sizeInBytes=line.nbytes)
    element = texture.TextureDescriptor((clamp, ), runtime.cudaFilterModePoint, runtime.cudaReadModeElementType)
    out = cupy.zeros(1000, "float32")
    module.get_function("fetch")((4, ), (256, ), (texture.TextureObject(resource, element), out, 1000))
    equal("fetched", out.get(), line.get() + numpy.float32(1))

    pixels = integers(8, 16 * 4, low=0, high=255).astype("uint8")
    bytes_4 = texture.ChannelFormatDescriptor(8, 8, 8, 8, runtime.cudaChannelFormatKindUnsigned)
    array = texture.CUDAarray(bytes_4, 16, 8)
    array.copy_from(pixels)
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
    normalised = texture.TextureDescriptor((wrap, wrap), runtime.cudaFilterModePoint,
                                           runtime.cudaReadModeNormalizedFloat, normalizedCoords=1)
    out = cupy.zeros((8, 16 * 4), "float32")
    module.get_function("colors")((1, ), (16, 8), (texture.TextureObject(resource, normalised), out, 16, 8))
    equal("colors", out.get(), (pixels.astype("float64") / 255).astype("float32"))
    back = numpy.zeros_like(pixels)
    array.copy_to(back)
    equal("array", back, pixels)

    flags = runtime.cudaArraySurfaceLoadStore
    first, second = texture.CUDAarray(floats_32, 16, 16, 0, flags), texture.CUDAarray(floats_32, 16, 16, 0, flags)
    square = floats(16, 16)
    first.copy_from(square)
    surfaces = [texture.SurfaceObject(texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=one))
                for one in (first, second)]
    module.get_function("transpose")((1, ), (16, 16), tuple(surfaces))
    turned = numpy.zeros_like(square)
    second.copy_to(turned)
    equal("surfaces", turned, square.T.copy())


@section
def files():
    host = integers(10, 10)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "array.npy")
        cupy.save(path, cupy.asarray(host))
        equal("loaded", cupy.load(path).get(), host)
    interface = cupy.asarray(host).__cuda_array_interface__
    equal("interface", (interface["shape"], interface["typestr"]), ((10, 10), "<i4"))
    equal("dlpack", cupy.from_dlpack(cupy.asarray(host)).get(), host)


@section
def sticky_error():
    # In a process of its own, because the context is unusable after it.
    result = subprocess.run([sys.executable, __file__, "--fault"], stdout=subprocess.PIPE, text=True)
    equal("exit_code", result.returncode, 0)
    for line in result.stdout.splitlines():
        show("process", line)


def fault():
    wild = cupy.RawKernel('extern "C" __global__ void wild(int* p) { *p = 1; }', "wild")
    wild((1,), (1,), (numpy.uint64(64),))
    runtime = cupy.cuda.runtime
    raises("illegal_address", runtime.CUDARuntimeError, runtime.deviceSynchronize, "cudaErrorIllegalAddress")
    raises("stays", runtime.CUDARuntimeError, lambda: runtime.malloc(64), "cudaErrorIllegalAddress")


if __name__ == "__main__":
    if sys.argv[1:] == ["--fault"]:
        checks.SECTIONS[:] = [fault]
        checks.main(leave=True)
    checks.main()
