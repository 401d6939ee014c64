"""CUDA graphs of PyTorch: captured inference and training, graphed callables, pools, random numbers."""

import lines
from torch_common import DEVICE, hash_of, integers, model, prepare, torch


def warmed_up(function, times=3):
    """Calls the function in a side stream, which is required before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(side)


@lines.case
def replay(say):
    a, b = integers(128, 128), integers(128, 128, seed=1)
    warmed_up(lambda: torch.relu(a @ b).sum(0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.relu(a @ b).sum(0)
    for step in range(3):
        a.copy_(integers(128, 128, seed=10 + step))
        graph.replay()
        say(f"replay {step}", hash_of(out))
        say(f"as without a graph {step}", torch.equal(out, torch.relu(a @ b).sum(0)))
    graph.reset()


@lines.case
def capture_state(say):
    say("before", torch.cuda.is_current_stream_capturing())
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(8, device=DEVICE)
    with torch.cuda.graph(graph):
        say("within", torch.cuda.is_current_stream_capturing())
        x += 1
    say("after", torch.cuda.is_current_stream_capturing())
    graph.replay()
    graph.replay()
    say("sum", x.sum().item())


@lines.case
def side_streams(say):
    x, y = integers(256, 256), integers(256, 256, seed=1)
    side = torch.cuda.Stream()
    warmed_up(lambda: x @ y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            left = x @ y
        right = y @ x
        torch.cuda.current_stream().wait_stream(side)
        out = left + right
    graph.replay()
    say("out", hash_of(out))


@lines.case
def shared_pool(say):
    x = integers(64, 64)
    warmed_up(lambda: x * 2)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        y = x * 2 + 1
    with torch.cuda.graph(second, pool=first.pool()):
        z = y @ x
    first.replay()
    second.replay()
    say("z", hash_of(z))


@lines.case
def random_numbers(say):
    torch.cuda.manual_seed(7)
    x = torch.ones(4096, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    warmed_up(lambda: torch.nn.functional.dropout(x, 0.5))
    with torch.cuda.graph(graph):
        out = torch.nn.functional.dropout(x, 0.5)
    torch.cuda.manual_seed(7)
    hashes = []
    for _ in range(3):
        graph.replay()
        hashes.append(hash_of(out))
    say("replays", " ".join(hashes))
    say("all different", len(set(hashes)) == 3)


@lines.case
def graphed_callables(say):
    network = model()
    sample = torch.randn(32, 64, device=DEVICE)
    graphed = torch.cuda.make_graphed_callables(network, (sample,))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    torch.manual_seed(2)
    losses = []
    for _ in range(10):
        x = torch.randn(32, 64, device=DEVICE)
        loss = torch.nn.functional.cross_entropy(graphed(x), torch.arange(32, device=DEVICE) % 10)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    say("losses", hash_of(torch.stack(losses)))
    say("last", f"{losses[-1].item():.6f}")


@lines.case
def whole_training_step(say):
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, capturable=True)
    x, labels = torch.randn(32, 64, device=DEVICE), torch.arange(32, device=DEVICE) % 10

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(network(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    warmed_up(step)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(20):
        graph.replay()
        losses.append(loss.clone())
    say("losses", hash_of(torch.stack(losses)))
    say("last", f"{losses[-1].item():.6f}")


@lines.case
def forbidden_while_capturing(say):
    x = torch.ones(8, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            x.sum().item()
    except Exception as error:
        say("raises", type(error).__name__)
    try:
        torch.cuda.synchronize()
        say("afterwards", (x * 3).sum().item())
    except Exception as error:
        say("afterwards raises", type(error).__name__)


@lines.case
def debug_dump(say):
    """A graph that PyTorch keeps: its nodes, and its instantiation by hand."""
    x = torch.ones(16, device=DEVICE)
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        raise lines.Skip("this PyTorch keeps no graphs")
    with torch.cuda.graph(graph):
        y = x * 2 + 1
    graph.instantiate()
    graph.replay()
    say("sum", y.sum().item())
    say("has a graph", graph.raw_cuda_graph() != 0)


if __name__ == "__main__":
    prepare()
    lines.run()
