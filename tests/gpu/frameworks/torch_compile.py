"""torch.compile in every mode: with CUDA graphs, with autotuned kernels, with shapes that change.

Autotuning chooses kernels by their time. All numbers are small and whole, so with every kernel their products
and sums are exact.
"""

import lines
from torch_common import DEVICE, hash_of, integers, prepare, torch


class Exact(torch.nn.Module):
    """Two matrix products with pointwise work and a reduction around them, all in whole numbers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(integers(64, 128, seed=1))
        self.second = torch.nn.Parameter(integers(128, 32, low=-1, high=2, seed=2))

    def forward(self, x):
        y = torch.relu(x @ self.first).clamp(max=8)
        y = y - y.amax(dim=-1, keepdim=True) + 3
        return (y @ self.second).abs() + x.sum(dim=-1, keepdim=True)


def check(say, mode=None, **options):
    torch._dynamo.reset()
    network = Exact().to(DEVICE)
    compiled = torch.compile(network, mode=mode, **options)
    for step in range(3):
        x = integers(64, 64, seed=10 + step).requires_grad_()
        expected = network(x)
        expected.sum().backward()
        wanted = [expected.detach().clone(), x.grad.clone(), network.first.grad.clone()]
        x.grad, network.first.grad, network.second.grad = None, None, None
        if hasattr(torch.compiler, "cudagraph_mark_step_begin"):
            torch.compiler.cudagraph_mark_step_begin()
        found = compiled(x)
        found.sum().backward()
        got = [found.detach().clone(), x.grad.clone(), network.first.grad.clone()]
        x.grad, network.first.grad, network.second.grad = None, None, None
        say(f"step {step}", hash_of(*got))
        say(f"step {step} as eager", all(torch.equal(a, b) for a, b in zip(wanted, got)))
    with torch.no_grad():
        x = integers(64, 64, seed=99)
        for step in range(3):
            if hasattr(torch.compiler, "cudagraph_mark_step_begin"):
                torch.compiler.cudagraph_mark_step_begin()
            say(f"inference {step}", hash_of(compiled(x)))


@lines.case
def default(say):
    check(say)


@lines.case
def reduce_overhead(say):
    check(say, mode="reduce-overhead")


@lines.case
def max_autotune(say):
    check(say, mode="max-autotune")


@lines.case
def max_autotune_no_cudagraphs(say):
    check(say, mode="max-autotune-no-cudagraphs")


@lines.case
def dynamic_shapes(say):
    torch._dynamo.reset()

    @torch.compile(dynamic=True)
    def function(x):
        return (x @ x.T).relu().sum(dim=0) + x.shape[0]

    for rows in (8, 24, 40):
        x = integers(rows, 16, seed=rows)
        found = function(x)
        say(f"{rows} rows", hash_of(found))


@lines.case
def compiled_training(say):
    """Compares three digits: inductor chooses reductions by their time, so the last digits vary natively."""
    torch._dynamo.reset()
    from torch_common import model
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    labels = torch.arange(32, device=DEVICE) % 10

    @torch.compile
    def step(x):
        loss = torch.nn.functional.cross_entropy(network(x), labels)
        return loss

    torch.manual_seed(3)
    losses = []
    for _ in range(20):
        loss = step(torch.randn(32, 64, device=DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    say("losses", " ".join(f"{loss:.3g}" for loss in losses))


@lines.case
def flex_attention(say):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention as attend
    torch._dynamo.reset()
    torch.manual_seed(5)
    q, k, v = (torch.randn(2, 4, 256, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(3))

    def causal(batch, head, query, key):
        return query >= key

    mask = create_block_mask(causal, None, None, 256, 256, device=DEVICE)
    out = torch.compile(attend)(q, k, v, block_mask=mask)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    say("out", hash_of(out))
    say("as SDPA", torch.allclose(out.float(), wanted.float(), atol=3e-2, rtol=3e-2))


if __name__ == "__main__":
    prepare(deterministic=False)  # deterministic algorithms would prevent autotuning
    lines.run()
