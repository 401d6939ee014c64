"""Sums and gathers with CuPy's NCCL in two processes. Rank 0 sends the unique id over a socket."""

import os
import socket
import sys
import time

import cupy
from cupy.cuda import nccl

rank, ranks = int(os.environ["RANK"]), int(os.environ["RANKS"])
place = ("127.0.0.1", int(os.environ["PORT"]))


def shared_id():
    if rank == 0:
        unique = nccl.get_unique_id()
        with socket.create_server(place) as listener:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(repr(unique).encode())
        return unique
    for _ in range(600):
        try:
            with socket.create_connection(place) as connection:
                return eval(b"".join(iter(lambda: connection.recv(65536), b"")).decode())  # from this program's rank 0
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise SystemExit("rank 0 did not send the unique id")


cupy.cuda.Device(rank).use()
communicator = nccl.NcclCommunicator(ranks, shared_id(), rank)
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    for count in (1, 1000, 1 << 20):
        mine = cupy.arange(count, dtype=cupy.float32) % 100 + rank
        total, of_all = cupy.empty_like(mine), cupy.empty(2 * count, cupy.float32)
        communicator.allReduce(mine.data.ptr, total.data.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        communicator.allGather(mine.data.ptr, of_all.data.ptr, count, nccl.NCCL_FLOAT32, stream.ptr)
        stream.synchronize()
        assert bool((total == 2 * (cupy.arange(count) % 100) + 1).all()), count
        sums = float(total.sum(dtype=cupy.float64)), float(of_all.sum(dtype=cupy.float64))
        sys.stdout.write(f"sum {rank} {count} {sums}\n")  # in one piece, because ranks share the output
communicator.destroy()
