#!/usr/bin/env python3
"""Trains a small GPT natively, over TCP with RCUDA_RECONNECT, and through a proxy that cuts connections. The losses must
be equal.

    cut_training.py --build FOLDER [--steps 400] [--seconds 2] [--driver nvidia]

The proxy cuts some of the session's connections after each pause of up to twice --seconds. Prints a table of steps per
second, of cuts, and of the share of time that the cuts cost. Exits with 1 if one of the three runs fails or its losses
differ from the native losses. Needs PyTorch. (Each run is a process: `cut_training.py train STEPS`.)
"""

import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
WORDS, WIDTH, LENGTH, BATCH, LAYERS = 2000, 384, 128, 16, 6


def train(steps):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    from torch import nn
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True,
                                                                   norm_first=True) for _ in range(LAYERS))
            self.out = nn.Linear(WIDTH, WORDS)

        def forward(self, tokens):
            mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=tokens.device)
            values = self.words(tokens) + self.places.weight
            for layer in self.layers:
                values = layer(values, src_mask=mask, is_causal=True)
            return self.out(values)

    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(2)
    losses, begin = [], None
    for step in range(steps):
        if step == 10:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH), generator=data).cuda()
        loss = nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() if step % 10 == 0 else None)
    torch.cuda.synchronize()
    rate = (steps - 10) / (time.perf_counter() - begin)
    print(json.dumps({"losses": [loss for loss in losses if loss is not None], "rate": rate}))


def run(steps, environment):
    result = subprocess.run([sys.executable, os.path.abspath(__file__), "train", str(steps)], env=environment,
                            capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        print(result.stderr, file=sys.stderr)
        return None
    return json.loads(result.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--driver", default="nvidia")
    arguments = parser.parse_args()
    from cutting_proxy import CuttingProxy
    from servers import client_environment, Server
    server = Server(arguments.build, arguments.driver, "0", options=["--pool", "0"])
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    remote = client_environment(arguments.build, [server], "tcp", RCUDA_RECONNECT="60s", RCUDA_LOG="error")
    proxy = CuttingProxy(server.port, seconds=arguments.seconds)
    cut = dict(remote, RCUDA_DEVICES=proxy.address(), RCUDA_SECURITY="none")
    ways = [("native", os.environ, None), ("reconnecting", remote, None), ("cut", cut, proxy)]
    failed, native, whole = False, None, None
    print("| way | steps/s | ratio to native | cuts | share of the time that cuts cost | losses |\n|---|---|---|---|---|---|")
    for name, environment, through in ways:
        found = run(arguments.steps, environment)
        if not found:
            failed = True
            print(f"| {name} | failed | | | | |")
            continue
        native = native or found
        whole = found if name == "reconnecting" else whole
        equal = found["losses"] == native["losses"]
        failed |= not equal
        share = f"{1 - found['rate'] / whole['rate']:.2f}" if through and whole else ""
        print(f"| {name} | {found['rate']:.1f} | {found['rate'] / native['rate']:.2f} | {through.cuts if through else ''} | "
              f"{share} | {'equal' if equal else 'differ'} |", flush=True)
    if server.stop() != 0:
        failed = True
    sys.exit(failed)


if __name__ == "__main__":
    train(int(sys.argv[2])) if sys.argv[1:2] == ["train"] else main()
