"""How data gets to the GPU: DataLoader with workers and pinned memory, copies, streams, events."""

import lines
from torch_common import DEVICE, hash_of, prepare, torch


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        return torch.full((3, 16), float(i)) ** 2, i


def load(say, **options):
    loader = torch.utils.data.DataLoader(Squares(), batch_size=32, **options)
    for epoch in range(2):
        hashes, pinned = [], set()
        for values, numbers in loader:
            pinned.add(values.is_pinned())
            moved = values.to(DEVICE, non_blocking=True)
            hashes.append(hash_of(moved.sqrt() + 1, numbers.to(DEVICE, non_blocking=True)))
        say(f"epoch {epoch}", lines.hash_of(*hashes))
        say(f"epoch {epoch} pinned", sorted(pinned))


@lines.case
def dataloader_no_workers(say):
    load(say, pin_memory=True)


@lines.case
def dataloader_fork(say):
    load(say, pin_memory=True, num_workers=3, multiprocessing_context="fork")


@lines.case
def dataloader_spawn(say):
    load(say, pin_memory=True, num_workers=2, multiprocessing_context="spawn", persistent_workers=True)


@lines.case
def dataloader_forkserver(say):
    load(say, pin_memory=True, num_workers=2, multiprocessing_context="forkserver")


@lines.case
def pinned_copies(say):
    for size in (1, 1000, 1 << 20, 5_000_003):
        source = torch.arange(size, dtype=torch.float32).pin_memory()
        there = source.to(DEVICE, non_blocking=True)
        back = torch.empty(size, dtype=torch.float32, pin_memory=True)
        back.copy_(there * 2, non_blocking=True)
        torch.cuda.synchronize()
        say(f"{size} floats", torch.equal(back, source * 2))
    say("still pinned", back.is_pinned())


@lines.case
def pageable_copies(say):
    for size in (1, 1000, 1 << 20, 5_000_003):
        source = torch.arange(size, dtype=torch.int32)
        say(f"{size} integers", hash_of(source.to(DEVICE) + 1))
    strided = torch.arange(1 << 20, dtype=torch.float32).view(1024, 1024)[::3, ::2]
    say("strided", hash_of(strided.to(DEVICE)))


@lines.case
def streams_and_events(say):
    streams = [torch.cuda.Stream() for _ in range(6)] + [torch.cuda.Stream(priority=-1)]
    x = torch.arange(1 << 16, device=DEVICE, dtype=torch.float32)
    ready = torch.cuda.current_stream().record_event()
    results, events = [], []
    for i, stream in enumerate(streams):
        stream.wait_event(ready)
        with torch.cuda.stream(stream):
            y = x
            for _ in range(50):
                y = y * 0.5 + i
            results.append(y)
            events.append(stream.record_event())
    for event in events:
        torch.cuda.current_stream().wait_event(event)
    total = torch.stack(results).sum(0)
    say("total", hash_of(total))
    say("all done", all(event.query() for event in events))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(1_000_000)
    end.record()
    end.synchronize()
    say("elapsed time is positive", begin.elapsed_time(end) > 0)


@lines.case
def numpy_and_dlpack(say):
    x = torch.arange(100, device=DEVICE, dtype=torch.float64)
    say("numpy", float(x.cpu().numpy().sum()))
    say("dlpack", hash_of(torch.from_dlpack(x) + 1))
    say("interface version", x.__cuda_array_interface__["version"])


if __name__ == "__main__":
    prepare()
    lines.run()
