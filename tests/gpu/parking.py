#!/usr/bin/env python3
"""Parks and wakes sessions on a GPU, and compares the time with copies to page-locked memory.

    parking.py --build FOLDER [--driver nvidia] [--sizes 1,20,60] [--transports shm,tcp] [--steps 100]
               [--ways driver,worker] [--packaged UID] [--move] [--torch] [--log]

For each size in GiB, over shm and TCP, prints the time of `rcuda-smi park` and of the program's first call after it, cold (the
first time) and warm (the second time), the GPU memory in use before, during and after the park, and whether the contents are
right. --packaged, as root, parks as with the packages: the server has the capabilities of its unit, and user UID runs the
programs. So their workers are not dumpable, and have a filter of system calls and a /dev of their own.

The way `worker` is a server that has `movable_memory`, whose workers move the memory themselves. With both ways, the times of
cuMemAlloc and cuMemFree of the two servers are compared. With --move, which needs two GPUs of one kind, each park by the driver
moves the session to the other GPU; the table shows the memory of both. With --torch, the memory is that of an inference server
in PyTorch with CUDA graphs (torch_server.py), and the first call is a whole request. If PyTorch is installed, a training loop
that is parked ten times must have the losses of an undisturbed loop; the script prints the time of the first .item() after each
park. Prints tables, and exits with 1 if anything is wrong. `--driver softgpu --sizes 0.1` tries the script without a GPU. (The
programs are `parking.py hold BYTES`, `parking.py allocate BYTES`, `parking.py pinned BYTES` and `parking.py train STEPS`.)
"""

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
GIB = 1 << 30
PARKS = 10


def check(result):
    if result != 0:
        raise RuntimeError(f"CUDA error {result}")


def driver_with_context():
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    return cuda


def hold(size):
    """Holds `size` bytes in pieces, whose words have the number of their piece. For each line of stdin, checks the ends of all
    pieces."""
    cuda, piece, pieces = driver_with_context(), 64 << 20, []
    for number in range(max(1, size // piece)):
        pieces.append(ctypes.c_uint64())
        check(cuda.cuMemAlloc_v2(ctypes.byref(pieces[-1]), ctypes.c_size_t(piece)))
        check(cuda.cuMemsetD32_v2(pieces[-1], ctypes.c_uint(number), ctypes.c_size_t(piece // 4)))
    check(cuda.cuCtxSynchronize())
    print("ready", flush=True)
    for _ in sys.stdin:
        seconds, right, word, begin = None, True, ctypes.c_uint(), time.perf_counter()
        for number, address in enumerate(pieces):
            for place in (0, piece - 4):
                check(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), ctypes.c_uint64(address.value + place), ctypes.c_size_t(4)))
                seconds = seconds or time.perf_counter() - begin  # the time of the first copy
                right = right and word.value == number
        print(json.dumps({"first_call": seconds, "right": right}), flush=True)


def allocate(most):
    """Prints the microseconds of cuMemAlloc and cuMemFree together, for sizes up to `most` bytes."""
    cuda, memory, times = driver_with_context(), ctypes.c_uint64(), {}
    for size in (size << 20 for size in (1, 2, 20, 128, 1024, 8192) if size << 20 <= most):
        spent = []
        for _ in range(20):
            begin = time.perf_counter()
            check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
            check(cuda.cuMemFree_v2(memory))
            spent.append(time.perf_counter() - begin)
        times[size >> 20] = sorted(spent)[len(spent) // 2] * 1e6
    print(json.dumps(times), flush=True)


def pinned(size):
    """Prints GB/s of copies from the GPU to page-locked memory and back."""
    cuda, host, device = driver_with_context(), ctypes.c_void_p(), ctypes.c_uint64()
    size = min(size, 4 * GIB)
    check(cuda.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(size), 0))
    check(cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(size)))
    rates = []
    for copy in (lambda: cuda.cuMemcpyDtoH_v2(host, device, ctypes.c_size_t(size)),
                 lambda: cuda.cuMemcpyHtoD_v2(device, host, ctypes.c_size_t(size))):
        check(copy())
        begin = time.perf_counter()
        check(copy())
        rates.append(size / (time.perf_counter() - begin) / 1e9)
    print(json.dumps(rates))


def train(steps):
    """Trains a small network and prints the losses. After each tenth of the steps, waits for a line of stdin."""
    import torch
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, first = [], []
    for step in range(steps):
        if step % (steps // PARKS) == 0:
            torch.cuda.synchronize()
            print("wait", flush=True)
            sys.stdin.readline()
            begin = time.perf_counter()
            losses.append(model[0].weight.sum().item())
            first.append(time.perf_counter() - begin)
        loss = model(torch.randn(64, 256).cuda()).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(json.dumps({"losses": losses, "first_item": first}), flush=True)


# The capabilities of debian/rcuda-server.service.
PACKAGED = ("setpriv", "--bounding-set", "-all,+setuid,+setgid,+chown,+kill,+sys_admin", "--no-new-privs")


class Session:
    user = None  # the user who runs the programs; None: the user of this script
    holder = (os.path.abspath(__file__), "hold")  # the program of measure()

    def __init__(self, build, server, transport, *arguments):
        from servers import client_environment
        self.build, self.server = build, server
        other = {} if self.user is None else dict(user=self.user, group=self.user, extra_groups=[], cwd="/")
        self.process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, **other,
                                        env=client_environment(build, [server], transport, CUBLAS_WORKSPACE_CONFIG=":4096:8",
                                                               # PyTorch counts devices by the NVML of this machine.
                                                               CUDA_VISIBLE_DEVICES="0",
                                                               **({"HOME": "/"} if other else {})))

    def read(self):
        return self.process.stdout.readline().strip()

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def worker(self):
        return str(self.server.sessions(self.build)[self.process.pid])

    def park(self, to=None):
        """Parks the session. Returns the seconds, or the refusal as a text. `to`: the GPU on which the session shall wake."""
        command = ["park"] if to is None else ["move", "--to", str(to)]
        begin = time.perf_counter()
        done = subprocess.run([os.path.join(self.build, "bin/rcuda-smi"), *command, f"127.0.0.1:{self.server.port}", self.worker()],
                              capture_output=True, text=True)
        return time.perf_counter() - begin if done.returncode == 0 else done.stderr.strip()

    def look(self):
        shown = subprocess.run([os.path.join(self.build, "bin/rcuda-smi"), "--json", f"127.0.0.1:{self.server.port}"],
                               capture_output=True, text=True, check=True).stdout
        return json.loads(shown)[0]

    def used(self):
        """A text with the GiB in use on each GPU. Waits until NVML shows the latest values."""
        time.sleep(0.5)
        used = [device["used_bytes"] for device in self.look()["devices"]]
        return " and ".join("?" if each is None else f"{each / GIB:.2f}" for each in used)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(build, server, transport, gib, expected_way, moves):
    """Returns rows of the table, and whether all checks hold."""
    session, rows, right = Session(build, server, transport, *Session.holder, str(int(gib * GIB))), [], True
    session.read()
    for to, way in ((1, "cold"), (0, "warm")):
        before = session.used()
        parked = session.park(to if moves else None)
        if isinstance(parked, str):
            session.end()
            return rows + [f"| {expected_way} | {transport} | {gib:g} | {way} | {parked} | | | | |"], False
        while_parked, parked_by = session.used(), session.look()["sessions"][0]["park_way"]
        session.go_on()
        answer = json.loads(session.read())
        refused = session.look()["sessions"][0]["park_refused"]  # the reason if the driver has not moved the session
        right = right and answer["right"] and parked_by == expected_way and not refused
        rows.append(f"| {parked_by} | {transport} | {gib:g} | {way} | {parked:.2f} | {gib * GIB / 1e9 / parked:.2f} | "
                    f"{answer['first_call']:.2f} | {gib * GIB / 1e9 / answer['first_call']:.2f} | "
                    f"{before}, {while_parked}, {session.used()} | {'right' if answer['right'] else 'WRONG'} {refused} |")
    session.end()
    return rows, right


def trained(build, server, steps, parks):
    session, refusals = Session(build, server, "shm", os.path.abspath(__file__), "train", str(steps)), []
    for _ in range(PARKS):
        if session.read() != "wait":
            return None, ["the program failed"]
        parked = session.park() if parks else 0
        refusals += [parked] if isinstance(parked, str) else []
        session.go_on()
    found = json.loads(session.read())
    session.end()
    return found, refusals


def allocated(build, server, gib):
    session = Session(build, server, "shm", os.path.abspath(__file__), "allocate", str(int(gib * GIB)))
    times = json.loads(session.read())
    session.end()
    return times


def start(arguments, environment):
    from servers import Server
    if arguments.log:
        environment["RCUDA_LOG"] = "debug"
    if arguments.driver == "softgpu":
        environment["SOFTGPU_MEMORY"] = "16G"
        environment["SOFTGPU_DEVICES"] = "2"
    options, wrapper = ["--pool", "0"], ()
    if arguments.packaged is not None:
        options, wrapper = [*options, "--users", str(arguments.packaged)], PACKAGED
    return Server(arguments.build, arguments.driver, "" if arguments.move else "0", options=options, environment=environment, wrapper=wrapper)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--driver", default="nvidia")
    parser.add_argument("--sizes", default="1,20,60")
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--steps", type=int, default=100, help="steps of training; 0: no training")
    parser.add_argument("--ways", default="driver", help="driver, worker, or both")
    parser.add_argument("--packaged", type=int, metavar="UID", help="as packaged: programs of this user, over shm only; needs root")
    parser.add_argument("--move", action="store_true", help="each park moves the session between the GPUs 0 and 1")
    parser.add_argument("--log", action="store_true", help="print the servers' logs, with the steps of each park")
    parser.add_argument("--torch", action="store_true", help="PyTorch with CUDA graphs holds the memory")
    arguments = parser.parse_args()
    if arguments.torch:
        Session.holder = (os.path.join(HERE, "torch_server.py"),)
    transports, Session.user = arguments.transports.split(","), arguments.packaged
    if arguments.packaged is not None:
        transports = ["shm"]  # over TCP, the programs would need tokens
    build, sizes, failed = arguments.build, [float(size) for size in arguments.sizes.split(",")], False
    keep = str(int(max(sizes) * GIB * 1.1) + (64 << 20))
    settings = {"driver": {}, "worker": {"RCUDA_SERVER_MOVABLE_MEMORY": "true", "RCUDA_SERVER_PARK_MEMORY": keep}}
    servers = {way: start(arguments, settings[way]) for way in arguments.ways.split(",")}
    native = dict(os.environ)
    if arguments.driver == "softgpu":
        native["LD_LIBRARY_PATH"] = os.path.join(build, "softgpu/lib")
    rates = json.loads(subprocess.run([sys.executable, os.path.abspath(__file__), "pinned", str(int(max(sizes) * GIB))],
                                      env=native, capture_output=True, text=True, check=True).stdout)
    print(f"page-locked copies, natively: {rates[0]:.1f} GB/s to the host, {rates[1]:.1f} GB/s to the GPU\n")
    print("| way | medium | GiB | | parked in s | GB/s | first call after it, s | GB/s | GiB in use before, parked, after | contents |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for way, server in servers.items():
        for transport in transports:
            for gib in sizes:
                rows, right = measure(build, server, transport, gib, way, arguments.move and way == "driver")
                failed = failed or not right
                print("\n".join(rows), flush=True)
    if len(servers) == 2:
        times = {way: allocated(build, server, max(sizes)) for way, server in servers.items()}
        print("\n| cuMemAlloc and cuMemFree of MiB | us | us, movable | |\n|---|---|---|---|")
        for size, plain in times["driver"].items():
            print(f"| {size} | {plain:.0f} | {times['worker'][size]:.0f} | {times['worker'][size] / plain:.2f} |")
    server = list(servers.values())[-1]
    if arguments.steps and importlib.util.find_spec("torch") and arguments.driver == "nvidia":
        plain, _ = trained(build, server, arguments.steps, False)
        parked, refusals = trained(build, server, arguments.steps, True)
        equal = bool(plain and parked) and plain["losses"] == parked["losses"]
        failed = failed or not equal or bool(refusals)
        print(f"\ntraining, parked {PARKS} times: losses {'equal' if equal else 'DIFFER'}; refused: {refusals or 'never'}")
        if parked:
            print("first .item() after a park, s: " + ", ".join(f"{seconds:.2f}" for seconds in parked["first_item"]))
    for server in servers.values():
        outcome = server.stop()
        failed = failed or outcome != 0
        if failed or arguments.log:
            print(server.text(), file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    programs = {"hold": hold, "allocate": allocate, "pinned": pinned, "train": train}
    programs[sys.argv[1]](int(sys.argv[2])) if sys.argv[1] in programs else main()
