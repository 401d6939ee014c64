"""Typical PyTorch programs. Prints the milliseconds of a step of each program.

Each step ends with one value (or one small array) that the program reads, so it has to wait once.
The models have the shapes of GPT-2 and ResNet-50, and random weights.
"""

import functools
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, past):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.attention(self.first(x)).split(width, dim=2))
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.second(x)), approximate="tanh")), (k, v)


class Gpt2(nn.Module):
    def __init__(self, layers=12, width=768, vocabulary=50257):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens, past=None):
        begin = past[0][0].shape[2] if past else 0
        places = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        x, kept = self.tokens(tokens) + self.places(places), []
        for i, block in enumerate(self.blocks):
            x, pair = block(x, past[i] if past else None)
            kept.append(pair)
        return functional.linear(self.norm(x[:, -1:]), self.tokens.weight), kept


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        def layer(a, b, size, step=1):
            return [nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b)]
        self.body = nn.Sequential(*layer(inputs, width, 1), nn.ReLU(), *layer(width, width, 3, stride),
                                  nn.ReLU(), *layer(width, 4 * width, 1))
        same = inputs == 4 * width and stride == 1
        self.side = nn.Identity() if same else nn.Sequential(*layer(inputs, 4 * width, 1, stride))

    def forward(self, x):
        return functional.relu(self.body(x) + self.side(x))


def resnet50():
    layers, inputs = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                      nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).cuda()


def milliseconds(step, warm_up, count):
    """Median of one step."""
    for _ in range(warm_up):
        step()
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def decode(measure=milliseconds, sequences=1):
    """Times a token of the last of `sequences` sequences of equal length. cuDNN prepares its kernels in the first
    sequence."""
    model = Gpt2().cuda().half().eval()
    with torch.inference_mode():
        prompt = torch.randint(0, 50257, (1, 64), device="cuda")

        def begin():
            logits, past = model(prompt)
            token = logits[:, -1].argmax(-1, keepdim=True)

            def step():
                nonlocal past, token
                logits, past = model(token, past)
                token = logits[:, -1].argmax(-1, keepdim=True)
                return token.item()

            return step

        for _ in range(sequences - 1):
            milliseconds(begin(), 10, 40)
        return measure(begin(), 10, 40)


def training(measure=milliseconds, batch=32):
    model = resnet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224).pin_memory()
    labels = torch.randint(0, 1000, (batch,)).pin_memory()

    def step():
        optimizer.zero_grad(set_to_none=True)
        output = model(images.cuda(non_blocking=True))
        loss = functional.cross_entropy(output, labels.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        return loss.item()

    return measure(step, 4, 12)


def inference(batch, measure=milliseconds):
    model = resnet50().eval()
    images = torch.randn(batch, 3, 224, 224).pin_memory()
    with torch.inference_mode():
        return measure(lambda: model(images.cuda(non_blocking=True)).cpu(), 5, 25)


def small_training(measure=milliseconds):
    """Launches of small kernels only: a step is as long as PyTorch and the driver take to queue it."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 256, device="cuda")
    labels = torch.randint(0, 10, (64,), device="cuda")

    def steps():
        for _ in range(20):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        torch.cuda.synchronize()

    return measure(steps, 1, 10) / 20


# Bytes that a step copies from page-locked memory to the device before its first kernel can begin.
COPIED = {"training": 32 * 3 * 224 * 224 * 4, "inference_32": 32 * 3 * 224 * 224 * 4,
          "inference_1": 3 * 224 * 224 * 4}

# Each takes the function that measures its step: (step, calls to warm up, calls) -> milliseconds.
PROGRAMS = {"decode": decode, "decode_again": functools.partial(decode, sequences=2), "training": training,
            "small_training": small_training, "inference_1": functools.partial(inference, 1),
            "inference_32": functools.partial(inference, 32)}

if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        print(name, PROGRAMS[name](), flush=True)
