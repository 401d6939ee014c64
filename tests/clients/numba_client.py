"""Uses numba-cuda as its users do, and compares with NumPy. Does not use nvJitLink, so that the driver links (cuLink*):
softgpu's driver links PTX to PTX, which softgpu can run."""

import os
import tempfile
import warnings

import cuda.pathfinder as pathfinder
import numpy

import checks
from checks import equal, near, raises, section, show

load = pathfinder.load_nvidia_dynamic_lib


def load_all_but_nvjitlink(name):
    if name == "nvJitLink":
        raise pathfinder.DynamicLibNotFoundError(name)
    return load(name)


pathfinder.load_nvidia_dynamic_lib = load_all_but_nvjitlink
warnings.simplefilter("ignore")

from numba import cuda, float32, int32, vectorize  # noqa: E402

RANDOM = numpy.random.default_rng(29)
COUNT = 10000
GRID = ((COUNT + 127) // 128, 128)


@cuda.jit
def axpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def multiply(a, b, out):
    tile_a = cuda.shared.array((16, 16), int32)
    tile_b = cuda.shared.array((16, 16), int32)
    x, y = cuda.grid(2)
    column, row = cuda.threadIdx.x, cuda.threadIdx.y
    total = 0
    for block in range(a.shape[1] // 16):
        tile_a[row, column] = a[y, block * 16 + column]
        tile_b[row, column] = b[block * 16 + row, x]
        cuda.syncthreads()
        for i in range(16):
            total += tile_a[row, i] * tile_b[i, column]
        cuda.syncthreads()
    out[y, x] = total


@cuda.jit
def histogram(values, bins):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, values[i], 1)


@cuda.jit(device=True)
def collatz(value):
    steps = 0
    while value != 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    return steps


@cuda.jit
def collatz_steps(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = collatz(i + 1)


@section
def kernels():
    x, y = RANDOM.integers(-1000, 1000, (2, COUNT)).astype(numpy.float32)
    out = cuda.device_array(COUNT, numpy.float32)
    axpy[GRID](numpy.float32(2), cuda.to_device(x), cuda.to_device(y), out)
    equal("axpy", out.copy_to_host(), 2 * x + y)
    # Numba copies host arrays to the device and back.
    host = numpy.zeros(COUNT, numpy.float32)
    axpy[GRID](numpy.float32(3), x, y, host)
    equal("host arrays", host, 3 * x + y)
    a, b = RANDOM.integers(-50, 50, (2, 64, 64)).astype(numpy.int32)
    product = cuda.device_array((64, 64), numpy.int32)
    multiply[(4, 4), (16, 16)](a, b, product)
    equal("shared memory", product.copy_to_host(), a @ b)
    values = RANDOM.integers(0, 17, COUNT).astype(numpy.int32)
    bins = numpy.zeros(17, numpy.int32)
    histogram[GRID](values, bins)
    equal("atomics", bins, numpy.bincount(values, minlength=17).astype(numpy.int32))
    steps = numpy.zeros(1000, numpy.int32)
    collatz_steps[8, 128](steps)
    show("device function", steps)


@section
def library():
    values = RANDOM.integers(-1000, 1000, COUNT).astype(numpy.int64)
    add = cuda.reduce(lambda a, b: a + b)
    equal("reduce", int(add(values)), int(values.sum()))

    @vectorize(["float32(float32, float32)"], target="cuda")
    def hypotenuse(a, b):
        return (a * a + b * b) ** float32(0.5)

    a, b = RANDOM.random((2, COUNT)).astype(numpy.float32)
    near("vectorize", hypotenuse(a, b), numpy.hypot(a, b))


@section
def linking():
    code = """
.version 6.3
.target sm_75
.address_size 64
.visible .func (.param .b32 status) tripled (.param .b64 result, .param .b32 value) {
  .reg .b64 %result;
  .reg .b32 %value;
  ld.param.u64 %result, [result];
  ld.param.u32 %value, [value];
  mul.lo.s32 %value, %value, 3;
  st.u32 [%result], %value;
  mov.u32 %value, 0;
  st.param.b32 [status], %value;
  ret;
}
"""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx", delete=False) as file:
        file.write(code)
    tripled = cuda.declare_device("tripled", "int32(int32)")

    @cuda.jit(link=[file.name])
    def triple_all(values):
        i = cuda.grid(1)
        if i < values.size:
            values[i] = tripled(values[i])

    values = numpy.arange(300, dtype=numpy.int32)
    expected = values * 3
    triple_all[3, 128](values)
    os.unlink(file.name)
    equal("file", values, expected)

    missing = cuda.declare_device("is_nowhere", "int32(int32)")

    @cuda.jit
    def calls_missing(values):
        values[0] = missing(values[0])

    raises("missing function", Exception, lambda: calls_missing[1, 1](values))


@section
def streams():
    stream = cuda.stream()
    start, end = cuda.event(), cuda.event()
    pinned = cuda.pinned_array(COUNT, numpy.float32)
    pinned[:] = numpy.arange(COUNT)
    start.record(stream)
    x = cuda.to_device(pinned, stream=stream)
    out = cuda.device_array(COUNT, numpy.float32, stream=stream)
    axpy[GRID[0], GRID[1], stream](numpy.float32(2), x, x, out)
    end.record(stream)
    result = out.copy_to_host(stream=stream)
    stream.synchronize()
    equal("results", result, numpy.arange(COUNT, dtype=numpy.float32) * 3)
    equal("time is positive", cuda.event_elapsed_time(start, end) >= 0, True)
    free, total = cuda.current_context().get_memory_info()
    equal("memory", 0 < free <= total, True)
    view = out[10:20]
    equal("slice", view.copy_to_host(), numpy.arange(10, 20, dtype=numpy.float32) * 3)


if __name__ == "__main__":
    checks.main()
