"""PyTorch's operator database: every operator, forward and backward, on its own sample inputs.

An entry is an operator, its variant and a type. Its line is a hash of all bits of the outputs and gradients
of all its samples. Algorithms are deterministic, and each sample has a seed. The types are float32, bfloat16,
int64 and complex64, as far as the operator supports them on a GPU; otherwise the first type that it supports.

Runs as shards: --shard 2/8 takes every eighth entry. If an operator raises an exception, its line has the exception.
"""

import hashlib
import os
import random
import warnings

import lines

torch = lines.need("torch")
numpy = lines.need("numpy")
lines.need("expecttest")  # the module with the database imports it

DEVICE = lines.DEVICE
TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex64]


def tensors_of(value):
    """All tensors of an output, also those inside tuples, dictionaries and layouts that consist of tensors."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return [part for inner in value.unbind() for part in tensors_of(inner)]
        if value.layout == torch.sparse_coo:
            value = value.coalesce()
            return [value.indices(), value.values()]
        if value.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [value.crow_indices(), value.col_indices(), value.values()]
        if value.layout in (torch.sparse_csc, torch.sparse_bsc):
            return [value.ccol_indices(), value.row_indices(), value.values()]
        return [value]
    if isinstance(value, dict):
        return [part for key in value for part in tensors_of(value[key])]
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in tensors_of(item)]
    return []


def add_to(state, value):
    """Adds the bytes of the value's tensors, and its numbers and texts, to the hash `state`."""
    for tensor in tensors_of(value):
        tensor = tensor.detach()
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.is_meta:
            continue
        # A copy, because a tensor of one element may have strides that numpy and view() refuse.
        plain = torch.empty(tensor.numel(), dtype=tensor.dtype)
        plain.copy_(tensor.resolve_conj().resolve_neg().reshape(-1))
        state.update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        state.update(repr(value).encode())


def seed(number):
    random.seed(number)
    numpy.random.seed(number % 2**32)
    torch.manual_seed(number)


def differentiable(value):
    return [tensor for tensor in tensors_of(value)
            if tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())]


def run_sample(op, sample, backward, state):
    inputs = [leaf for leaf in tensors_of([sample.input, list(sample.args), sample.kwargs])
              if leaf.requires_grad and leaf.is_leaf] if backward else []
    result = op(sample.input, *sample.args, **sample.kwargs)
    add_to(state, result)
    if not inputs:
        return
    outputs = differentiable(sample.output_process_fn_grad(result))
    if not outputs:
        return
    grads = torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs],
                                allow_unused=True)
    for grad in grads:
        add_to(state, b"none" if grad is None else grad)


def pick(samples, limit):
    """At most `limit` samples, chosen evenly from the first to the last."""
    if not limit or len(samples) <= limit:
        return samples
    return [samples[i * (len(samples) - 1) // (limit - 1)] for i in range(limit)]


def run_entry(op, dtype, limit, say):
    number = int(hashlib.sha256(f"{op.formatted_name} {dtype}".encode()).hexdigest()[:8], 16)
    backward = op.supports_autograd and dtype in op.supported_backward_dtypes(DEVICE)
    seed(number)
    samples = pick(list(op.sample_inputs(DEVICE, dtype, requires_grad=backward)), limit)
    state, raised = hashlib.sha256(), []
    for i, sample in enumerate(samples):
        seed(number + 1 + i)
        try:
            run_sample(op, sample, backward, state)
        except Exception as error:
            raised.append(type(error).__name__)
            note(error)
            state.update(raised[-1].encode())
    lost = sticky_error()
    say("hash", f"{state.hexdigest()[:16]} of {len(samples)}")
    if raised:
        say("raised", " ".join(raised))
    if lost:
        raise lines.Fatal(lost)


_notes = []


def note(error):
    _notes.append(f"{type(error).__name__}: {error}")
    print(_notes[-1][:300], flush=True)


def sticky_error():
    """The error if the context is lost, otherwise an empty text."""
    if DEVICE != "cuda":
        return ""
    try:
        torch.cuda.synchronize()
        return ""
    except Exception as error:
        note(error)
        return "context lost: " + type(error).__name__


def entries():
    """{name: (op, type)} of the whole database."""
    from torch.testing._internal.common_methods_invocations import op_db
    found = {}
    for op in op_db:
        supported = op.supported_dtypes(DEVICE)
        types = [dtype for dtype in TYPES if dtype in supported]
        if not types:
            types = sorted(supported, key=str)[:1]
        for dtype in types:
            name = f"{op.formatted_name}_{str(dtype).removeprefix('torch.')}"
            while name in found:  # two entries have one name
                name += "_again"
            found[name] = (op, dtype)
    return found


def main():
    warnings.simplefilter("ignore")
    options = lines._arguments()
    shard, shards = (int(number) for number in options.shard.split("/"))
    if DEVICE == "cuda" and not torch.cuda.is_available():
        lines.missing("no GPU for PyTorch")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "2"))))

    def of(op, dtype):
        return lambda say: run_entry(op, dtype, options.samples, say)

    database = list(entries().items())[shard::shards]
    lines.run({name: of(op, dtype) for name, (op, dtype) in database})


if __name__ == "__main__":
    main()
