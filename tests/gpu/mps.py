#!/usr/bin/env python3
"""Sessions of a server whose workers are clients of NVIDIA's multi-process service (MPS), on a real GPU.

    tests/gpu/mps.py BUILD_FOLDER [--multiuser] [--programs FOLDER] [--driver DRIVER] [--control PROGRAM]

Starts nvidia-cuda-mps-control with folders of its own, and a server that uses it. Runs programs of tests/programs, two
at a time, natively as clients of MPS, and remotely over shared memory and TCP, as the user of this script. With
--multiuser (nvidia-cuda-mps-control -multiuser-server) and as root, they also run as the user `nobody`, if that user can
reach the build folder. Without --multiuser, MPS serves one user at a time: if a worker of another user makes a context
later, it has to wait. Remote outputs must be equal to native outputs. The worker of each session must be a client of MPS,
and at least one worker must have a filter of system calls. Prints a table, and exits with 1 if a check fails. Changes no
setting of a GPU, and ends everything that it has started.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from servers import audit_lines, client_environment, eventually, Server  # noqa: E402

PAIRS = (("graphs_captured", "matrix_product"), ("interprocess", "linking"), ("shared_descriptors", "context_lives"))
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
NOBODY = 65534
PATIENCE = 12  # how many seconds a program may take
BUDGET = 45    # seconds, after which no further program starts
POOL = 5       # idle workers: as many as two of these programs have sessions


class Mps:
    """The control daemon of MPS, with folders of its own."""

    def __init__(self, control, folder, options):
        self.control = control
        self.pipes, self.logs = os.path.join(folder, "pipes"), os.path.join(folder, "logs")
        for path in (self.pipes, self.logs):
            os.mkdir(path)
            os.chmod(path, 0o755)  # a worker of the user `nobody` must reach the pipes
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": self.pipes, "CUDA_MPS_LOG_DIRECTORY": self.logs}
        # Without this script's descriptors: with them, the daemon would keep a pipe of the script's caller open.
        subprocess.run([control, *options, "-d"], env=self.environment(), check=True, timeout=20, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)

    def environment(self):
        return dict(os.environ, **NO_MULTICAST, **self.variables)

    def ask(self, line):
        try:
            done = subprocess.run([self.control], input=line + "\n", env=self.environment(), capture_output=True,
                                  text=True, timeout=10)
        except subprocess.TimeoutExpired:
            return []
        return [int(word) for word in done.stdout.split() if word.isdigit()]

    def clients(self):
        return {client for server in self.ask("get_server_list") for client in self.ask(f"get_client_list {server}")}

    def end(self):
        pid = None
        try:
            with open(os.path.join(self.pipes, "nvidia-cuda-mps-control.pid")) as file:
                pid = int(file.read())
        except (OSError, ValueError):
            pass
        self.ask("quit")
        if pid and not eventually(lambda: not os.path.exists(f"/proc/{pid}"), seconds=5):
            print(f"FAILED the control daemon {pid} did not end by \"quit\" and is killed")
            os.kill(pid, signal.SIGKILL)

    def log_ends(self):
        for name in sorted(os.listdir(self.logs)):
            with open(os.path.join(self.logs, name), errors="replace") as file:
                print(f"--- {name}\n" + "".join(file.readlines()[-15:]))


class Watch(threading.Thread):
    """Records the clients of MPS, and which of the server's workers have a filter of system calls."""

    def __init__(self, mps, server):
        super().__init__(daemon=True)
        self.mps, self.server = mps, server
        self.clients, self.filtered = set(), {}  # {worker: its user}
        self.ends = threading.Event()

    def look_at_workers(self):
        for worker in self.server.workers():
            try:
                with open(f"/proc/{worker}/status") as file:
                    fields = dict(line.split(":", 1) for line in file)
            except (OSError, ValueError):
                continue  # the worker has just ended
            if fields["Seccomp"].split() == ["2"]:
                self.filtered[worker] = int(fields["Uid"].split()[0])

    def run(self):
        next_question = 0
        while not self.ends.wait(0.02):
            self.look_at_workers()
            if time.monotonic() >= next_question:
                self.clients |= self.mps.clients()
                next_question = time.monotonic() + 0.2

    def stop(self):
        self.ends.set()
        self.join()


def run_pair(programs, pair, environment, user=None):
    """[(exit status or what went wrong, stdout, stderr)] of two programs that run at the same time."""
    identity = {} if user is None else dict(user=user, group=user, extra_groups=[])
    running = []
    for name in pair:
        # Files, because a child of a program may outlive it and hold a pipe.
        files = tempfile.TemporaryFile("w+", errors="replace"), tempfile.TemporaryFile("w+", errors="replace")
        running.append((subprocess.Popen([os.path.join(programs, name)], env=environment, cwd="/", stdout=files[0],
                                         stderr=files[1], start_new_session=True, **identity), files))
    ends_at, results = time.monotonic() + PATIENCE, []
    for process, files in running:
        try:
            outcome = process.wait(timeout=max(0.1, ends_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            outcome = f"no end within {PATIENCE} s"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        results.append((outcome, *texts))
    return results


def may_run(path, user):
    return subprocess.run(["test", "-r", path, "-a", "-x", path], user=user, group=user, extra_groups=[],
                          cwd="/").returncode == 0


class Check:
    def __init__(self, arguments):
        self.build, self.driver = os.path.abspath(arguments.build), arguments.driver
        self.programs = os.path.abspath(arguments.programs or os.path.join(self.build, "tests/programs"))
        self.failed, self.begin, self.rows = 0, time.monotonic(), []
        self.all_users = arguments.multiuser

    def users(self):
        """The users that run programs; None: the user of this script."""
        needed = [os.path.join(self.build, "lib/librcuda.so")]
        needed += [os.path.join(self.programs, name) for pair in PAIRS for name in pair]
        if self.all_users and os.geteuid() == 0 and all(may_run(path, NOBODY) for path in needed):
            return [None, NOBODY]
        if self.all_users:
            print("left out: programs of the user nobody (this is not root, or that user cannot reach the build folder)")
        return [None]

    def fail(self, text):
        self.failed += 1
        print("FAILED " + text, flush=True)

    def compare(self, name, way, native, remote):
        if native[:2] == remote[:2]:
            return "same"
        self.fail(f"{name}, {way}: exit {remote[0]} (natively {native[0]}), prints {len(remote[1])} bytes "
                  f"({len(native[1])})\n{remote[1][-300:]}\n{remote[2][-900:]}")
        return "DIFFERS"

    def rest(self, server, watch):
        """Waits for the idle workers of the server, which are clients of MPS, and records them."""
        def has_pool():
            idle = re.search(r"(\d+) idle worker", server.status(self.build))
            return idle and int(idle[1]) >= POOL
        eventually(has_pool, seconds=8)
        watch.clients |= watch.mps.clients()

    def run_remotely(self, server, watch, natives):
        for user in self.users():
            who = "nobody" if user else "uid %d" % os.geteuid()
            for pair in PAIRS:
                row = [" + ".join(pair), who]
                for transport in ("shm", "tcp"):
                    if time.monotonic() - self.begin > BUDGET:
                        self.fail(f"{pair}, {transport}, {who}: not run, because {BUDGET} s have passed")
                        row.append("not run")
                        continue
                    self.rest(server, watch)
                    results = run_pair(self.programs, pair, client_environment(self.build, [server], transport), user)
                    row.append(", ".join(self.compare(name, f"{transport}, {who}", natives[name], result)
                                         for name, result in zip(pair, results)))
                self.rows.append(row)

    def check_workers(self, watch, audit):
        workers = {line["worker"]: line["user"] for line in audit_lines(audit, "begin")}
        strangers = sorted(set(workers) - watch.clients)
        filtered = {worker: user for worker, user in watch.filtered.items() if worker in workers}
        users = ", ".join(f"uid {user}: {list(filtered.values()).count(user)}" for user in sorted(set(filtered.values())))
        print(f"{len(workers)} sessions; the workers of {len(workers) - len(strangers)} were clients of the MPS server; "
              f"{len(filtered)} were seen under the filter of system calls ({users})")
        if not workers or strangers:
            self.fail(f"workers that MPS does not list: {strangers}; its clients: {sorted(watch.clients)}")
        if not filtered:
            self.fail("no worker was seen under the filter of system calls")

    def run(self, mps, folder):
        natives = {}
        for pair in PAIRS:
            for name, result in zip(pair, run_pair(self.programs, pair, self.native_environment(mps))):
                natives[name] = result
                if result[0] != 0:
                    self.fail(f"{name}, natively: {result[0]}\n{result[2][-900:]}")
        print(f"native programs have run after {time.monotonic() - self.begin:.1f} s", flush=True)
        audit = os.path.join(folder, "audit")
        server = Server(self.build, driver=self.driver, environment={**NO_MULTICAST, **mps.variables},
                        options=["--pool", str(POOL), "--users", "*", "--audit", audit])
        watch = Watch(mps, server)
        watch.start()
        try:
            self.run_remotely(server, watch, natives)
        finally:
            watch.stop()
            outcome = server.stop()
        if outcome != 0:
            self.fail(f"the server ends: {outcome}")
        print("\n".join(line for line in server.text().splitlines() if "warning" in line or "error" in line))
        self.check_workers(watch, audit)

    def native_environment(self, mps):
        environment = mps.environment()
        if self.driver != "nvidia":
            environment["LD_LIBRARY_PATH"] = os.path.join(self.build, "softgpu/lib")
        return environment

    def print_table(self):
        print(f"\n| programs, two at a time | as | over shm | over tcp |\n|---|---|---|---|")
        for row in self.rows:
            print("| " + " | ".join(row) + " |")
        print(f"{time.monotonic() - self.begin:.1f} s, {self.failed} failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--multiuser", action="store_true")
    parser.add_argument("--programs", help="default: BUILD_FOLDER/tests/programs")
    parser.add_argument("--driver", default="nvidia")
    parser.add_argument("--control", default="nvidia-cuda-mps-control")
    arguments = parser.parse_args()
    check = Check(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # ends everything that runs
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        mps = Mps(arguments.control, folder, ["-multiuser-server"] if arguments.multiuser else [])
        try:
            check.run(mps, folder)
        finally:
            mps.end()
            if check.failed:
                mps.log_ends()
    check.print_table()
    sys.exit(check.failed != 0)


if __name__ == "__main__":
    main()
