"""The programs: their names in the table, and how they run."""

import ast
import os

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Program:
    def __init__(self, framework, name, seconds=120, shards=0, apart=False, stand_in=False):
        self.framework = framework
        self.name = name
        self.seconds = seconds  # a program that writes no line for this time hangs
        self.shards = shards    # number of processes that share the cases; 0: cases have names
        self.apart = apart      # each case runs in its own process
        self.stand_in = stand_in  # remote runs have an empty /dev/nvidiactl (hide_gpu.py)
        self.path = os.path.join(FOLDER, name + ".py")

    def title(self, case):
        """The name of a case in the table, after the framework's name."""
        if self.name.endswith("_programs"):
            return case
        return f"{self.name.split('_', 1)[1]}/{case}"

    def cases(self):
        """The names of the program's cases, in order. Reads them from the source, without running the program."""
        if self.shards:
            return []
        with open(self.path) as file:
            tree = ast.parse(file.read())
        return [node.name.replace("_", "-") for node in tree.body if isinstance(node, ast.FunctionDef)
                and any(isinstance(mark, ast.Attribute) and mark.attr == "case"
                        for mark in node.decorator_list)]


# The longest programs come first; the operators use the remaining cores.
PROGRAMS = [
    Program("PyTorch", "torch_compile", seconds=240, apart=True),
    Program("PyTorch", "torch_training"),
    Program("PyTorch", "torch_graphs"),
    Program("PyTorch", "torch_kernels"),
    Program("PyTorch", "torch_loading"),
    Program("PyTorch", "torch_memory"),
    Program("PyTorch", "torch_processes"),
    Program("PyTorch", "torch_profiler"),
    Program("JAX", "jax_programs", seconds=180, stand_in=True),
    Program("JAX", "jax_autotuned", seconds=180, stand_in=True),
    Program("JAX", "jax_graphs", seconds=180, stand_in=True),
    Program("JAX", "jax_detection"),
    Program("Triton", "triton_programs", seconds=180),
    Program("CuPy", "cupy_programs"),
    Program("numba", "numba_programs"),
    Program("ONNX Runtime", "onnx_programs"),
    Program("cuda-python", "cuda_python_programs"),
    Program("driver", "driver_calls"),
    Program("PyTorch", "torch_operators", seconds=60, shards=8),
]
