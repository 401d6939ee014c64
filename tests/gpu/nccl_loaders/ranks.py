#!/usr/bin/env python3
"""Starts a Python program in PROCESSES processes, with RANK and RANKS in the environment.

    ranks.py PROCESSES PROGRAM [ARGUMENT ...]

Ends the other processes and exits with 1 as soon as a process fails. The variable PRELOADED names a library to preload into
the processes, after those of LD_PRELOAD.
"""

import os
import subprocess
import sys
import time

count = int(sys.argv[1])
preload = [path for path in (os.environ.get("LD_PRELOAD"), os.environ.get("PRELOADED")) if path]
ranks = [subprocess.Popen([sys.executable, *sys.argv[2:]],
                          env=dict(os.environ, RANK=str(rank), RANKS=str(count), LD_PRELOAD=":".join(preload)))
         for rank in range(count)]
while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
    time.sleep(0.05)
failed = any(rank.poll() for rank in ranks)
for rank in ranks:
    if rank.poll() is None:
        rank.kill()  # it would wait for the rank that has failed
    rank.wait()
sys.exit(failed)
