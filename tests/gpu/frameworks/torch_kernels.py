"""Results of the libraries that PyTorch uses: cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE, attention kernels."""

import warnings

import lines
from torch_common import DEVICE, hash_of, integers, prepare, torch


def attention(say, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    kind = getattr(SDPBackend, backend)
    for causal in (False, True):
        torch.manual_seed(3)
        q, k, v = (torch.randn(2, 4, 128, 64, device=DEVICE, dtype=torch.float16, requires_grad=True)
                   for _ in range(3))
        with sdpa_kernel([kind]):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        grads = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        say(f"causal {causal}", hash_of(out, *grads))


@lines.case
def sdpa_flash(say):
    attention(say, "FLASH_ATTENTION")


@lines.case
def sdpa_efficient(say):
    attention(say, "EFFICIENT_ATTENTION")


@lines.case
def sdpa_math(say):
    attention(say, "MATH")


@lines.case
def sdpa_cudnn(say):
    attention(say, "CUDNN_ATTENTION")


@lines.case
def fp8_matmul(say):
    if torch.cuda.get_device_capability() < (8, 9):
        raise lines.Skip("this GPU has no fp8")
    a = integers(128, 256).to(torch.float8_e4m3fn)
    b = integers(256, 64, seed=1).to(torch.float8_e4m3fn)
    one = torch.ones((), device=DEVICE)
    b_columns = b.t().contiguous().t()  # cuBLASLt requires a column-major second matrix
    out = torch._scaled_mm(a, b_columns, scale_a=one, scale_b=one * 0.5, out_dtype=torch.bfloat16)
    say("out", hash_of(out))
    say("exact", torch.equal(out.float(), ((a.float() @ b.float()) * 0.5).to(torch.bfloat16).float()))
    bias = integers(64, dtype=torch.bfloat16, seed=2)
    say("biased", hash_of(torch._scaled_mm(a, b_columns, scale_a=one, scale_b=one, bias=bias,
                                           out_dtype=torch.bfloat16)))
    rows, columns = torch.ones(128, 1, device=DEVICE), torch.ones(1, 64, device=DEVICE)
    say("by rows", hash_of(torch._scaled_mm(a, b_columns, scale_a=rows, scale_b=columns,
                                            out_dtype=torch.bfloat16)))


@lines.case
def matmul(say):
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64):
        for size in (64, 257, 1024):
            torch.manual_seed(size)
            a, b = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
            say(f"{dtype} {size}", hash_of(a @ b))
    torch.manual_seed(0)
    a, b = (torch.randn(16, 100, 72, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    say("batched", hash_of(torch.bmm(a, b.mT)))
    a, b = (torch.randn(512, 512, device=DEVICE) for _ in range(2))
    torch.backends.cuda.matmul.allow_tf32 = True
    say("tf32", hash_of(a @ b))
    torch.backends.cuda.matmul.allow_tf32 = False
    whole = torch.randint(-8, 8, (64, 64), dtype=torch.int8, device=DEVICE)
    say("int8", hash_of(torch._int_mm(whole, whole.t().contiguous().t())))


@lines.case
def linear_with_epilogue(say):
    torch.manual_seed(0)
    for dtype in (torch.float16, torch.bfloat16):
        layer = torch.nn.Linear(256, 512).to(DEVICE, dtype)
        x = torch.randn(64, 256, device=DEVICE, dtype=dtype)
        out = torch._addmm_activation(layer.bias, x, layer.weight.t(), use_gelu=True)
        say(str(dtype), hash_of(layer(x), out))


@lines.case
def convolution(say):
    for dtype in (torch.float32, torch.float16):
        for dims, layer in ((2, torch.nn.Conv2d(8, 16, 3, padding=1)),
                            (2, torch.nn.ConvTranspose2d(8, 16, 4, stride=2)),
                            (3, torch.nn.Conv3d(8, 16, 3, padding=1)), (1, torch.nn.Conv1d(8, 16, 5))):
            torch.manual_seed(dims)
            layer = layer.to(DEVICE, dtype)
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
            x = torch.randn(2, 8, *[12] * dims, device=DEVICE, dtype=dtype, requires_grad=True)
            out = layer(x)
            out.sum().backward()
            say(f"{type(layer).__name__} {dtype}", hash_of(out, x.grad, layer.weight.grad))
    x = torch.randn(2, 8, 16, 16, device=DEVICE).to(memory_format=torch.channels_last)
    layer = torch.nn.Conv2d(8, 16, 3).to(DEVICE).to(memory_format=torch.channels_last)
    with torch.no_grad():
        layer.weight.fill_(0.25)
        layer.bias.zero_()
    say("channels last", tuple(layer(x).shape))


@lines.case
def recurrent(say):
    for name in ("RNN", "LSTM", "GRU"):
        torch.manual_seed(4)
        layer = getattr(torch.nn, name)(16, 32, num_layers=2).to(DEVICE)
        x = torch.randn(10, 4, 16, device=DEVICE, requires_grad=True)
        out = layer(x)[0]
        out.sum().backward()
        say(name, hash_of(out, x.grad, layer.weight_hh_l0.grad))


@lines.case
def batch_norm_and_pools(say):
    torch.manual_seed(5)
    x = torch.randn(8, 16, 20, 20, device=DEVICE, requires_grad=True)
    layer = torch.nn.BatchNorm2d(16).to(DEVICE)
    out = torch.nn.functional.max_pool2d(layer(x), 2)
    out = torch.nn.functional.adaptive_avg_pool2d(out, 1)
    out.square().sum().backward()
    say("out", hash_of(out, layer.running_var))
    say("grad", hash_of(layer.weight.grad))


@lines.case
def fourier(say):
    torch.manual_seed(6)
    for shape in ((1024,), (100, 37), (16, 16, 16)):
        x = torch.randn(shape, device=DEVICE)
        say(str(shape), hash_of(torch.fft.fftn(x), torch.fft.rfftn(x)))
    say("double", hash_of(torch.fft.fft(torch.randn(500, device=DEVICE, dtype=torch.complex128))))


@lines.case
def linear_algebra(say):
    torch.manual_seed(7)
    a = torch.randn(3, 40, 40, device=DEVICE, dtype=torch.float64)
    spd = a @ a.mT + 40 * torch.eye(40, device=DEVICE, dtype=torch.float64)
    b = torch.randn(3, 40, 5, device=DEVICE, dtype=torch.float64)
    for name, function in {
            "cholesky": lambda: torch.linalg.cholesky(spd), "solve": lambda: torch.linalg.solve(a, b),
            "qr": lambda: torch.linalg.qr(a), "eigh": lambda: torch.linalg.eigh(spd)[0],
            "svd": lambda: torch.linalg.svdvals(a), "inv": lambda: torch.linalg.inv(spd),
            "lu": lambda: torch.linalg.lu_factor(a), "det": lambda: torch.linalg.det(a),
            "eig": lambda: torch.linalg.eigvals(a[0]).abs().sort()[0],
            "lstsq": lambda: torch.linalg.lstsq(a, b).solution,
            "large svd": lambda: torch.linalg.svdvals(torch.randn(200, 150, device=DEVICE))}.items():
        try:
            found = function()
            say(name, hash_of(*(found if isinstance(found, tuple) else (found,))))
        except Exception as error:
            say(name, f"raises {type(error).__name__}")


@lines.case
def sparse(say):
    warnings.simplefilter("ignore")
    dense = integers(60, 80) * (integers(60, 80, low=0, high=2, seed=1))
    other = integers(80, 20, seed=2)
    for name, matrix in (("coo", dense.to_sparse()), ("csr", dense.to_sparse_csr())):
        say(name, hash_of((matrix @ other)))
        say(name + " exact", torch.equal(matrix @ other, dense @ other))
    csr = dense.to_sparse_csr()
    say("csr csr", hash_of((csr @ csr.to_dense().t().to_sparse_csr()).to_dense()))


@lines.case
def sorting_and_scans(say):
    torch.manual_seed(8)
    x = torch.randn(100_003, device=DEVICE)
    say("sort", hash_of(*torch.sort(x, stable=True)))
    say("topk", hash_of(*torch.topk(x, 50)))
    say("unique", hash_of(*torch.unique(integers(5000, low=0, high=70), return_counts=True)))
    say("cumsum", hash_of(torch.cumsum(integers(70_000), 0)))
    say("nonzero", hash_of(torch.nonzero(x > 1)))
    say("histogram", hash_of(torch.histc(x, 64)))


@lines.case
def random_generators(say):
    torch.manual_seed(9)
    say("normal", hash_of(torch.randn(10_000, device=DEVICE)))
    say("integers", hash_of(torch.randint(0, 1000, (10_000,), device=DEVICE)))
    say("permutation", hash_of(torch.randperm(5000, device=DEVICE)))
    state = torch.cuda.get_rng_state()
    first = hash_of(torch.rand(100, device=DEVICE))
    torch.cuda.set_rng_state(state)
    say("restored", first == hash_of(torch.rand(100, device=DEVICE)))


if __name__ == "__main__":
    prepare()
    lines.run()
