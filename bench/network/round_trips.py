#!/usr/bin/env python3
"""Measures how many round trips each call of the driver API takes over TCP.

    round_trips.py --build FOLDER [--before FOLDER] [--driver softgpu] [--delay-ms 20] [--rounds 15]
    round_trips.py --build FOLDER [--driver softgpu] [--delay-ms 20] --program COMMAND...

Starts a server, and between it and the client a proxy that delivers everything --delay-ms later in each
direction. Each call then takes twice the delay for each of its round trips; all other time is small.
The table has the median time of each call and its round trips. --before names the build folder of another
commit, which is measured as well.
The calls are those of the driver API, made by this program through ctypes: it needs no CUDA toolkit. On softgpu the
server has two devices.

--program runs a whole program instead, with a trace. The table has, for each function of the driver that waited
for the worker: the number of calls, the number of waits, the round trips that the waits took, and the commands that
it sent. Waits and round trips are equal if each wait is one round trip; work of the GPU and of the worker adds to the
round trips. Round trips that the trace itself makes are left out.
"""

import argparse
import collections
import ctypes
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

from network import Network


class Driver:
    """The driver API of the preloaded client. Handles and addresses are 64-bit numbers."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        def call(*arguments):
            values = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
            result = getattr(self.library, name)(*values)
            if result:
                raise RuntimeError(f"{name}: error {result}")
        return call

    def make(self, name, *arguments):
        """Calls a function that writes a handle or an address through its first parameter. Returns this number."""
        made = ctypes.c_uint64()
        getattr(self, name)(ctypes.byref(made), *arguments)
        return made.value


def calls(driver):
    """Returns three things: {name: a function to time}; a function that queues work, to be called before each function to
    time; and a pair: memory that must stay alive, and a function that waits."""
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.make("cuDevicePrimaryCtxRetain", 0))
    stream, event = driver.make("cuStreamCreate", 1), driver.make("cuEventCreate", 2)
    most = 1 << 20
    device, pinned = driver.make("cuMemAlloc_v2", most), driver.make("cuMemHostAlloc", most, 0)
    block = ctypes.create_string_buffer(most)
    pageable = ctypes.addressof(block)

    def synchronize():
        driver.cuStreamSynchronize(stream)

    def copied(function, *arguments):
        def run():
            getattr(driver, function)(*arguments)
            if "Async" in function:
                synchronize()
        return run

    def wait_for_event():
        driver.cuEventRecord(event, stream)
        driver.cuEventSynchronize(event)

    timed = {"fill + synchronise": synchronize, "fill + event record + event synchronise": wait_for_event}
    for size, text in ((4, "4 B"), (64 << 10, "64 KB"), (256 << 10, "256 KB"), (most, "1 MB")):
        for memory, kind in ((pageable, "pageable"), (pinned, "pinned")):
            timed[f"{text} to {kind} memory, asynchronous + synchronise"] = copied(
                "cuMemcpyDtoHAsync_v2", memory, device, size, stream)
            timed[f"{text} to {kind} memory, blocking"] = copied("cuMemcpyDtoH_v2", memory, device, size)
            timed[f"{text} from {kind} memory, asynchronous + synchronise"] = copied(
                "cuMemcpyHtoDAsync_v2", device, memory, size, stream)
            timed[f"{text} from {kind} memory, blocking"] = copied("cuMemcpyHtoD_v2", device, memory, size)

    def allocate_and_free():
        driver.cuMemFree_v2(driver.make("cuMemAlloc_v2", 4096))

    # A variable that host and kernels share: waits show the host what kernels wrote to it.
    shared = ctypes.create_string_buffer(
        b".version 7.0\n.target sm_52\n.address_size 64\n.visible .global .attribute(.managed) .u32 shared;\n"
        b".visible .entry one() { ret; }\n")
    variable = ctypes.create_string_buffer(b"shared")
    found = ctypes.c_uint64()

    def beside_a_variable(run):
        def run_beside():
            if not found.value:  # in the first round, which is not counted
                module = driver.make("cuModuleLoadData", ctypes.addressof(shared))
                driver.cuModuleGetGlobal_v2(ctypes.byref(found), ctypes.c_void_p(), module, ctypes.addressof(variable))
            run()
        return run_beside

    timed["allocate + free"] = allocate_and_free

    def load_and_find(text, new=False):
        name = ctypes.create_string_buffer(b"one")
        numbers = itertools.count()
        number = random.randrange(1 << 60)  # the server may keep images of an earlier run

        def run():
            comment = f"// {number + next(numbers)}\n".encode() if new else b""
            image = ctypes.create_string_buffer(text + comment)
            module = driver.make("cuModuleLoadData", ctypes.addressof(image))
            driver.make("cuModuleGetFunction", module, ctypes.addressof(name))
            driver.cuModuleUnload(module)
        return run

    for names, text in ((["one"], "the only function"), (["one", "two"], "one of two functions")):
        entries = "".join(f".visible .entry {name}() {{ ret; }}\n" for name in names)
        image = f".version 7.0\n.target sm_52\n.address_size 64\n{entries}".encode()
        timed[f"load a module + find {text}"] = load_and_find(image)
        timed[f"load a module that the server lacks + find {text}"] = load_and_find(image, new=True)
    timed["fill + synchronise, with a managed variable"] = beside_a_variable(synchronize)
    timed["fill + event record + event synchronise, with a managed variable"] = beside_a_variable(wait_for_event)
    timed["4 B to pageable memory, blocking, with a managed variable"] = beside_a_variable(
        copied("cuMemcpyDtoH_v2", pageable, device, 4))
    timed["4 B to pageable memory, asynchronous + synchronise, with a managed variable"] = beside_a_variable(
        copied("cuMemcpyDtoHAsync_v2", pageable, device, 4, stream))
    timed.update(beside_managed(driver, stream, synchronize))
    return timed, lambda: driver.cuMemsetD32Async(device, 1, 16, stream), (block, synchronize)


def beside_managed(driver, stream, synchronize, count=8, size=1 << 20):
    """Waits of a program with several managed allocations. Each is so large that only its changed parts are sent."""
    memory = []
    values = itertools.count(1)

    def fill_some_of(filled):
        def run():
            if not memory:  # in the first round, which is not counted
                memory.extend(driver.make("cuMemAllocManaged", size, 1) for _ in range(count))
            for address in memory[:filled]:
                driver.cuMemsetD32Async(address + size // 2, next(values), 16, stream)
            synchronize()
        return run

    beside = f"with {count} managed allocations of {size >> 20} MB"
    return {f"fill + synchronise, {beside}": fill_some_of(0),
            f"fill + fill some of one + synchronise, {beside}": fill_some_of(1),
            f"fill + fill some of each + synchronise, {beside}": fill_some_of(count)}


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: `value` is an int."""
    _fields_ = [("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig"""
    _fields_ = [("sizes", ctypes.c_uint * 7), ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)),
                ("count", ctypes.c_uint)]


HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NOT_READY = 600


def steps(driver):
    """Parts of the steps of frameworks: several streams and devices, attributes, host functions, queries."""
    context = driver.make("cuDevicePrimaryCtxRetain", 0)
    devices = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(devices))
    if devices.value > 1:
        driver.cuCtxSetCurrent(driver.make("cuDevicePrimaryCtxRetain", 1))
        other_stream, other_event = driver.make("cuStreamCreate", 1), driver.make("cuEventCreate", 2)
        other_memory = driver.make("cuMemAlloc_v2", 4096)
    driver.cuCtxSetCurrent(context)
    first, second = (driver.make("cuStreamCreate", 1) for _ in range(2))
    event, memory = driver.make("cuEventCreate", 2), driver.make("cuMemAlloc_v2", 4096)
    image = ctypes.create_string_buffer(
        b".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry one() { ret; }\n")
    function = driver.make("cuModuleGetFunction", driver.make("cuModuleLoadData", ctypes.addressof(image)),
                           ctypes.create_string_buffer(b"one"))
    # The launch's priority, and programmatic serialization: it may begin before the previous launch has ended.
    attributes = (Attribute * 2)(Attribute(8, 0, 0), Attribute(6, 0, 1))
    config = LaunchConfig((ctypes.c_uint * 7)(1, 1, 1, 32, 1, 1, 0), first, attributes, 2)
    called = HOST_FUNCTION(lambda _: None)

    def fill(stream=first, at=memory):
        driver.cuMemsetD32Async(at, 1, 16, stream)

    def launch_with_attributes():
        driver.cuLaunchKernelEx(ctypes.byref(config), function, ctypes.c_void_p(), ctypes.c_void_p())
        driver.cuStreamSynchronize(first)

    def wait_in_another_stream():
        fill()
        driver.cuEventRecord(event, first)
        driver.cuStreamWaitEvent(second, event, 0)
        fill(second)
        driver.cuStreamSynchronize(second)

    def wait_on_another_device():
        fill()
        driver.cuEventRecord(event, first)
        driver.cuStreamWaitEvent(other_stream, event, 0)
        driver.cuMemcpyDtoDAsync_v2(other_memory, memory, 64, other_stream)
        driver.cuEventRecord(other_event, other_stream)
        driver.cuStreamWaitEvent(first, other_event, 0)
        driver.cuStreamSynchronize(first)

    def call_host():
        fill()
        driver.cuLaunchHostFunc(first, called, ctypes.c_void_p())
        driver.cuStreamSynchronize(first)

    def poll(function, what):
        def run():
            fill()
            if what == event:
                driver.cuEventRecord(event, first)
            while True:
                result = getattr(driver.library, function)(ctypes.c_uint64(what))
                if result != NOT_READY:
                    return
        return run

    def allocate_in_order():
        block = driver.make("cuMemAllocAsync", 4096, first)
        fill(first, block)
        driver.cuMemFreeAsync(block, first)
        driver.cuStreamSynchronize(first)

    timed = {"copy to another device after an event, back after an event + synchronise": wait_on_another_device}
    if devices.value < 2:
        timed.clear()
    return timed | {
            "launch with attributes + synchronise": launch_with_attributes,
            "record, wait in another stream, fill there + synchronise that": wait_in_another_stream,
            "fill, host function + synchronise": call_host,
            "fill + query the stream until it is done": poll("cuStreamQuery", first),
            "fill, record + query the event until it is done": poll("cuEventQuery", event),
            "stream-ordered allocation, fill, free + synchronise": allocate_in_order}


def client(rounds):
    driver = Driver()
    timed, queue_work, (_kept, synchronize) = calls(driver)
    timed = steps(driver) | timed  # calls() comes last: it makes managed memory, which each later wait fetches
    for what, run in timed.items():
        times = []
        for _ in range(rounds + 1):  # the first round also pays for initialization
            synchronize()
            queue_work()
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        print(f"{statistics.median(times[1:]) * 1e3:.2f}\t{what}")


def measure(build, arguments):
    """Returns {name of the call: milliseconds}."""
    # A machine may have only one NVIDIA GPU; softgpu always has two devices.
    both = arguments.driver == "softgpu"
    os.environ.setdefault("SOFTGPU_DEVICES", "2")
    network = Network(build, arguments.driver, devices=(0, 1) if both else (0,))
    try:
        result = subprocess.run(
            [sys.executable, __file__, "--build", build, "--client", "--rounds", str(arguments.rounds)],
            env=dict(network.environment(round(2000 * arguments.delay_ms)),
                     LD_LIBRARY_PATH=os.path.join(build, "lib/rcuda")),
            capture_output=True, text=True, timeout=600)
    finally:
        network.stop()
    if result.returncode:
        raise SystemExit(result.stderr)
    return {what: float(value) for value, what in
            (line.split("\t") for line in result.stdout.splitlines())}


def program(arguments):
    """Runs a program with a trace, and prints which calls waited."""
    round_trip_us = 2000 * arguments.delay_ms
    with tempfile.TemporaryDirectory() as folder:
        network = Network(arguments.build, arguments.driver)
        try:
            environment = dict(network.environment(round(round_trip_us)),
                               LD_PRELOAD=os.path.join(arguments.build, "lib/librcuda.so"),
                               RCUDA_TRACE=os.path.join(folder, "trace.json"))
            subprocess.run(arguments.program, env=environment, check=True, stdout=subprocess.DEVNULL)
        finally:
            network.stop()
        with open(os.path.join(folder, "trace.json")) as file:
            slices = [event for event in json.load(file) if event["ph"] == "X"]
    slices.sort(key=lambda event: event["ts"])
    calls, waits, waited = collections.Counter(), collections.Counter(), collections.Counter()
    sent = collections.defaultdict(collections.Counter)  # commands, by the function that sent them
    inside = {}  # by thread: the latest call of the driver
    for event in slices:
        thread = event["pid"], event["tid"]
        if event["cat"] == "api":
            inside[thread] = event
            calls[event["name"]] += 1
        elif event["cat"] in ("call", "post", "wait") and thread in inside and event["name"] != "call Ping":
            call = inside[thread]
            name = call["name"] if event["ts"] < call["ts"] + call["dur"] else "between calls"
            if event["cat"] != "wait":
                sent[name][event["name"].split()[-1]] += 1
            if event["cat"] == "post":
                continue
            # Replies to commands that were sent together arrive together, so only the first wait takes time.
            waits[name] += event["dur"] > round_trip_us / 2
            waited[name] += event["dur"] / round_trip_us
    print(f"| {'call':32} | calls | waits | round trips | commands")
    for name, count in waits.most_common():
        if count:
            commands = ", ".join(f"{times} {command}" for command, times in sent[name].most_common(5))
            print(f"| {name:32} | {calls[name]:5} | {count:5} | {waited[name]:11.1f} | {commands}")
    print(f"| {'all':32} | {sum(calls.values()):5} | {sum(waits.values()):5} | {sum(waited.values()):11.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--before")
    parser.add_argument("--driver", default="softgpu")
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--client", action="store_true", help="internal: times the calls, in the client's process")
    parser.add_argument("--program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.program:
        arguments.build = os.path.abspath(arguments.build)
        return program(arguments)
    if arguments.client:
        return client(arguments.rounds)
    columns = {"now": measure(arguments.build, arguments)}
    if arguments.before:
        columns["before"] = measure(arguments.before, arguments)
    print(f"| {'call':80} |" + "".join(f" {name:>8} ms | trips |" for name in columns))
    for what in columns["now"]:
        row = f"| {what:80} |"
        for figures in columns.values():
            row += f" {figures[what]:11.1f} | {figures[what] / (2 * arguments.delay_ms):5.1f} |"
        print(row)


if __name__ == "__main__":
    main()
