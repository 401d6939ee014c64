"""CuPy: arrays, ufuncs, reductions, user-defined kernels, streams, pools, graphs, the CUDA libraries."""

import os

import lines

cupy = lines.need("cupy")
import numpy  # noqa: E402

try:
    cupy.cuda.runtime.getDeviceCount()
except Exception as no_device:
    lines.missing("no GPU for CuPy", str(no_device))


def hash_of(*arrays):
    return lines.hash_of(*[numpy.ascontiguousarray(cupy.asnumpy(array)) for array in arrays])


def integers(seed, *shape, low=-3, high=4, dtype=numpy.float32):
    return cupy.asarray(numpy.random.default_rng(seed).integers(low, high, shape).astype(dtype))


@lines.case
def arrays(say):
    x = cupy.arange(10_000, dtype=cupy.float32).reshape(100, 100)
    say("slices", hash_of(x[3:50, ::2], x.T[::-1], x[x > 5000]))
    say("joined", hash_of(cupy.concatenate([x, x * 2]), cupy.stack([x, x], 2)))
    say("indexed", hash_of(x[cupy.array([5, 1, 9]), cupy.array([0, 3, 7])]))
    say("types", hash_of(x.astype(cupy.float16), x.astype(cupy.int64), x.astype(cupy.complex64)))
    x[::3] = -1
    say("written", hash_of(x))


@lines.case
def ufuncs(say):
    x = cupy.linspace(0.1, 4, 1001)
    for name in ("sin", "exp", "log1p", "sqrt", "floor", "sign", "isfinite", "arctan", "square"):
        say(name, hash_of(getattr(cupy, name)(x)))
    say("binary", hash_of(cupy.hypot(x, x + 1), cupy.power(x, 3), cupy.fmod(x, 0.7), x > 2))
    say("where", hash_of(cupy.where(x > 1, x, -x), cupy.clip(x, 1, 2)))

    @cupy.fuse()
    def fused(a, b):
        return cupy.sqrt(a * a + b) - b

    say("fused", hash_of(fused(x, x)))


@lines.case
def reductions(say):
    x = integers(1, 300, 400)
    for name in ("sum", "max", "min", "argmax", "argmin", "mean", "any", "all", "prod", "ptp"):
        try:
            function, values = getattr(cupy, name), x % 2 if name == "prod" else x
            say(name, hash_of(function(values), function(values, axis=1)))
        except Exception as error:
            say(name, f"raises {type(error).__name__}")
    say("cumulative", hash_of(cupy.cumsum(x, axis=1), cupy.cumsum(x)))
    say("counts", hash_of(cupy.bincount(integers(2, 5000, low=0, high=9, dtype=numpy.int32))))


@lines.case
def sorting(say):
    x = cupy.asarray(numpy.random.default_rng(3).random(50_006, dtype=numpy.float32))
    say("sort", hash_of(cupy.sort(x), cupy.sort(x.reshape(-1, 11), axis=1)))
    say("argsort", hash_of(cupy.argsort(x)))
    say("unique", hash_of(*cupy.unique(integers(4, 3000), return_counts=True)))
    say("partition", hash_of(cupy.partition(x, 100)[100]))
    say("lexsort", hash_of(cupy.lexsort(cupy.stack([integers(5, 500), integers(6, 500)]))))


SOURCE = r"""
extern "C" __global__ void scale(const float* x, float* y, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] * factor + table[i % 4];
}
extern "C" __global__ void sums(const int* x, int* out, int count) {
  __shared__ int part[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < count ? x[i] : 0;
  __syncthreads();
  for (int half = 128; half; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, part[0]);
}
"""


@lines.case
def raw_kernel(say):
    kernel = cupy.RawKernel("__constant__ float table[4] = {1, 2, 3, 4};" + SOURCE, "scale")
    x = cupy.arange(1000, dtype=cupy.float32)
    y = cupy.empty_like(x)
    kernel((8,), (128,), (x, y, cupy.float32(2.5), cupy.int32(1000)))
    say("out", hash_of(y))
    say("threads", kernel.attributes["max_threads_per_block"])


@lines.case
def raw_module(say):
    module = cupy.RawModule(code="__constant__ float table[4];" + SOURCE, options=("--std=c++17",))
    table = cupy.ndarray(4, cupy.float32, module.get_global("table"))
    table[...] = cupy.array([10, 20, 30, 40], dtype=cupy.float32)
    x = cupy.arange(500, dtype=cupy.float32)
    y = cupy.empty_like(x)
    module.get_function("scale")((4,), (128,), (x, y, cupy.float32(1), cupy.int32(500)))
    say("scale", hash_of(y))
    values = cupy.arange(10_000, dtype=cupy.int32)
    out = cupy.zeros(1, dtype=cupy.int32)
    module.get_function("sums")((40,), (256,), (values, out, cupy.int32(10_000)))
    say("sums", int(out[0]))


@lines.case
def other_kernels(say):
    x = cupy.arange(5000, dtype=cupy.float32)
    say("elementwise", hash_of(cupy.ElementwiseKernel("T a, T b", "T c", "c = a * b + i", "mine")(x, x)))
    say("reduction", hash_of(cupy.ReductionKernel("T a", "T b", "a * 2", "a + b", "b = a", "0", "total")(
        integers(1, 4000))))

    try:
        from cupyx import jit

        @jit.rawkernel()
        def python_kernel(source, target, size):
            at = jit.grid(1)
            if at < size:
                target[at] = source[at] + at

        y = cupy.zeros_like(x)
        python_kernel[40, 128](x, y, numpy.uint32(5000))
        say("jit", hash_of(y))
    except Exception as error:
        say("jit", f"raises {type(error).__name__}")
    try:
        cupy.RawKernel('extern "C" __global__ void bad() { nonsense }', "bad")((1,), (1,), ())
    except Exception as error:
        say("bad source", type(error).__name__)


@lines.case
def streams_and_events(say):
    streams = [cupy.cuda.Stream(non_blocking=i % 2 == 0) for i in range(5)]
    parts = []
    for i, stream in enumerate(streams):
        with stream:
            parts.append(cupy.arange(1000, dtype=cupy.float64) * i)
    for stream in streams:
        stream.synchronize()
    say("parts", hash_of(*parts))
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    parts[0] += 1
    end.record()
    end.synchronize()
    say("time passes", cupy.cuda.get_elapsed_time(begin, end) >= 0)
    say("done", end.done)
    called = []
    streams[0].launch_host_func(lambda number: called.append(number), 7)
    streams[0].synchronize()
    say("host function", called)


@lines.case
def pools(say):
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.arange(100_000)
        say("used", pool.used_bytes())
        say("sum", int(x.sum()))
        del x
    say("afterwards", pool.used_bytes())
    pool.free_all_blocks()
    say("total", pool.total_bytes())
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        say("asynchronous", int(cupy.arange(1000).sum()))
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        y = cupy.arange(1000, dtype=cupy.int32) * 3
        say("managed", int(y.sum()))


@lines.case
def pinned_memory(say):
    import cupyx
    host = cupyx.empty_pinned((1000, 100), dtype=numpy.float32)
    host[...] = numpy.arange(100_000, dtype=numpy.float32).reshape(1000, 100)
    stream = cupy.cuda.Stream(non_blocking=True)
    there = cupy.empty((1000, 100), dtype=cupy.float32)
    there.set(host, stream=stream)
    with stream:
        there *= 2
    there.get(stream=stream, out=host)
    stream.synchronize()
    say("back", lines.hash_of(host))


@lines.case
def graphs(say):
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.ones(1000, dtype=cupy.float32)
    with stream:
        x * 2 + 1  # compiles the kernels, which is not possible during a capture
        stream.synchronize()
        stream.begin_capture()
        x *= 2
        x += 1
        graph = stream.end_capture()
        for _ in range(5):
            graph.launch(stream)
        stream.synchronize()
    say("x", hash_of(x))


@lines.case
def random(say):
    generator = cupy.random.default_rng(11)
    say("generator", hash_of(generator.random(1000), generator.integers(0, 100, 1000)))
    cupy.random.seed(5)
    say("curand", hash_of(cupy.random.rand(1000), cupy.random.randn(500), cupy.random.permutation(100)))


@lines.case
def cublas(say):
    for dtype in (cupy.float32, cupy.float64, cupy.float16, cupy.complex64):
        a, b = integers(1, 120, 80).astype(dtype), integers(2, 80, 60).astype(dtype)
        say(str(numpy.dtype(dtype)), hash_of(a @ b))
    say("einsum", hash_of(cupy.einsum("bij,bjk->bik", integers(3, 4, 20, 30), integers(4, 4, 30, 10))))


@lines.case
def cufft(say):
    x = cupy.asarray(numpy.random.default_rng(6).random((32, 60)))
    say("fft", hash_of(cupy.fft.fft(x), cupy.fft.rfft2(x), cupy.fft.ifft(x, axis=0)))


@lines.case
def cusolver(say):
    a = cupy.asarray(numpy.random.default_rng(7).random((30, 30)))
    spd = a @ a.T + 30 * cupy.eye(30)
    for name, function in {"cholesky": lambda: cupy.linalg.cholesky(spd), "qr": lambda: cupy.linalg.qr(a)[1],
                           "svd": lambda: cupy.linalg.svd(a)[1], "eigh": lambda: cupy.linalg.eigh(spd)[0],
                           "solve": lambda: cupy.linalg.solve(a, a[0]), "inv": lambda: cupy.linalg.inv(spd)
                           }.items():
        say(name, hash_of(function()))


@lines.case
def cusparse(say):
    from cupyx.scipy import sparse
    dense = integers(8, 50, 70) * integers(9, 50, 70, low=0, high=2)
    matrix = sparse.csr_matrix(dense)
    say("product", hash_of(matrix @ integers(10, 70, 5)))
    say("vector", hash_of(matrix @ integers(11, 70)))
    say("by itself", hash_of((matrix @ matrix.T).toarray()))
    say("formats", hash_of(matrix.tocsc().toarray(), matrix.tocoo().toarray()))


@lines.case
def textures_and_attributes(say):
    device = cupy.cuda.Device(0)
    say("capability", device.compute_capability)
    say("processors", device.attributes["MultiProcessorCount"])
    from cupy.cuda import texture
    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, cupy.cuda.runtime.cudaChannelFormatKindFloat)
    array = texture.CUDAarray(channel, 16, 8)
    source = numpy.arange(128, dtype=numpy.float32).reshape(8, 16)
    array.copy_from(source)
    target = numpy.empty_like(source)
    array.copy_to(target)
    say("array", bool((source == target).all()))
    description = texture.TextureDescriptor((cupy.cuda.runtime.cudaAddressModeClamp,) * 2)
    look = texture.TextureObject(texture.ResourceDescriptor(
        cupy.cuda.runtime.cudaResourceTypeArray, cuArr=array), description)
    kernel = cupy.RawKernel(r"""extern "C" __global__ void read(cudaTextureObject_t look, float* out) {
      out[threadIdx.y * 16 + threadIdx.x] = tex2D<float>(look, threadIdx.x + 0.5f, threadIdx.y + 0.5f); }""",
                            "read")
    out = cupy.zeros((8, 16), dtype=cupy.float32)
    kernel((1,), (16, 8), (look, out))
    say("texture", hash_of(out))


if __name__ == "__main__":
    os.makedirs(os.environ.get("CUPY_CACHE_DIR", "cupy"), exist_ok=True)
    lines.run()
