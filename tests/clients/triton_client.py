"""Uses Triton as its users do, and compares with NumPy. Without PyTorch: the memory is from the driver API."""

import ctypes

import numpy
import triton
import triton.language as tl

import checks
from checks import equal, near, raises, section

RANDOM = numpy.random.default_rng(23)
TYPES = {"int32": "i32", "int64": "i64", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
CUDA = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    if error := getattr(CUDA, name)(*arguments):
        raise RuntimeError(f"{name}: {error}")


CONTEXT = ctypes.c_void_p()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(CONTEXT), 0)
call("cuCtxSetCurrent", CONTEXT)


class Array:
    """An array on the GPU with what Triton requires of an argument: data_ptr() and dtype."""

    def __init__(self, host):
        self.host = numpy.ascontiguousarray(host)
        self.dtype = TYPES[self.host.dtype.name]
        self.address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(self.host.nbytes))
        call("cuMemcpyHtoD_v2", self.address, ctypes.c_void_p(self.host.ctypes.data), ctypes.c_size_t(self.host.nbytes))

    def data_ptr(self):
        return self.address.value

    def get(self):
        out = numpy.empty_like(self.host)
        call("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), self.address, ctypes.c_size_t(out.nbytes))
        return out


def zeros(*shape, dtype="float32"):
    return Array(numpy.zeros(shape, dtype))


@triton.jit
def add_kernel(a, b, out, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(out + index, tl.load(a + index, mask=mask) + tl.load(b + index, mask=mask), mask=mask)


@section
def elementwise():
    for dtype in TYPES:
        a, b = (RANDOM.integers(-100, 100, 1000).astype(dtype) for _ in range(2))
        out = zeros(1000, dtype=dtype)
        add_kernel[(4,)](Array(a), Array(b), out, 1000, BLOCK=256)
        equal(f"add_{dtype}", out.get(), a + b)


@triton.jit
def softmax_kernel(values, out, columns, BLOCK: tl.constexpr):
    row, index = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(values + row * columns + index, mask=index < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out + row * columns + index, e / tl.sum(e, 0), mask=index < columns)


@triton.jit
def scan_kernel(values, sums, total, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    x = tl.load(values + tl.program_id(0) * BLOCK + index)
    tl.store(sums + tl.program_id(0) * BLOCK + index, tl.cumsum(x, 0))
    tl.atomic_add(total, tl.sum(x, 0))


@triton.jit
def sort_kernel(values, out, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, tl.sort(tl.load(values + index)))


@section
def reductions():
    values, out = RANDOM.random((8, 100), "float32"), zeros(8, 100)
    softmax_kernel[(8,)](Array(values), out, 100, BLOCK=128)
    e = numpy.exp(values - values.max(axis=1, keepdims=True))
    near("softmax", out.get(), e / e.sum(axis=1, keepdims=True))
    values, sums, total = RANDOM.integers(-50, 50, (4, 512)).astype("int32"), zeros(4, 512, dtype="int32"), zeros(
        1, dtype="int32")
    scan_kernel[(4,)](Array(values), sums, total, BLOCK=512)
    equal("cumsum", sums.get(), values.cumsum(axis=1, dtype="int32"))
    equal("atomic_sum", int(total.get()[0]), int(values.sum()))
    out = zeros(512, dtype="int32")
    sort_kernel[(1,)](Array(values[0]), out, BLOCK=512)
    equal("sort", out.get(), numpy.sort(values[0]))


@triton.jit
def product_kernel(a, b, out, K, BLOCK: tl.constexpr):
    rows, columns, inner = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for step in range(0, K, BLOCK):
        left = tl.load(a + rows[:, None] * K + step + inner[None, :])
        right = tl.load(b + (step + inner[:, None]) * BLOCK + columns[None, :])
        # For IEEE arithmetic, Triton uses FMAs; for any other it uses tensor cores, which softgpu lacks.
        sums = tl.dot(left, right, sums, input_precision="ieee")
    tl.store(out + rows[:, None] * BLOCK + columns[None, :], sums)


@section
def products():
    a, b, out = RANDOM.random((64, 96), "float32"), RANDOM.random((96, 32), "float32"), zeros(64, 32)
    product_kernel[(2,)](Array(a), Array(b), out, 96, BLOCK=32)
    near("product", out.get(), a @ b)


@triton.jit
def wild_kernel(pointers):
    tl.store(tl.load(pointers).to(tl.pointer_type(tl.int32)), 1)


@section
def errors():
    small = zeros(4, dtype="int32")
    raises("block_too_large", Exception, lambda: add_kernel[(1,)](small, small, small, 4, BLOCK=64, num_warps=64),
           "out of resource")
    # The last check, because the context is unusable after it.
    wild_kernel[(1,)](Array(numpy.array([64])))
    raises("illegal_address", RuntimeError, lambda: call("cuCtxSynchronize"), "cuCtxSynchronize: 700")


if __name__ == "__main__":
    checks.main()
