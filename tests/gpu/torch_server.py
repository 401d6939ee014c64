"""An inference server of GPT-2's size: PyTorch, bfloat16, one CUDA graph for a token, and as much memory as many more requests
would need.

    torch_server.py BYTES

Holds about BYTES of GPU memory. Prints "ready". For each line of stdin it generates TOKENS tokens and prints JSON: `first_call`,
the seconds that this took, and `right`, whether the tokens are those of its start and the ends of all memory are unchanged.
"""

import json
import sys
import time

import torch

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, TOKENS = 12, 768, 12, 50257, 256, 32
PIECE = 1 << 29  # bytes of each piece of memory besides the model


class Model:
    def __init__(self):
        torch.manual_seed(1)

        def weights(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02

        self.embedding, self.places = weights(VOCABULARY, WIDTH), weights(LENGTH, WIDTH)
        self.layers = [(weights(WIDTH, 3 * WIDTH), weights(WIDTH, WIDTH), weights(WIDTH, 4 * WIDTH), weights(4 * WIDTH, WIDTH))
                       for _ in range(LAYERS)]
        self.keys, self.values = (torch.zeros(LAYERS, LENGTH, HEADS, WIDTH // HEADS, device="cuda", dtype=torch.bfloat16)
                                  for _ in range(2))
        self.token, self.position = (torch.zeros(1, device="cuda", dtype=torch.long) for _ in range(2))
        self.tokens, self.numbers = torch.zeros(LENGTH, device="cuda", dtype=torch.long), torch.arange(LENGTH, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def step(self):
        def normal(x):
            return torch.nn.functional.layer_norm(x, (WIDTH,))

        x = self.embedding[self.token] + self.places[self.position]
        for number, (attend, project, widen, narrow) in enumerate(self.layers):
            query, key, value = (part.view(1, HEADS, -1) for part in (normal(x) @ attend).chunk(3, -1))
            self.keys[number].index_copy_(0, self.position, key)
            self.values[number].index_copy_(0, self.position, value)
            scores = torch.einsum("hd,lhd->hl", query[0], self.keys[number]) / 8
            scores = scores.masked_fill(self.numbers > self.position, float("-inf")).softmax(-1)
            x = x + torch.einsum("hl,lhd->hd", scores, self.values[number]).reshape(1, WIDTH) @ project
            x = x + torch.nn.functional.gelu(normal(x) @ widen) @ narrow
        self.token.copy_((normal(x) @ self.embedding.T).argmax(-1))
        self.tokens.index_copy_(0, self.position, self.token)
        self.position += 1

    def generate(self, prompt):
        self.token.fill_(prompt)
        self.position.zero_()
        for _ in range(TOKENS):
            self.graph.replay()
        return self.tokens[:TOKENS].tolist()


def main():
    model = Model()
    prompts = [17, 4711, 50000]
    expected = [model.generate(prompt) for prompt in prompts]
    rest = int(sys.argv[1]) - torch.cuda.memory_reserved()
    pieces = [torch.full((PIECE // 4,), number, device="cuda", dtype=torch.int) for number in range(max(1, rest // PIECE))]
    torch.cuda.synchronize()
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        begin = time.perf_counter()
        tokens = model.generate(prompts[number % len(prompts)])
        seconds = time.perf_counter() - begin
        ends = torch.stack([piece[place] for piece in pieces for place in (0, -1)]).tolist()
        right = tokens == expected[number % len(prompts)] and ends == [number // 2 for number in range(len(ends))]
        print(json.dumps({"first_call": seconds, "right": right}), flush=True)


if __name__ == "__main__":
    main()
