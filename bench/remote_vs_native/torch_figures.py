"""Figures of a PyTorch process: single calls, whole programs, and the CPU time of threads.

Prints "name value" lines: microseconds of a call, milliseconds of a step and of what it copies to the device, GB/s of a
copy. "python_us" is a loop of Python alone, without CUDA, which shows the current speed of the machine. A line
"bytes:PROGRAM" has the number of bytes that a step copies. A line "cpu:PROGRAM:SIDE:THREAD" has the milliseconds of CPU
that all threads of this name used for a step (of small_training: for 20 steps), on the client's side (this process) or
the server's (workers on this machine). Python's own thread and those of autograd are "python3" or "pt_autograd_*";
"cuda-EvtHandlr" is the driver's.
"""

import collections
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../network"))
import torch_applications  # noqa: E402

TICK = 1.0 / os.sysconf("SC_CLK_TCK")


def timed(call, count, before=lambda: None):
    """Median microseconds of `call`, of five series with `count` calls each."""
    series = []
    for _ in range(6):
        before()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        series.append((time.perf_counter() - begin) / count * 1e6)
    return statistics.median(series[1:])


def python_loop():
    kept = {}
    for i in range(4000):
        kept[i % 97] = str(i)


def calls():
    a = torch.ones(256, device="cuda")
    sync = torch.cuda.synchronize
    print("op_us", timed(lambda: a.add_(1), 500, sync))

    def op_and_wait():
        a.add_(1)
        sync()

    print("op_sync_us", timed(op_and_wait, 300))
    value = a[0]
    print("item_us", timed(value.item, 300))
    for kilobytes in (4, 16, 64, 1024):
        host = torch.ones(kilobytes << 8)
        pinned = host.pin_memory()
        device = torch.empty_like(host, device="cuda")

        def pinned_in():
            device.copy_(pinned, non_blocking=True)
            sync()

        def pinned_out():
            pinned.copy_(device, non_blocking=True)
            sync()

        for name, call in (("pageable_h2d", lambda: device.copy_(host)), ("pageable_d2h", lambda: host.copy_(device)),
                           ("pinned_h2d", pinned_in), ("pinned_d2h", pinned_out)):
            print(f"{name}_{kilobytes}k_gbps", kilobytes * 1024 / timed(call, 100) / 1e3)


def copy_ms(count):
    """Milliseconds of an asynchronous copy of `count` bytes to the device, and a wait."""
    host, device = torch.empty(count, dtype=torch.uint8).pin_memory(), torch.empty(count, dtype=torch.uint8, device="cuda")

    def copy():
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()

    return timed(copy, 20) / 1e3


def thread_seconds(process):
    """{name: seconds of CPU} of the threads of /proc/`process`."""
    seconds = collections.Counter()
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/stat") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
            fields = rest.split()
            seconds[name] += (int(fields[11]) + int(fields[12])) * TICK
    except OSError:
        pass  # the process has ended
    return seconds


def is_server(process):
    try:
        return os.path.basename(os.readlink(f"/proc/{process}/exe")) == "rcuda-server"
    except OSError:
        return False


def cpu():
    """{(side, thread): seconds of CPU so far}."""
    used = collections.Counter()
    for process in filter(str.isdigit, os.listdir("/proc")):
        side = "client" if int(process) == os.getpid() else "server" if is_server(process) else None
        for name, seconds in thread_seconds(process).items() if side else ():
            used[side, name] += seconds
    return used


def programs(names):
    for name in names:
        figure = torch_applications.PROGRAMS[name]
        counted = {}

        def around(step, warm_up, count):
            for _ in range(warm_up):
                step()
            before = cpu()
            result = torch_applications.milliseconds(step, 0, count)
            counted.update({key: (seconds - before[key]) / count * 1e3 for key, seconds in cpu().items()})
            return result

        print(f"{name}_ms", figure(measure=around))
        if name in torch_applications.COPIED:
            print(f"{name}_copy_ms", copy_ms(torch_applications.COPIED[name]))
            print(f"bytes:{name}", torch_applications.COPIED[name])
        for (side, thread), value in sorted(counted.items(), key=lambda item: -item[1]):
            if value >= 0.1:
                print(f"cpu:{name}:{side}:{thread.replace(' ', '_')}", value)


if __name__ == "__main__":
    print("python_us", timed(python_loop, 20))
    for part in sys.argv[1:] or ("calls", *torch_applications.PROGRAMS):
        calls() if part == "calls" else programs([part])
        sys.stdout.flush()
