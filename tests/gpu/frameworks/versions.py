"""Prints the versions of the packages that these programs use, as lines `name: version`."""

import importlib.metadata
import subprocess
import sys

PACKAGES = ["torch", "triton", "jax", "jaxlib", "jax-cuda13-plugin", "cupy-cuda13x", "numba", "numba-cuda",
            "onnxruntime", "onnxruntime-gpu", "cuda-bindings", "cuda-core", "cuda-toolkit", "numpy",
            "nvidia-cublas", "nvidia-cudnn-cu13"]

print(f"Python: {sys.version.split()[0]}")
for package in PACKAGES:
    try:
        print(f"{package}: {importlib.metadata.version(package)}")
    except importlib.metadata.PackageNotFoundError:
        pass
try:
    told = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                          capture_output=True, text=True, timeout=30)
    for line in told.stdout.splitlines()[:1]:
        name, driver = line.rsplit(", ", 1)
        print(f"GPU: {name}\nNVIDIA driver: {driver}")
except OSError:
    print("GPU: none that nvidia-smi knows of")
