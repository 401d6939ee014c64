"""What a new user of PyTorch tries first: a sum, matrix products, a convolution, a transform, training steps.

Together they use cuBLAS, cuBLASLt (the biased product in half precision), cuDNN and cuFFT.

Prints one line per step. Order and rounding of the lines do not depend on where the GPU is.
"""

import torch

torch.manual_seed(0)
device = "cuda"

print("sum", torch.ones(8, device=device).sum().item())

a = torch.randn(256, 256)
product = (a.to(device) @ a.to(device)).cpu()
print("matmul", torch.allclose(product, a @ a, rtol=1e-2, atol=1e-2))

half, bias = a.half().to(device), torch.randn(256).half().to(device)
biased = torch.nn.functional.gelu(torch.addmm(bias, half, half)).float().cpu()
print("addmm", torch.allclose(biased, torch.nn.functional.gelu(a @ a + bias.float().cpu()), atol=0.5))

spectrum = torch.fft.rfft2(a.to(device))
print("fft", torch.allclose(torch.fft.irfft2(spectrum).cpu(), a, atol=1e-4))

image = torch.randn(2, 3, 32, 32)
weights = torch.randn(8, 3, 3, 3)
there = torch.nn.functional.conv2d(image.to(device), weights.to(device), padding=1).cpu()
here = torch.nn.functional.conv2d(image, weights, padding=1)
print("conv", torch.allclose(there, here, rtol=1e-2, atol=1e-2))

model = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs = torch.randn(32, 64, device=device)
labels = torch.randint(0, 10, (32,), device=device)
before = None
for _ in range(5):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    before = before or loss.item()
print("training", loss.item() < before)
print("all steps done")
