"""A small training loop; prints the microseconds of one step."""

import time

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256),
                            torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs = torch.randn(64, 256, device="cuda")
labels = torch.randint(0, 10, (64,), device="cuda")


def step():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss


for _ in range(20):
    step()
torch.cuda.synchronize()
start = time.perf_counter()
for _ in range(100):
    step()
torch.cuda.synchronize()
print("torch_training_step_us", (time.perf_counter() - start) * 1e4)
