"""Trains a small transformer with DDP, then with FSDP, as torchrun starts it. nccl.py runs it.

Rank 0 prints a line of JSON: for DDP and FSDP, the losses of all steps and the steps per second. The environment names the GPU
(DEVICE). Seeds and algorithms are fixed, so the same split of ranks into hosts gives the same losses.
"""

import json
import os
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

WORDS, WIDTH, LENGTH, BATCH = 1000, 256, 64, 8
WARM, STEPS = 5, 40


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
                                    for _ in range(4))
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        values = self.words(tokens)
        for layer in self.layers:
            values = layer(values)
        return self.out(values)


def distribute(kind, model, device):
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[device])
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def train(kind, device):
    torch.manual_seed(1)
    model = distribute(kind, Model().cuda(), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(100 + dist.get_rank())
    losses, begin = [], 0.0
    for step in range(WARM + STEPS):
        if step == WARM:
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH), generator=batches).cuda()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    return {"losses": (mean / dist.get_world_size()).tolist(), "steps_per_second": STEPS / seconds}


def main():
    device = int(os.environ["DEVICE"])
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("nccl")
    results = {kind: train(kind, device) for kind in ("ddp", "fsdp")}
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
