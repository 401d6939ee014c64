#!/usr/bin/env python3
"""Checks includes: a folder includes only the folders below it, and there is no circle. Also checks that code which may be
part of a program reads the environment by secure_getenv(): the user who starts a set-uid program chooses its variables,
and they name files to write, libraries to load and servers to trust.

    tests/check_layers.py [ROOT]

A component is a header together with the source of the same name. Prints each line that breaks a rule, with its file
and number; then the exit status is 1.
"""

import pathlib
import re
import sys

# Folders from the ground up, and what each may include besides itself. A folder that is not listed belongs to its
# nearest parent that is.
COMMON = ("common/base", "common/cuda", "common/config", "common/identity", "common/image", "common/interop",
          "common/nccl", "common/nvml", "common/tls", "common/transport", "common/wire", "common/messages", "common/reach")
ENGINE = ("common/base", "common/cuda", "common/config", "common/identity", "common/tls", "common/transport",
          "common/wire")
# The server's folders below the worker, and those of the executor and of p2p, from the ground up.
EXECUTOR = ("server/executor/objects", "server/executor/answers", "server/executor/streams", "server/executor/movable",
            "server/executor/metering",
            "server/executor/images", "server/executor/host_memory", "server/executor/mirrors", "server/executor/graphs",
            "server/executor/peers", "server/executor/nccl", "server/executor/core", "server/executor/calls", "server/executor/handlers")
P2P = ("p2p/api", "p2p/plan", "p2p/staging", "p2p/link", "p2p/copy", "p2p/engine")
GROUND = ("server/names", "server/quota", "server/monitor", "server/addresses")
DAEMON = ("server/daemon/carried", "server/daemon/admission", "server/daemon/pool", "server/daemon/ops", "server/daemon/connection",
          "server/daemon")
WORKER = ("server/protocol", "server/sandbox", "server/driver", "server/worker")
# The client's folders from the ground up. Each may include those before it.
CLIENT = ("client/settings", "client/trace", "client/pool", "client/session", "client/objects", "client/mirror",
          "client/process", "client/route", "client/code", "client/forward", "client/hostmem", "client/copy", "client/entry",
          "client/nccl")
MAY_INCLUDE = {
    "common/base": (),
    "common/cuda": ("common/base",),
    "common/config": ("common/base",),
    "common/identity": ("common/base",),
    "common/image": ("common/base",),
    "common/interop": ("common/base",),
    "common/nccl": (),
    "common/nvml": ("common/base",),
    "common/tls": ("common/base", "common/identity"),
    "common/transport": ("common/base",),
    "common/wire": ("common/base", "common/transport"),
    "common/messages": ("common/base", "common/identity", "common/tls", "common/transport", "common/wire"),
    "common/reach": ("common/base", "common/config", "common/identity", "common/tls", "common/transport",
                     "common/wire", "common/messages"),
    "p2p": (),  # all of it is in the folders below
    **{folder: (*ENGINE, *P2P[:floor]) for floor, folder in enumerate(P2P)},
    "server": (),  # all of it is in the folders below
    "server/names": ("common/base", "common/wire", "common/messages", "common/reach"),
    "server/monitor": ("common/base", "common/nvml", "common/transport", "common/wire", "common/messages"),
    "server/quota": ("common/base", "common/config"),
    "server/addresses": ("common/base", "common/wire", "common/messages"),
    "server/executor": (),
    **{folder: ("api", *COMMON, *P2P, "server/names", "server/quota", *EXECUTOR[:floor])
       for floor, folder in enumerate(EXECUTOR)},
    "server/protocol": (*COMMON, "server/quota"),
    "server/identity": (*COMMON, "server/protocol"),
    "server/sandbox": ("common/base", "server/protocol"),
    "server/door": ("common/base", "common/tls", "common/messages", "server/sandbox"),
    "server/driver": ("api", *COMMON, "server/addresses", "server/executor/objects"),
    "server/worker": ("api", *COMMON, *P2P, *GROUND, *EXECUTOR, *WORKER[:-1]),
    **{folder: ("api", *COMMON, *P2P, *GROUND, "server/identity", "server/door", *WORKER, *DAEMON[:floor])
       for floor, folder in enumerate(DAEMON)},
    "client": (),  # all of it is in the folders below
    **{folder: ("api", "generated", *COMMON, *CLIENT[:floor]) for floor, folder in enumerate(CLIENT)},
    "client/nccl_stub": ("common/nccl",),
    "client/nvml": (*COMMON, "client/pool", "client/settings"),
    "integrations/slurm": ("common/base",),
    "softgpu": ("api", "common/base", "common/cuda", "common/image", "common/interop", "common/nvml"),
}
# In these folders, components must not form a circle either.
NO_CIRCLES = ("client", "p2p", "server")
IN_PROGRAMS = ("client", "common", "p2p")
GETENV = re.compile(r"(?<![a-z_])getenv\(")
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')


def folder_of(path):
    """The listed folder that a file belongs to; the topmost folder of its path if none is listed."""
    parts = path.split("/")
    for length in range(len(parts) - 1, 0, -1):
        if "/".join(parts[:length]) in MAY_INCLUDE:
            return "/".join(parts[:length])
    return parts[0]


def component_of(path):
    return path.rsplit(".", 1)[0]


def lines(root):
    """(file, number, line) of the project's sources."""
    for top in sorted({folder.split("/")[0] for folder in MAY_INCLUDE}):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in (".h", ".cpp"):
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                yield file.relative_to(root).as_posix(), number, line


def includes(sources):
    """(file, line, what it includes) of the project's own headers."""
    for file, number, line in sources:
        if found := INCLUDE.match(line):
            yield file, number, found[1]


def insecure(sources):
    for file, number, line in sources:
        if file.split("/")[0] in IN_PROGRAMS and GETENV.search(line):
            yield f"{file}:{number}: a set-uid program may run this: use secure_getenv()"


def upward(edges):
    for file, line, included in edges:
        folder, other = folder_of(file), folder_of(included)
        if folder != other and folder in MAY_INCLUDE and other not in MAY_INCLUDE[folder]:
            yield f"{file}:{line}: {folder} may not include {included}"


def circle_from(start, needs):
    """A shortest way from a component back to itself, as a list of components; empty if there is none."""
    ways, seen = [[start]], set()
    for way in ways:
        for component in sorted(needs.get(way[-1], {})):
            if component == start:
                return way + [start]
            if component not in seen:
                seen.add(component)
                ways.append(way + [component])
    return []


def is_checked(component):
    return component.split("/")[0] in NO_CIRCLES


def circles(edges):
    needs = {}
    for file, line, included in edges:
        a, b = component_of(file), component_of(included)
        if a != b and all(is_checked(name) for name in (a, b)):
            needs.setdefault(a, {}).setdefault(b, f"{file}:{line}")
    told = set()
    for start in sorted(needs):
        way = circle_from(start, needs)
        if way and not told & set(way):
            told |= set(way)
            steps = "".join(f"\n    {needs[a][b]}: {b}" for a, b in zip(way, way[1:]))
            yield f"{needs[way[0]][way[1]]}: a circle of includes:{steps}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1])
    sources = list(lines(root))
    edges = list(includes(sources))
    if not sources:
        sys.exit(f"no sources under {root}")
    wrong = [*upward(edges), *circles(edges), *insecure(sources)]
    for line in wrong:
        print(line)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
