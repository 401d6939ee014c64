"""Shared by the programs of this folder: named cases, each of which writes `key: value` lines.

    program.py --lines FILE [--names FILE] [case ...]

Without names, all cases run. Each line is appended to FILE at once, so that the lines before a crash or
before the end of a time limit count:

    > case            the case begins
    case<TAB>key: value
    # text            not compared: the message of an error
    < case            the case is over
    ! key: value      about the whole process

Cases that have begun according to FILE do not run. So a program that died can be started again with the same
FILE, and continues after the case that ended it.

A line does not depend on where the GPU is: it has no time, no address and no process id. An exception of a
case becomes its line `error: type`. The `!` lines name the libcuda of the process and the GPUs of this machine
that it could have reached; the harness checks them.
"""

import argparse
import glob
import hashlib
import importlib
import importlib.util
import os
import re
import stat
import sys
import traceback

DEVICE = os.environ.get("FRAMEWORKS_DEVICE", "cuda")

_cases = {}
_file = None


class Skip(Exception):
    """The reason why a case cannot run here. It is a difference if the case runs in another mode."""


class Fatal(Exception):
    """The context is lost. The process must end; a new process continues with the next case."""


def case(function):
    """Makes the function a case. It gets say(key, value)."""
    _cases[function.__name__.replace("_", "-")] = function
    return function


def hash_of(*values):
    """The hash of bytes, strings and objects with tobytes(), including their shapes and types."""
    state = hashlib.sha256()
    for value in values:
        if hasattr(value, "tobytes"):
            state.update(f"{getattr(value, 'dtype', '')}{getattr(value, 'shape', '')}".encode())
            state.update(value.tobytes())
        else:
            state.update(value if isinstance(value, bytes) else str(value).encode())
    return state.hexdigest()[:16]


def need(module):
    """Returns the module. If it is not installed, writes `! missing` and ends the program."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing(f"no {module}", str(error))


def need_cuda_of_jax():
    """Ends the program unless JAX's CUDA back end, a separate package, is installed."""
    if os.environ.get("JAX_PLATFORMS", "cuda") != "cpu" and not any(
            importlib.util.find_spec("jax_plugins") and importlib.util.find_spec(f"jax_plugins.xla_cuda{of}")
            for of in (12, 13, 14)):
        missing("no CUDA plugin of jax")


def missing(reason, text=""):
    """Ends the program: nothing in it can run on this machine."""
    lines = _arguments().lines
    with open(lines, "a") as file:
        file.write(f"! missing: {reason}\n# {text}\n")
    sys.stdout.flush()
    os._exit(0)


def _write(text):
    _file.write(text + "\n")


def process_line(key, value):
    _write(f"! {key}: {value}")


def _one_line(value):
    return " ".join(str(value).replace("\0", " ").split())


# Names of libraries of the driver. Libraries of the toolkit have other names (libcudart, libnvJitLink ...).
DRIVER_LIBRARY = re.compile(r"^lib(rcuda|cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[\w-]+)\.so")


def drivers_loaded():
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return sorted(path for path in paths if DRIVER_LIBRARY.match(os.path.basename(path)))


def reachable_devices():
    reached = []
    for node in sorted(glob.glob("/dev/nvidia*")):
        if not stat.S_ISCHR(os.stat(node).st_mode):
            continue  # a folder, or the empty file of hide_gpu.py --stand-in
        try:
            os.close(os.open(node, os.O_RDWR | os.O_NONBLOCK))
            reached.append(node)
        except OSError:
            pass
    return reached


def _run_case(name, function):
    def say(key, value):
        _write(f"{name}\t{_one_line(key)}: {_one_line(value)}")

    _write(f"> {name}")
    lost = False
    try:
        function(say)
    except Skip as reason:
        say("skipped", reason)
    except Fatal as error:
        say("error", _one_line(error))
        lost = True
    except Exception as error:
        traceback.print_exc()
        say("error", type(error).__name__)
        _write(f"# {_one_line(error)[:400]}")
        # After an illegal address or a lost worker, every later call of the context fails in the same way.
        lost = "CUDA" in str(error) and any(word in str(error) for word in (
            "illegal", "launch failure", "device-side assert", "misaligned", "unspecified launch",
            "Illegal", "ILLEGAL", "LAUNCH_FAILED", "ASSERT"))
    _write(f"< {name}")
    return lost


def _arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", default="/dev/stdout")
    parser.add_argument("--names")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("cases", nargs="*")
    return parser.parse_args()


def run(cases=None):
    """Runs the requested cases of `cases` (name: function), or by default of the functions with @case."""
    global _file
    arguments = _arguments()
    wanted = list(arguments.cases)
    if arguments.names:
        with open(arguments.names) as file:
            wanted += file.read().split()
    begun = set()
    if os.path.isfile(arguments.lines):
        with open(arguments.lines) as file:
            begun = {line[2:].strip() for line in file if line.startswith("> ")}
    _file = open(arguments.lines, "a", buffering=1)
    cases = dict(_cases) if cases is None else cases
    for name, function in cases.items():
        if name in begun or (wanted and name not in wanted):
            continue
        if _run_case(name, function):
            process_line("context", "lost")
            _end(75)
    process_line("finished", "yes")
    _end(0)


def _end(status):
    process_line("driver", " ".join(drivers_loaded()) or "none")
    process_line("devices", " ".join(reachable_devices()) or "none")
    _file.close()
    sys.stdout.flush()
    sys.stderr.flush()
    if status:
        os._exit(status)
