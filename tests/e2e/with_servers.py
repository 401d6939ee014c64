#!/usr/bin/env python3
"""Runs a program through the whole remote path: servers of its own, then the program preloaded.

    with_servers.py --build FOLDER [--transport shm|tcp] [--servers N] [--driver softgpu|nvidia]
                    [--devices LIST] -- PROGRAM [ARGUMENT...]

Starts N servers on free ports, runs PROGRAM with one device of each, stops the servers and exits with
the program's code; a server that does not stop cleanly fails the run. Its log is printed then.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile


class Server:
    def __init__(self, build, driver, devices, index):
        self.log = tempfile.TemporaryFile()
        read_end, write_end = os.pipe()
        command = [os.path.join(build, "bin/rcuda-server"), "--port", "0", "--pool", "1",
                   "--ready-fd", str(write_end)]
        environment = dict(os.environ, RCUDA_DRIVER=driver, RCUDA_LOG="info",
                           RCUDA_SERVER_IMAGE_CACHE="none")
        # Several servers on one machine are several nodes: their GPUs must be told apart.
        environment["SOFTGPU_NODE"] = str(index)
        if devices:
            command += ["--devices", devices]
        self.process = subprocess.Popen(command, pass_fds=[write_end], env=environment,
                                        stdout=self.log, stderr=self.log)
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            self.port = ready.readline().strip()
        if not self.port:
            self.stop()
            raise SystemExit("rcuda-server did not start:\n" + self.text())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "did not stop within 20 s"

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--driver", default="softgpu")
    parser.add_argument("--devices", default="")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    build = os.path.abspath(arguments.build)

    gpus = arguments.devices.split(",") if arguments.devices else ["0"] * arguments.servers
    servers = [Server(build, arguments.driver, arguments.devices and gpus[i], i)
               for i in range(arguments.servers)]
    pool = ",".join(f"127.0.0.1@{server.port}:{gpus[i]}" for i, server in enumerate(servers))
    environment = dict(os.environ, RCUDA_DEVICES=pool, RCUDA_TRANSPORT=arguments.transport,
                       LD_PRELOAD=os.path.join(build, "lib/librcuda.so"))
    code = subprocess.run(program, env=environment).returncode
    for server in servers:
        outcome = server.stop()
        if outcome != 0:
            print(f"rcuda-server: {outcome}", file=sys.stderr)
            code = code or 1
        if code:
            print(server.text(), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
