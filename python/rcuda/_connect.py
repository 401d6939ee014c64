"""rcuda.connect()."""

import ctypes
import json
import os
import re
import subprocess
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = os.path.join(FOLDER, "lib", "rcuda")
# In this order: libcuda.so needs libcuda.so.1.
NAMES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnccl.so.2")
# Modules that look for a CUDA driver when they are imported, or that look once and remember the result.
CUDA_MODULES = ("torch", "cupy", "jax", "jaxlib", "numba.cuda", "cuda.bindings", "pycuda", "tensorflow", "triton",
                "pynvml")

# The beginning of a line of the client's log, before its text.
LOG_LINE = re.compile(r"^\S+ rcuda\[\d+\] (?:warning|error): ")

_pool = None     # the pool that this process is connected to
_devices = None  # the names of the pool's GPUs


class Error(RuntimeError):
    """The message names the problem and the remedy."""


def connect(devices=None):
    """Gives this process the GPUs of `devices`: "host[@port]:gpu,...", by default RCUDA_DEVICES.

    Must be called before a CUDA library is imported. Queries the servers once and returns the names of the GPUs in
    the order of the list. Raises Error if a server cannot be reached. A session begins when the program first
    uses CUDA. Child processes have the same GPUs. A second call with the same list does nothing. The call takes
    as long as the servers need to answer, some milliseconds.
    """
    global _pool, _devices
    if devices is not None and not isinstance(devices, str):
        remedy = ': join them with ",".join(...)' if isinstance(devices, (list, tuple, set)) else ""
        raise TypeError('rcuda.connect() takes a text such as "node1:0,node2:0", not '
                        f"{type(devices).__name__}{remedy}")
    pool = devices or os.environ.get("RCUDA_DEVICES")
    if not pool:
        raise Error('no GPUs are named: write rcuda.connect("host:gpu,...") or set RCUDA_DEVICES')
    if _pool is not None:
        if pool != _pool:
            raise Error(f"this process is connected to {_pool}, and cannot change to {pool}: use another process")
        return list(_devices)
    is_loaded = _is_loaded_for(pool)
    names = _ask(pool)
    if not is_loaded:
        _load(pool)
    _pool, _devices = pool, names
    return list(names)


def _mapped_libraries():
    """The paths of the files named libcuda.so*, libnvidia-ml.so* or librcuda.so* that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if len(line.split(None, 5)) == 6}
    return sorted(path for path in paths
                  if os.path.basename(path).startswith(("libcuda.so", "libnvidia-ml.so", "librcuda.so")))


def _is_loaded_for(pool):
    """Whether rcuda-run has started this process with this pool. Raises Error if another CUDA library is loaded."""
    loaded = _mapped_libraries()
    own = os.path.realpath(LIBRARIES) + os.sep
    if any(os.path.basename(path).startswith("librcuda.so") or os.path.realpath(path).startswith(own)
           for path in loaded):
        if pool != os.environ.get("RCUDA_DEVICES"):
            raise Error(f"rcuda-run started this process with other GPUs than {pool}: start it without rcuda-run, or "
                        "call connect() without devices")
        return True
    if loaded:
        raise Error(f"this process has already loaded {loaded[0]}: call rcuda.connect() before any CUDA library is "
                    "imported, or start the program with rcuda-run")
    for name in CUDA_MODULES:
        if name in sys.modules:
            raise Error(f"{name} is already imported: call rcuda.connect() before the import, or start the program "
                        "with rcuda-run")
    return False


def _ask(pool):
    """The names of the GPUs. Another process queries them; its messages explain a failure."""
    environment = dict(os.environ, RCUDA_DEVICES=pool, RCUDA_LOG="warn")
    asked = subprocess.run([sys.executable, "-I", os.path.join(FOLDER, "_ask.py"), os.path.join(LIBRARIES, NAMES[2])],
                           env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if asked.returncode != 0:
        raise Error(f"no connection to {pool}: {_reason_of(asked.stderr)}")
    return json.loads(asked.stdout)


def _reason_of(text):
    """The lines of the client's log; without such lines, NVML's text for the error ("GPU is lost")."""
    lines = text.strip().splitlines()
    own = [LOG_LINE.sub("", line) for line in lines if LOG_LINE.match(line)]
    return "\n".join(own or lines)


def _load(pool):
    os.environ["RCUDA_DEVICES"] = pool
    # Child processes find the libraries by these variables.
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (LIBRARIES, os.environ.get("LD_LIBRARY_PATH"))))
    # PyTorch looks for NCCL in a folder of its own before it looks in LD_LIBRARY_PATH.
    os.environ["LD_PRELOAD"] = os.pathsep.join(filter(None, (os.environ.get("LD_PRELOAD"),
                                                             os.path.join(LIBRARIES, NAMES[3]))))
    # From now on, a library that opens one of these names gets rcuda's library.
    for name in NAMES:
        ctypes.CDLL(os.path.join(LIBRARIES, name), ctypes.RTLD_GLOBAL)
