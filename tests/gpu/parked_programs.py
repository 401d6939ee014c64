#!/usr/bin/env python3
"""Programs of tests/programs whose sessions are parked at random moments must print what they print natively.

    parked_programs.py --build FOLDER [--transports shm,tcp] [--at-once 3] [--stops 6] [--only NAMES | --from NAME] [--seconds 120]

Each program is stopped (SIGSTOP) until the server has parked its session, and continued; up to --stops times. The driver
parks one process at a time, and takes about two seconds for each. With
`RCUDA_SERVER_MOVABLE_MEMORY=true` in the environment, the workers move their memory themselves. Prints a table: the number of
stops and parks, and the obstacle if no session was parked. Exits with 1 if an output differs.
"""

import argparse
import concurrent.futures
import os
import re
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OBSTACLE = re.compile(r"is not parked: (.*)")
# Programs that differ because of NVIDIA's driver 580.159, with the reason.
DIFFER = dict.fromkeys(("device_assert", "device_trap"), "after a restore, the driver reports CUDA_ERROR_ILLEGAL_INSTRUCTION")
LEFT_OUT = ("cancelled_threads",)  # does not end natively


def run(command, seconds, **more):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **more)
    try:
        output, text = process.communicate(timeout=seconds)
        return process.returncode, output, text.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the servers and the program
        return "no end", b"", process.communicate()[1].decode(errors="replace")


def row(arguments, program, transport, native):
    code, output, text = run([sys.executable, os.path.join(HERE, "../e2e/with_servers.py"), "--build", arguments.build, "--driver",
                              "nvidia", "--transport", transport, "--parks", "--stops", str(arguments.stops), "--", program],
                             arguments.seconds)
    counts = re.search(r"(\d+) stops, (\d+) parks", text)
    said = f"{counts[1]} stops, {counts[2]} parks" if counts else "no end" if code == "no end" else "no session"
    obstacles = {match.split(" (")[0][:80] for match in OBSTACLE.findall(text)}
    same = code != "no end" and (code, output) == native[:2]
    if not same and os.path.basename(program) in DIFFER and counts and int(counts[2]) > 0:
        return True, f"differs: {DIFFER[os.path.basename(program)]}", text
    return same, f"{'equal' if same else 'DIFFERS'}, {said}" + (f" ({'; '.join(sorted(obstacles))})" if obstacles else ""), text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--stops", type=int, default=6)
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--from", dest="first", default="", help="only this program and those after it")
    parser.add_argument("--seconds", type=int, default=120, help="how long a program may take")
    arguments = parser.parse_args()
    folder = os.path.join(arguments.build, "tests/programs")
    wanted = [name for name in arguments.only.split(",") if name]
    programs = sorted(name for name in os.listdir(folder) if os.access(os.path.join(folder, name), os.X_OK)
                      and os.path.isfile(os.path.join(folder, name)) and (name in wanted or not wanted)
                      and name >= arguments.first and name not in LEFT_OUT)
    transports = arguments.transports.split(",")
    failures = []
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        natives = {name: pool.submit(run, [os.path.join(folder, name)], arguments.seconds) for name in programs}
        rows = {(name, transport): pool.submit(lambda name=name, transport=transport: row(
                    arguments, os.path.join(folder, name), transport, natives[name].result()))
                for name in programs for transport in transports}
        print("| program | " + " | ".join(transports) + " |\n|" + "---|" * (1 + len(transports)))
        for name in programs:
            results = [rows[name, transport].result() for transport in transports]
            print(f"| {name} | " + " | ".join(text for _, text, _ in results) + " |", flush=True)
            for transport, (same, _, output) in zip(transports, results):
                if not same:
                    failures.append(name)
                    print(f"=== {name} over {transport}\n{output[-2500:]}", flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
