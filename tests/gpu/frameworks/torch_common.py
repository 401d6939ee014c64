"""Settings of PyTorch with which each run gives the same result, bit for bit."""

import lines

torch = lines.need("torch")
DEVICE = lines.DEVICE


def prepare(deterministic=True):
    """Each PyTorch program calls this first."""
    if DEVICE == "cuda" and not torch.cuda.is_available():
        lines.missing("no GPU for PyTorch")
    torch.manual_seed(0)
    if not deterministic:
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def hash_of(*tensors):
    """The hash of tensors, including their shapes and types."""
    parts = []
    for tensor in tensors:
        tensor = tensor.detach()
        plain = torch.empty(tensor.numel(), dtype=tensor.dtype)
        plain.copy_(tensor.resolve_conj().reshape(-1))
        parts += [f"{tensor.dtype}{tuple(tensor.shape)}",
                  plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""]
    return lines.hash_of(*parts)


def integers(*shape, low=-2, high=3, dtype=torch.float32, seed=0):
    """Small whole numbers: the sums of their products are exact, in every order and with all tiles."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).to(dtype).to(DEVICE)


def model(width=64, classes=10):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(width, 128), torch.nn.GELU(), torch.nn.LayerNorm(128),
        torch.nn.Linear(128, classes)).to(DEVICE)
