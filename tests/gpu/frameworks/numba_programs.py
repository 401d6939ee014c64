"""numba-cuda: kernels, shared memory, atomics, cooperative grids, reductions, streams, device functions."""

import math
import warnings

import lines

numpy = lines.need("numpy")
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack  # numba 0.68 needs it, and NumPy 2.5 no longer has it
lines.need("numba")
cuda = lines.need("numba.cuda")
warnings.simplefilter("ignore")

if not cuda.is_available():
    lines.missing("no GPU for numba")

from numba import float32, vectorize  # noqa: E402


@cuda.jit
def axpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + y[i]


@lines.case
def kernel(say):
    x, y = numpy.arange(10_000, dtype=numpy.float32), numpy.ones(10_000, dtype=numpy.float32)
    axpy[80, 128](2.0, x, y)
    say("host arrays", lines.hash_of(y))
    there = cuda.to_device(y)
    axpy[80, 128](0.5, cuda.to_device(x), there)
    say("device arrays", lines.hash_of(there.copy_to_host()))


@cuda.jit
def tiled(a, b, c):
    left = cuda.shared.array((16, 16), float32)
    right = cuda.shared.array((16, 16), float32)
    row, column = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for tile in range(a.shape[1] // 16):
        left[x, y] = a[row, tile * 16 + y]
        right[x, y] = b[tile * 16 + x, column]
        cuda.syncthreads()
        for k in range(16):
            total += left[x, k] * right[k, y]
        cuda.syncthreads()
    c[row, column] = total


@lines.case
def shared_memory(say):
    generator = numpy.random.default_rng(0)
    a, b = (generator.integers(-3, 4, (64, 64)).astype(numpy.float32) for _ in range(2))
    c = numpy.zeros((64, 64), dtype=numpy.float32)
    tiled[(4, 4), (16, 16)](a, b, c)
    say("product", lines.hash_of(c))
    say("exact", bool((c == a @ b).all()))


@cuda.jit
def count(values, bins, largest):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, values[i], 1)
        cuda.atomic.max(largest, 0, values[i])


@lines.case
def atomics(say):
    values = numpy.random.default_rng(1).integers(0, 50, 20_000).astype(numpy.int32)
    bins, largest = numpy.zeros(50, dtype=numpy.int32), numpy.zeros(1, dtype=numpy.int32)
    count[160, 128](values, bins, largest)
    say("bins", lines.hash_of(bins))
    say("right", bool((bins == numpy.bincount(values, minlength=50)).all()))
    say("largest", int(largest[0]))


@cuda.jit
def sweep(rows):
    grid = cuda.cg.this_grid()
    column = cuda.grid(1)
    for row in range(1, rows.shape[0]):
        other = rows.shape[1] - column - 1
        rows[row, column] = rows[row - 1, other] + 1
        grid.sync()


@lines.case
def grid_sync(say):
    rows = numpy.zeros((64, 1024), dtype=numpy.int32)
    rows[0] = numpy.arange(1024)
    sweep[8, 128](rows)
    say("rows", lines.hash_of(rows))
    definition = sweep.overloads[tuple(sweep.overloads)[0]]
    say("blocks at once", definition.max_cooperative_grid_blocks(128) > 8)


@lines.case
def reduce(say):
    total = cuda.reduce(lambda a, b: a + b)
    for size in (10, 1000, 100_000):
        say(f"{size}", int(total(numpy.arange(size, dtype=numpy.int64))))


@cuda.jit(device=True)
def shifted(x, by):
    return math.sqrt(x) + by


@cuda.jit
def uses_device_function(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = shifted(x[i], i % 3)


@lines.case
def device_functions(say):
    x, out = numpy.arange(1000, dtype=numpy.float64), numpy.zeros(1000)
    uses_device_function[8, 128](x, out)
    say("out", lines.hash_of(out))


@lines.case
def ufunc(say):
    try:
        @vectorize(["float32(float32, float32)"], target="cuda")
        def mixed(a, b):
            return a * b + a
        say("out", lines.hash_of(mixed(numpy.arange(5000, dtype=numpy.float32),
                                       numpy.ones(5000, dtype=numpy.float32))))
    except ModuleNotFoundError:
        raise lines.Skip("no ufuncs for CUDA in this numba")


@lines.case
def streams_and_events(say):
    streams = [cuda.stream() for _ in range(4)]
    host = [cuda.pinned_array(4000, dtype=numpy.float32) for _ in streams]
    there = []
    for i, stream in enumerate(streams):
        host[i][:] = i
        x = cuda.to_device(numpy.arange(4000, dtype=numpy.float32), stream=stream)
        y = cuda.to_device(host[i], stream=stream)
        axpy[32, 128, stream](1.5, x, y)
        y.copy_to_host(host[i], stream=stream)
        there += [x, y]
    for stream in streams:
        stream.synchronize()
    say("out", lines.hash_of(*host))
    begin, end = cuda.event(), cuda.event()
    begin.record()
    end.record()
    end.synchronize()
    say("time passes", cuda.event_elapsed_time(begin, end) >= 0)


@lines.case
def managed_and_mapped(say):
    managed = cuda.managed_array(2000, dtype=numpy.float32)
    managed[:] = 1
    axpy[16, 128](3.0, numpy.ones(2000, dtype=numpy.float32), managed)
    cuda.synchronize()
    say("managed", float(managed.sum()))
    mapped = cuda.mapped_array(2000, dtype=numpy.float32)
    mapped[:] = 2
    axpy[16, 128](1.0, numpy.ones(2000, dtype=numpy.float32), mapped)
    cuda.synchronize()
    say("mapped", float(mapped.sum()))


@cuda.jit
def warps(out):
    i = cuda.grid(1)
    lane = i % 32
    value = cuda.shfl_down_sync(0xFFFFFFFF, i, 1)
    ballot = cuda.ballot_sync(0xFFFFFFFF, lane % 3 == 0)
    out[i] = value + ballot % 1000


@lines.case
def warp_operations(say):
    out = numpy.zeros(256, dtype=numpy.int64)
    warps[2, 128](out)
    say("out", lines.hash_of(out))


@lines.case
def random_states(say):
    from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32
    states = create_xoroshiro128p_states(256, seed=3)

    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        out[i] = xoroshiro128p_uniform_float32(states, i)

    out = numpy.zeros(256, dtype=numpy.float32)
    draw[2, 128](states, out)
    say("out", lines.hash_of(out))


if __name__ == "__main__":
    lines.run()
