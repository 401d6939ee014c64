"""The devices that jobs have: files of the controller, changed under one lock.

    jobs      4711 h100 1a2b3c4d gpu1:0-3,6 gpu2:0    for each job: type, lease, servers with their devices
    avoided   gpu2 1790000000.0 why                   servers that failed, refused a lease or are drained: time, reason

No job can get devices that are recorded as JOB/LEASE: the job JOB has ended or has other devices, and a server has not
confirmed that the lease has ended. Jobs can get devices of an avoided server again after AVOIDED_SECONDS.

A line is parsed only when its content is needed, so that ten thousand jobs cost little (docs/slurm.md has the figures).
"""

import contextlib
import fcntl
import os
import time

from pool import list_text, parse_devices

AVOIDED_SECONDS = 60


class Entry:
    def __init__(self, type_name, lease, devices):
        self.type, self.lease, self.devices = type_name, lease, devices  # {server: devices}

    def grant(self):
        """The lease and the devices, in the form of the job's AdminComment."""
        return " ".join([self.lease, *(f"{server}:{list_text(devices)}" for server, devices in self.devices.items())])


class State:
    def __init__(self, folder):
        self.folder = folder
        self.jobs, self.failures = {}, {}  # the lines of `jobs` and `avoided`: {first word: rest of the line}

    @contextlib.contextmanager
    def locked(self):
        """Reads the files, and writes them at the end of the block unless it raises an exception."""
        with open(os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.read()
            before = dict(self.jobs), dict(self.failures)
            yield self
            for name, lines, old in zip(("jobs", "avoided"), (self.jobs, self.failures), before):
                if lines != old:
                    self.write(name, lines)

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self):
        self.jobs, self.failures = self.lines_of("jobs"), self.lines_of("avoided")

    def lines_of(self, name):
        try:
            with open(self.path(name)) as file:
                return dict(line.split(" ", 1) for line in file.read().splitlines())
        except FileNotFoundError:
            return {}

    def write(self, name, lines):
        new = self.path(name + ".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write("".join(f"{key} {text}\n" for key, text in lines.items()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path(name))

    def get(self, name):
        """None if there is no entry of that name."""
        if name not in self.jobs:
            return None
        type_name, lease, *servers = self.jobs[name].split()
        parts = (server.rpartition(":") for server in servers)
        return Entry(type_name, lease, {server: parse_devices(devices) for server, _, devices in parts})

    def put(self, name, entry):
        self.jobs[name] = f"{entry.type} {entry.grant()}"

    def used(self, servers):
        """{(server, device): number of jobs that have it}, for the devices of these servers."""
        used = {}
        for text in self.jobs.values():
            for word in text.split()[2:]:
                server, _, devices = word.rpartition(":")
                if server in servers:
                    for device in parse_devices(devices):
                        used[server, device] = used.get((server, device), 0) + 1
        return used

    def avoid(self, server, why):
        self.failures[server] = f"{time.time()} {' '.join(why.split())}"  # one line of the file

    def forgive(self, server):
        self.failures.pop(server, None)

    def avoided(self):
        """Returns {server: why} for the servers that failed in the last AVOIDED_SECONDS."""
        found = {}
        for server, text in list(self.failures.items()):
            since, _, why = text.partition(" ")
            if 0 <= time.time() - float(since) < AVOIDED_SECONDS:
                found[server] = why
            else:
                del self.failures[server]
        return found
