"""Processes that use CUDA: spawned workers, forked ones before and after CUDA starts, shared tensors."""

import os
import sys
import traceback

import lines
from torch_common import DEVICE, hash_of, integers, prepare, torch


def squares(rank, results):
    x = integers(128, 128, seed=rank)
    results.put((rank, hash_of(x @ x)))


def fails(rank):
    torch.zeros(4, device=DEVICE)
    raise ValueError(f"worker {rank}")


@lines.case
def spawned_workers(say):
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    torch.multiprocessing.spawn(squares, (results,), nprocs=3)
    for rank, value in sorted(results.get() for _ in range(3)):
        say(f"worker {rank}", value)


@lines.case
def error_of_a_worker(say):
    try:
        torch.multiprocessing.spawn(fails, nprocs=1)
    except Exception as error:
        say("raises", type(error).__name__)
        say("says", "ValueError: worker 0" in str(error))


def doubles(tensors, results):
    tensor = tensors.get()
    tensor *= 2
    results.put(hash_of(tensor))
    tensors.get()  # waits until the parent has used the tensor
    del tensor


@lines.case
def shared_cuda_tensor(say):
    context = torch.multiprocessing.get_context("spawn")
    tensors, results = context.SimpleQueue(), context.SimpleQueue()
    worker = context.Process(target=doubles, args=(tensors, results))
    worker.start()
    x = integers(1000)
    try:
        tensors.put(x)
        say("there", results.get() if wait_for(results, worker) else "the worker died")
        torch.cuda.synchronize()
        say("here", hash_of(x))
        tensors.put("seen")
    finally:
        worker.join(20)
        if worker.is_alive():
            worker.kill()
            worker.join()
    say("exit status", worker.exitcode)


def wait_for(queue, worker):
    """Whether the queue has something before the worker ends."""
    while not queue._reader.poll(0.2):
        if not worker.is_alive():
            return queue._reader.poll(0.2)
    return True


def in_fork(function):
    """The text of the result of function() in a forked child, or of its exception."""
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read_end)
            try:
                text = str(function())
            except BaseException as error:
                traceback.print_exc()
                text = f"raises {type(error).__name__}: {str(error).splitlines()[0][:80]}"
            os.write(write_end, text.encode())
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return text or f"ended with {os.waitstatus_to_exitcode(status)}"


@lines.case
def fork_after_cuda(say):
    x = torch.ones(4, device=DEVICE)
    say("child", in_fork(lambda: torch.ones(4, device=DEVICE).sum().item()))
    say("child with the parent's tensor", in_fork(lambda: (x + 1).sum().item()))
    say("child without CUDA", in_fork(lambda: torch.ones(4).sum().item()))
    say("parent afterwards", (x + 1).sum().item())


def forks_first():
    """Runs in a new process: first its children use CUDA, then the process itself."""
    print("first child:", in_fork(lambda: hash_of(integers(64, 64) @ integers(64, 64, seed=1))))
    print("second child:", in_fork(lambda: hash_of(integers(64, 64, seed=2) + 1)))
    print("parent:", hash_of(integers(64, 64) @ integers(64, 64, seed=1)))
    print("late child:", in_fork(lambda: integers(8).sum().item()))


@lines.case
def fork_before_cuda(say):
    import subprocess
    told = subprocess.run([sys.executable, os.path.abspath(__file__), "--shard", "forks"],
                          capture_output=True, text=True, timeout=100)
    sys.stderr.write(told.stderr[-3000:])
    for line in told.stdout.splitlines():
        if ": " in line:
            say(*line.split(": ", 1))
    if told.returncode:
        raise subprocess.SubprocessError(f"exit status {told.returncode}: {told.stderr[-200:]}")


@lines.case
def process_pool(say):
    from concurrent.futures import ProcessPoolExecutor
    import multiprocessing
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for i, value in enumerate(pool.map(square_of, range(4))):
            say(f"job {i}", value)


def square_of(number):
    x = integers(32, 32, seed=number)
    return hash_of(x @ x.T)


if __name__ == "__main__":
    if lines._arguments().shard == "forks":
        forks_first()
    else:
        prepare()
        lines.run()
