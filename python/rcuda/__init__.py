"""GPUs of other machines, for unmodified CUDA programs.

    import rcuda
    rcuda.connect("node1:0,node2:0")   # before torch, cupy or another CUDA library is imported
    import torch

To run a program without a change, use `rcuda-run --devices node1:0 -- python program.py`.
"""

from importlib import metadata

from ._connect import connect, Error

__all__ = ["connect", "Error"]
__version__ = metadata.version("rcuda")
