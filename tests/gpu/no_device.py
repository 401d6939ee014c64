#!/usr/bin/env python3
"""Checks the messages of programs that get no device: one line of rcuda with the reason, then the framework's error.

    no_device.py --build FOLDER [--programs torch,jax,cupy,plain] [--causes NAME,...]

Runs each program whose module is installed, with each cause, in its own process. The causes here need no server;
tests/e2e/no_device_test.py adds causes that need one. Prints a line per run, and exits with 1 if a run was wrong.
"""

import argparse
import os
import resource
import socket
import subprocess
import sys

# Each program fails because there is no device. FIRST: calls that a framework may make before it fails.
PROGRAMS = {
    "plain": """
import ctypes
def use():
    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
    results = cuda.cuInit(0), cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count))
    raise SystemExit(f"no device: {results}, {count.value}")
""",
    "torch": """
import torch
def use():
    torch.cuda.is_available()
    torch.zeros(1, device="cuda")
""",
    "jax": """
import os
os.environ["JAX_PLATFORMS"] = "cuda"
import jax
def use():
    jax.devices("cuda")
""",
    "cupy": """
import cupy
def use():
    cupy.zeros(1)
""",
}
FIRST = {
    "nothing": "",
    "again": """
try:
    use()
except BaseException:
    pass
""",
    "fork": """
import os
child = os.fork()
if child == 0:
    try:
        use()
    except BaseException:
        pass
    os._exit(0)
os.waitpid(child, 0)
""",
    "nvml": """
import ctypes
nvml, count, gpu = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint(), ctypes.c_void_p()
name = (ctypes.c_char * 96)()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
if nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) == 0:
    nvml.nvmlDeviceGetName(gpu, name, 96)
""",
}


def unused_port():
    """A port of this machine at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Cause:
    """A reason for having no device. The line of rcuda must contain all `words`."""

    def __init__(self, *words, devices="127.0.0.1@{port}:0", limits=(), **variables):
        self.words, self.devices, self.limits, self.variables = words, devices, limits, variables

    def environment(self, build):
        variables = dict(os.environ, RCUDA_LOG="", RCUDA_TRANSPORT="auto",
                         LD_PRELOAD=" ".join(filter(None, (PRELOAD, os.path.join(build, "lib/librcuda.so")))),
                         LD_LIBRARY_PATH=os.path.join(build, "lib/rcuda"), PYTORCH_NVML_BASED_CUDA_CHECK="1")
        for name in ("RCUDA_DEVICES", "RCUDA_LOG", "CUDA_VISIBLE_DEVICES"):
            variables.pop(name, None)
        if self.devices is not None:
            variables["RCUDA_DEVICES"] = self.devices.format(port=unused_port())
        variables.update(self.variables)
        return variables

    def limit(self):
        for which, value in self.limits:
            resource.setrlimit(which, (value, value))


CAUSES = {
    "no list": Cause("RCUDA_DEVICES is not set", "RCUDA_DEVICES=node1:0", devices=None),
    "a malformed list": Cause("RCUDA_DEVICES", "host[@port]:gpu", devices="node1"),
    "a GPU twice": Cause("RCUDA_DEVICES", "named twice", devices="node1:0,node1:0"),
    "an unknown host": Cause("no-such-host.invalid", "check its name", devices="no-such-host.invalid:0"),
    "nothing listens": Cause("127.0.0.1:", "start rcuda-server"),
    "nothing listens here": Cause("no rcuda-server listens on this machine", "start one", RCUDA_TRANSPORT="shm"),
    "nothing is visible": Cause('CUDA_VISIBLE_DEVICES="7"', "selects none", CUDA_VISIBLE_DEVICES="7"),
    "an unknown medium": Cause("RCUDA_TRANSPORT=pigeon", "it takes auto", RCUDA_TRANSPORT="pigeon"),
    "a malformed wait": Cause("RCUDA_WAIT=soon", "it takes a time such as", RCUDA_WAIT="soon"),
    "a malformed log": Cause("RCUDA_LOG=loud", "is not a level", RCUDA_LOG="loud"),
}
PRELOAD = ""  # a sanitizer's runtime


def run(build, program, first, cause, python=sys.executable, seconds=120):
    """Returns the problem (empty if there is none) and stderr."""
    code = PROGRAMS[program] + FIRST[first] + "use()\n"
    result = subprocess.run([python, "-c", code], env=cause.environment(build), preexec_fn=cause.limit,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds)
    lines = result.stderr.splitlines()
    ours = [number for number, line in enumerate(lines) if "rcuda[" in line]
    if result.returncode != 1:
        return f"exit status {result.returncode}", result.stderr
    if len(ours) != 1:
        return f"{len(ours)} lines of rcuda, not one", result.stderr
    missing = [word for word in cause.words if word not in lines[ours[0]]]
    if missing:
        return f"the line lacks {missing}", result.stderr
    if ours[0] == len(lines) - 1:
        return "no error of the framework follows the line of rcuda", result.stderr
    return "", result.stderr


def importable(program, python=sys.executable):
    return program == "plain" or subprocess.run([python, "-c", f"import {program}"], capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--causes", default=",".join(CAUSES))
    arguments = parser.parse_args()
    wrong = 0
    for program in arguments.programs.split(","):
        if not importable(program):
            print(f"{program}: not installed")
            continue
        for name in arguments.causes.split(","):
            for first in FIRST if name in ("no list", "nothing listens") else ("nothing",):
                problem, text = run(arguments.build, program, first, CAUSES[name])
                print(f"{program}, {name}, first {first}: {problem or 'as it should be'}", flush=True)
                if problem:
                    print(text)
                    wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
