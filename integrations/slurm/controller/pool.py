"""The pool of remote GPUs that Slurm allocates to jobs, and the choice of devices for a job. Pure functions.

The file (/etc/rcuda/slurm-pool) has one line for each type:

    # type  memory  servers and their devices
    l4      24G     node[01-16]:0-3
    h100    80G     gpu1:0-7 gpu2@9000:0-3,6
    part    20G     shares=4 gpu3:0-7

Slurm counts the devices of a type as the licence rcuda_TYPE. shares=4: up to four jobs at a time on each device.
"""

import re

LICENCE = "rcuda_"
DEFAULT_PORT = "@8308"
RANGE = re.compile(r"\[([0-9,-]+)\]")


class Type:
    def __init__(self, name, memory_mib, servers, shares=1):
        self.name, self.memory_mib, self.shares = name, memory_mib, shares
        self.servers = servers  # {server, as in RCUDA_DEVICES: its devices}

    def licences(self):
        return self.shares * sum(len(devices) for devices in self.servers.values())


def parse_memory(text):
    """Reads a size that is written as in rcuda's settings: 80G, 80GiB, 1.5T. Returns MiB."""
    found = re.fullmatch(r"(\d+(?:\.\d{1,9})?)([KMGT])(?:i?B)?", text, re.IGNORECASE)
    size = found and int(float(found[1]) * 1024 ** ("KMGT".index(found[2].upper()) - 1))
    if not size:
        raise ValueError(f"{text} is not a size: write the memory of a GPU with its unit (80G)")
    return size


def parse_numbers(text):
    """Returns the numbers of a list such as 0-3,6 as texts, with their leading zeros."""
    numbers = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not found or found[2] and int(found[2]) < int(found[1]):
            raise ValueError(f"{text} is not a list of numbers: write 0-3,6")
        numbers += [str(number).zfill(len(found[1])) for number in range(int(found[1]), int(found[2] or found[1]) + 1)]
    return numbers


def parse_devices(text):
    return [int(text)] if text.isdigit() else [int(number) for number in parse_numbers(text)]


def expand(host):
    """Returns the names of a host such as node[01-16]. Brackets with a colon are those of an IPv6 address, and stay. A server
    has one name, as in rcuda-smi: in small letters, and without the default port."""
    found = RANGE.search(host)
    if not found:
        return [host.lower().removesuffix(DEFAULT_PORT)]
    return [name for number in parse_numbers(found[1])
            for name in expand(host[:found.start()] + number + host[found.end():])]


def parse_line(words):
    if len(words) < 3:
        raise ValueError("write a type, the memory of a GPU, and servers with their devices (h100 80G gpu1:0-7)")
    name, memory, *rest = words
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"{name} is not the name of a type: use letters, digits, - and _")
    shares, servers = 1, {}
    for word in rest:
        if found := re.fullmatch(r"shares=([1-9]\d*)", word):
            shares = int(found[1])
            continue
        host, colon, devices = word.rpartition(":")
        if not colon or not host:
            raise ValueError(f"{word} is not a server with devices: write gpu1:0-7 or gpu1@9000:0-7")
        for server in expand(host):
            if server in servers:
                raise ValueError(f"{server} is named twice")
            servers[server] = parse_devices(devices)
    return Type(name, parse_memory(memory), servers, shares)


def parse_pool(text):
    """{name: Type}, in the order of the file."""
    pool, owner = {}, {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        try:
            one = parse_line(words)
            if one.name in pool:
                raise ValueError(f"type {one.name} is in the file twice")
            for server, devices in one.servers.items():
                for device in devices:
                    if (server, device) in owner:
                        raise ValueError(f"device {device} of {server} is in type {owner[server, device]} as well")
                    owner[server, device] = one.name
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        pool[one.name] = one
    return pool


def parse_licences(text):
    """{type: count} of SLURM_JOB_LICENSES, such as matlab:1,rcuda_h100:2."""
    wanted = {}
    for part in re.split("[,;]", text):
        name, _, count = part.partition(":")
        if name.startswith(LICENCE):
            wanted[name.removeprefix(LICENCE)] = int(count or 1)
    return wanted


def choose(one, count, used, avoided):
    """Returns devices for a job: {server: devices}. `used`: {(server, device): number of jobs that have it}. None if there
    are not enough. Of the servers with enough free devices, chooses the server with the fewest free devices, so that
    large jobs find whole servers. A job that is too large for any server gets as few servers as possible."""
    free = {}
    for server, devices in one.servers.items():
        if server in avoided:
            continue
        # Devices with the fewest jobs first.
        open_devices = sorted((used.get((server, device), 0), device) for device in devices
                              if used.get((server, device), 0) < one.shares)
        if open_devices:
            free[server] = [device for _, device in open_devices]
    if sum(map(len, free.values())) < count:
        return None
    enough = [server for server in free if len(free[server]) >= count]
    if enough:
        best = min(enough, key=lambda server: len(free[server]))
        return {best: sorted(free[best][:count])}
    chosen = {}
    for server in sorted(free, key=lambda server: -len(free[server])):
        if count:
            chosen[server] = sorted(free[server][:count])
            count -= len(chosen[server])
    return chosen


def usable(one, jobs, away):
    """Returns the number of licences of a type that jobs have or can get now. `jobs`: {name: entry}, as State has them.
    `away`: servers whose devices no job can get now; on these servers, only the devices that jobs have are counted.
    Devices whose release a server has not confirmed are not counted."""
    count = one.shares * sum(len(devices) for server, devices in one.servers.items() if server not in away)
    for name, entry in jobs.items():
        if entry.type != one.name:
            continue
        for server, devices in entry.devices.items():
            is_there = server in one.servers and server not in away
            if "/" in name and is_there:
                count -= len(devices)
            elif "/" not in name and not is_there:
                count += len(devices)
    return count


def list_text(devices):
    """The devices as text, such as 0-3,6."""
    parts = []
    for device in sorted(devices):
        if parts and device == parts[-1][1] + 1:
            parts[-1][1] = device
        else:
            parts.append([device, device])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
