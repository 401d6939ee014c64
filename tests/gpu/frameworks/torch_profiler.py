"""torch.profiler: a profiled program has the same results. Other lines show what the profiler sees of the GPU."""

import json
import os

import lines
from torch_common import DEVICE, hash_of, model, prepare, torch


def steps(count):
    torch.manual_seed(1)
    network = model()
    outputs = []
    for _ in range(count):
        out = network(torch.randn(64, 64, device=DEVICE))
        out.sum().backward()
        outputs.append(out)
    return outputs


@lines.case
def profile(say):
    from torch.profiler import ProfilerActivity
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    plain = hash_of(*steps(3))
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as found:
        under = hash_of(*steps(3))
        torch.cuda.synchronize()
    say("computes the same", plain == under)
    say("result", under)
    names = {event.key for event in found.key_averages()}
    say("sees operators", "aten::linear" in names or "aten::addmm" in names)
    found.export_chrome_trace("trace.json")
    with open("trace.json") as file:
        events = json.load(file)["traceEvents"]
    os.unlink("trace.json")
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    say("runtime-events", "some" if launches else "none")
    say("device-events", "some" if kernels else "none")
    print(f"{len(kernels)} kernels, {len(launches)} calls of the runtime and the driver")


@lines.case
def schedule(say):
    seen = []
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
                                on_trace_ready=lambda profiler: seen.append(profiler.step_num)) as found:
        for _ in range(5):
            steps(1)
            found.step()
    say("ready at", seen)


@lines.case
def after_profiling(say):
    """After profiling, the process computes as before."""
    say("result", hash_of(*steps(2)))


@lines.case
def autograd_profiler(say):
    with torch.autograd.profiler.profile(use_device=DEVICE) as found:
        out = steps(2)
    say("result", hash_of(*out))
    say("has events", len(found.function_events) > 0)
    with torch.cuda.nvtx.range("a range"):
        say("in a range", hash_of(*steps(1)))


if __name__ == "__main__":
    prepare()
    lines.run()
