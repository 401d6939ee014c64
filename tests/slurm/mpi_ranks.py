#!/usr/bin/python3
"""A usual MPI program for machines with GPUs: each rank uses the GPU whose number is its rank on the node, fills memory
on it and reads the memory back, and the ranks add up what they read. Run by srun --mpi=pmix; prints a line for each
rank."""

import ctypes
import os

from mpi4py import MPI

COUNT = 1 << 16


def check(result):
    if result != 0:
        raise SystemExit(f"rank {MPI.COMM_WORLD.rank}: CUDA error {result}")


ranks = MPI.COMM_WORLD
cuda = ctypes.CDLL("libcuda.so.1")
count, context, memory, uuid = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(16)
check(cuda.cuInit(0))
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
device = int(os.environ["SLURM_LOCALID"]) % count.value
check(cuda.cuDeviceGetUuid_v2(uuid, device))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4 * COUNT)))
check(cuda.cuMemsetD32_v2(memory, ctypes.c_uint(ranks.rank + 1), ctypes.c_size_t(COUNT)))
mine = (ctypes.c_uint * COUNT)()
check(cuda.cuMemcpyDtoH_v2(mine, memory, ctypes.c_size_t(4 * COUNT)))

# Each word of the sum is 1 + 2 + ... + size. Each rank copies the sum to its GPU and back.
total = (ctypes.c_uint * COUNT)()
ranks.Allreduce([mine, MPI.UNSIGNED], [total, MPI.UNSIGNED])
check(cuda.cuMemcpyHtoD_v2(memory, total, ctypes.c_size_t(4 * COUNT)))
check(cuda.cuMemcpyDtoH_v2(mine, memory, ctypes.c_size_t(4 * COUNT)))
expected = ranks.size * (ranks.size + 1) // 2
if set(mine) != {expected}:
    raise SystemExit(f"rank {ranks.rank}: {set(mine)} and not {expected}")
gpus = ranks.gather(uuid.raw.hex())
if ranks.rank == 0:
    for rank, gpu in enumerate(gpus):
        print(f"rank {rank} of {ranks.size}: sum {expected} on {gpu}")
