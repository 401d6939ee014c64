"""Sums and gathers of vLLM's communicator (vllm/distributed/device_communicators), also in a CUDA graph.

    vllm_sums.py FOLDER      an unpacked source package of vLLM

The communicator's files and the function that finds NCCL are vLLM's. The modules that they import for logs, settings and the
platform are replaced, because these need all of vLLM.
"""

import os
import sys
import types

import torch
import torch.distributed as dist

folder = os.path.join(sys.argv[1], "vllm")


class Settings(types.ModuleType):
    """A stand-in for a module of vLLM. Names that module() was not given are None, as settings without a value are."""

    VLLM_NCCL_SO_PATH = os.environ.get("VLLM_NCCL_SO_PATH")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Log:
    """A stand-in for a logger: writes nothing."""

    def __getattr__(self, name):
        return lambda *arguments, **more: None


def module(name, path=None, **contents):
    made = Settings(name)
    made.__dict__.update(contents)
    if path:
        made.__path__ = [path]
    sys.modules[name] = made
    return made


module("vllm", folder)
module("vllm.envs")
sys.modules["vllm"].envs = sys.modules["vllm.envs"]
module("vllm.logger", init_logger=lambda name: Log())
module("vllm.platforms", current_platform=types.SimpleNamespace(
    is_rocm=lambda: False, is_cuda=lambda: True, fp8_dtype=lambda: torch.float8_e4m3fn))
module("vllm.distributed", os.path.join(folder, "distributed"))
module("vllm.distributed.device_communicators", os.path.join(folder, "distributed/device_communicators"))
module("vllm.distributed.utils", StatelessProcessGroup=type("StatelessProcessGroup", (), {}))
module("vllm.utils", os.path.join(folder, "utils"))
module("vllm.utils.torch_utils", current_stream=torch.cuda.current_stream)

from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator  # noqa: E402
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary  # noqa: E402

NCCLLibrary()  # raises the error if NCCL cannot be loaded; the communicator would only be unavailable

rank, ranks = int(os.environ["RANK"]), int(os.environ["RANKS"])
dist.init_process_group("gloo", f"tcp://127.0.0.1:{os.environ['PORT']}", rank=rank, world_size=ranks)
device = torch.device(f"cuda:{rank}")
torch.cuda.set_device(device)
communicator = PyNcclCommunicator(dist.group.WORLD, device)
assert communicator.available, "vLLM found no NCCL"


def say(*words):
    sys.stdout.write(" ".join(["sum", str(rank), *map(str, words)]) + "\n")  # in one piece, because ranks share the output
    sys.stdout.flush()


for count in (1, 1000, 1 << 20):
    mine = torch.arange(count, dtype=torch.float32, device=device) % 100 + rank
    total = communicator.all_reduce(mine)
    assert torch.equal(total, 2 * (torch.arange(count, device=device) % 100) + 1.0), count
    of_all = torch.empty(2 * count, device=device)
    communicator.all_gather(of_all, mine)
    assert torch.equal(of_all[rank * count:(rank + 1) * count], mine), count
    say(count, total.sum(dtype=torch.float64).item(), of_all.sum(dtype=torch.float64).item())

# The same in a graph, as vLLM uses it.
static = torch.full((4096,), 1.0 + rank, device=device)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    communicator.all_reduce(static, stream=stream)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    result = communicator.all_reduce(static, stream=stream)
for value in range(3):
    static.fill_(value + rank)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, torch.full_like(result, 2 * value + 1)), value
    say("graph", value, result.sum().item())
dist.barrier()
