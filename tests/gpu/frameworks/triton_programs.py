"""Triton: kernels in its language, autotuned kernels, atomics, and features of its launcher."""

import lines
from torch_common import DEVICE, hash_of, integers, prepare, torch

triton = lines.need("triton")
tl = lines.need("triton.language")


@triton.jit
def softmax_kernel(out, x, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + places, mask=places < columns, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + places, values / tl.sum(values, axis=0), mask=places < columns)


@lines.case
def softmax(say):
    for columns in (33, 128, 1000):
        torch.manual_seed(columns)
        x = torch.randn(64, columns, device=DEVICE)
        out = torch.empty_like(x)
        softmax_kernel[(64,)](out, x, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns))
        say(f"{columns} columns", hash_of(out))
        say(f"{columns} columns as PyTorch", torch.allclose(out, torch.softmax(x, 1), atol=1e-6))


@triton.autotune(configs=[triton.Config({"M": m, "N": n, "K": k}, num_warps=warps, num_stages=stages)
                          for m, n, k, warps, stages in ((32, 32, 32, 4, 2), (64, 64, 32, 4, 3),
                                                         (128, 64, 32, 8, 3), (64, 128, 64, 8, 2))],
                 key=["size"])
@triton.jit
def matmul_kernel(a, b, c, size, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, size, K):
        depth = k + tl.arange(0, K)
        left = tl.load(a + rows[:, None] * size + depth[None, :])
        right = tl.load(b + depth[:, None] * size + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * size + columns[None, :], total)


@lines.case
def autotuned_matmul(say):
    """All numbers are whole, so the result is exact with every configuration."""
    for size in (256, 512):
        a = integers(size, size, dtype=torch.float16)
        b = integers(size, size, dtype=torch.float16, seed=1)
        c = torch.empty(size, size, device=DEVICE, dtype=torch.float32)
        matmul_kernel[lambda meta: (size // meta["M"], size // meta["N"])](a, b, c, size)
        say(f"size {size}", hash_of(c))
        say(f"size {size} exact", torch.equal(c, a.float() @ b.float()))
    say("tuned for", len(matmul_kernel.cache))


@triton.jit
def histogram_kernel(out, x, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + places, mask=places < count, other=0)
    tl.atomic_add(out + values, 1, mask=places < count)


@lines.case
def atomics(say):
    x = integers(50_000, low=0, high=64, dtype=torch.int32)
    out = torch.zeros(64, device=DEVICE, dtype=torch.int32)
    histogram_kernel[(triton.cdiv(50_000, 512),)](out, x, 50_000, BLOCK=512)
    say("counts", hash_of(out))
    say("as PyTorch", torch.equal(out.long(), torch.bincount(x, minlength=64)))


@triton.jit
def scan_kernel(out, x, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out + places, tl.cumsum(tl.load(x + places), axis=0))


@lines.case
def scans_and_launches(say):
    x = integers(1024, dtype=torch.int32)
    out = torch.empty_like(x)
    for _ in range(500):
        scan_kernel[(1,)](out, x, BLOCK=1024)
        x = x + 1
    torch.cuda.synchronize()
    say("last", hash_of(out))
    kernel = scan_kernel.warmup(torch.int32, torch.int32, BLOCK=256, grid=(1,))
    kernel._init_handles()
    say("shared bytes", kernel.metadata.shared)
    say("no registers spilled", kernel.n_spills == 0)


@lines.case
def do_bench(say):
    from triton.testing import do_bench as bench
    say("takes time", bench(lambda: torch.zeros(1 << 16, device=DEVICE) + 1, warmup=5, rep=20) > 0)


if __name__ == "__main__":
    prepare()
    lines.run()
