"""Trains a small network with PyTorch on the GPU, and compares the losses with those of the same network on the CPU.

PyTorch's own kernels are machine code, which softgpu does not run. So all computation is compiled by torch.compile,
whose Triton kernels are PTX. Copies, fills, the caching allocator, streams and events are PyTorch's own."""

import numpy
import torch

import checks
from checks import equal, raises, section

SAMPLES, INPUTS, HIDDEN, STEPS, RATE = 64, 8, 16, 20, 0.05


def loss_of(inputs, targets, first, second):
    hidden = torch.tanh((inputs[:, :, None] * first[None]).sum(1))
    return (((hidden * second).sum(1) - targets) ** 2).mean()


def update(first, second, first_gradient, second_gradient):
    return first - RATE * first_gradient, second - RATE * second_gradient



def train(device, compiled):
    loss_function, update_function = (torch.compile(f, dynamic=False) if compiled else f for f in (loss_of, update))
    random = numpy.random.default_rng(5)
    inputs, targets = random.random((SAMPLES, INPUTS), numpy.float32), random.random(SAMPLES, numpy.float32)
    first, second = (random.random(shape, numpy.float32) - 0.5 for shape in ((INPUTS, HIDDEN), (HIDDEN,)))
    inputs, targets, first, second = (torch.from_numpy(array).to(device) for array in (inputs, targets, first, second))
    one, losses = torch.ones(()).to(device), []
    for _ in range(STEPS):
        weights = [weight.detach().requires_grad_() for weight in (first, second)]
        loss = loss_function(inputs, targets, *weights)
        loss.backward(one)
        with torch.no_grad():
            first, second = update_function(*weights, *(weight.grad for weight in weights))
        losses.append(loss.item())
    return losses


@section
def training():
    losses = numpy.array(train("cuda", compiled=True))
    expected = numpy.array(train("cpu", compiled=False))
    # torch.compile chooses the order of sums by the times that it measures.
    equal("as on the CPU", bool(numpy.allclose(losses, expected, 1e-4)), True)
    equal("falls", bool(losses[-1] < losses[0]), True)


@section
def streams():
    host = torch.arange(1 << 20, dtype=torch.int32).pin_memory()
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(one):
        first = host.to("cuda", non_blocking=True)
        event = one.record_event()
    with torch.cuda.stream(other):
        other.wait_event(event)
        second = torch.empty_like(first)
        second.copy_(first, non_blocking=True)
        back = torch.empty_like(host, pin_memory=True)
        back.copy_(second, non_blocking=True)
    other.synchronize()
    equal("copied", back.numpy(), host.numpy())
    first.zero_()
    equal("zeros", int(first.cpu().sum()), 0)


@section
def memory():
    kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    equal("allocated", torch.cuda.memory_allocated(), kept.numel())
    free, total = torch.cuda.mem_get_info()
    equal("free", 0 < free < total, True)
    raises("too much", torch.OutOfMemoryError, lambda: torch.empty(1 << 40, dtype=torch.uint8, device="cuda"))


checks.main()
