"""PyTorch's allocators: statistics, snapshots, out-of-memory errors, and other back ends."""

import os
import subprocess
import sys

import lines
from torch_common import DEVICE, hash_of, model, prepare, torch


def work():
    network = model()
    x = torch.randn(512, 64, device=DEVICE)
    network(x).sum().backward()
    return hash_of(*[parameter.grad for parameter in network.parameters()])


@lines.case
def statistics(say):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = [torch.empty(1 << size, device=DEVICE) for size in range(8, 22)]
    say("allocated", torch.cuda.memory_allocated() - before)
    del kept[::2]
    work()
    say("allocated later", torch.cuda.memory_allocated() - before)
    say("most", torch.cuda.max_memory_allocated() - before)
    stats = torch.cuda.memory_stats()
    for key in ("allocation.all.allocated", "allocation.large_pool.current", "segment.all.current",
                "reserved_bytes.all.peak", "active_bytes.all.peak", "inactive_split.all.current",
                "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"):
        say(key, stats.get(key))
    say("reserved", torch.cuda.memory_reserved())


@lines.case
def free_and_total(say):
    free, total = torch.cuda.mem_get_info()
    say("total", total)
    say("total as the properties say", total == torch.cuda.get_device_properties(0).total_memory)
    say("free is less", 0 < free < total)
    large = torch.empty(2 << 30, dtype=torch.uint8, device=DEVICE)
    say("2 GiB can be had", large.numel() == 2 << 30)


@lines.case
def snapshot(say):
    torch.cuda.memory._record_memory_history(max_entries=1000)
    x = torch.ones(1000, device=DEVICE)
    y = x * 2
    del x
    found = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    say("actions", sorted({entry["action"] for entry in found["device_traces"][0]}))
    say("has segments", bool(found["segments"]))
    say("y", hash_of(y))
    say("summary", "Allocated memory" in torch.cuda.memory_summary())


@lines.case
def out_of_memory(say):
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(2 * total, dtype=torch.uint8, device=DEVICE)
        say("twice the memory", "given")
    except Exception as error:
        say("twice the memory", type(error).__name__)
        say("message", str(error).split(".")[0] + "." + str(error).split(".")[1][:12])
    say("works afterwards", work())
    # The limit is far below the free memory, because other programs on this GPU need memory too.
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        torch.empty(total // 20, dtype=torch.uint8, device=DEVICE)
        say("above its fraction", "given")
    except Exception as error:
        say("above its fraction", type(error).__name__)
    torch.cuda.set_per_process_memory_fraction(1.0)
    say("below it", torch.empty(total // 20, dtype=torch.uint8, device=DEVICE).numel() == total // 20)


def with_allocator(say, settings):
    """Runs work_of_allocator() in a new process, because the allocator must be chosen before CUDA starts."""
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=settings, PYTORCH_ALLOC_CONF=settings)
    told = subprocess.run([sys.executable, os.path.abspath(__file__), "--lines", "/dev/stdout", "--shard",
                           "work"], env=environment, capture_output=True, text=True, timeout=100)
    sys.stderr.write(told.stderr[-2000:])
    for line in told.stdout.splitlines():
        if line.startswith("work "):
            key, value = line[5:].split(": ", 1)
            say(key, value)
    if told.returncode:
        raise subprocess.SubprocessError(f"exit status {told.returncode}: {told.stderr[-200:]}")


def work_of_allocator():
    torch.manual_seed(0)
    print("work back end:", torch.cuda.get_allocator_backend())
    print("work result:", work())
    blocks = []
    for i in range(200):
        blocks.append(torch.full(((i % 17 + 1) * 50_000,), float(i), device=DEVICE))
        if i % 3 == 0:
            blocks.pop(i % len(blocks))
    print("work blocks:", hash_of(*[block.sum() for block in blocks]))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = torch.ones(1 << 20, device=DEVICE) * 3
        y.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(side)
    print("work other stream:", y.sum().item())
    del blocks, y
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    print("work again:", work())


@lines.case
def expandable_segments(say):
    with_allocator(say, "expandable_segments:True")


@lines.case
def cuda_malloc_async(say):
    with_allocator(say, "backend:cudaMallocAsync")


@lines.case
def memory_pools(say):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.arange(100_000, device=DEVICE)
    y = x.sum()
    say("sum", y.item())
    del x
    say("segments", len(pool.snapshot()) if hasattr(pool, "snapshot") else "unknown")


@lines.case
def properties(say):
    found = torch.cuda.get_device_properties(0)
    for key in ("name", "major", "minor", "multi_processor_count", "total_memory", "L2_cache_size",
                "warp_size", "max_threads_per_multi_processor", "shared_memory_per_block_optin", "uuid"):
        say(key, getattr(found, key, None))
    say("devices", torch.cuda.device_count())
    say("bf16", torch.cuda.is_bf16_supported())
    say("architectures", torch.cuda.get_arch_list())


if __name__ == "__main__":
    prepare()
    if lines._arguments().shard == "work":
        work_of_allocator()
    else:
        lines.run()
