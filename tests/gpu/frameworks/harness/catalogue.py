"""The programs: what each is called in the table, and how it is run."""

import ast
import os

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Program:
    def __init__(self, framework, name, seconds=120, shards=0, apart=False, stand_in=False):
        self.framework = framework
        self.name = name
        self.seconds = seconds  # without a new line of a case, it hangs
        self.shards = shards    # processes that divide the cases among themselves; 0: cases have names
        self.apart = apart      # each case in a process of its own
        self.stand_in = stand_in  # remotely there is a file by the name of a device (hide_gpu.py)
        self.path = os.path.join(FOLDER, name + ".py")

    def title(self, case):
        """What a case is called in the table, where the framework stands before it."""
        if self.name.endswith("_programs"):
            return case
        return f"{self.name.split('_', 1)[1]}/{case}"

    def cases(self):
        """The names of its cases, in order, without running it."""
        if self.shards:
            return []
        with open(self.path) as file:
            tree = ast.parse(file.read())
        return [node.name.replace("_", "-") for node in tree.body if isinstance(node, ast.FunctionDef)
                and any(isinstance(mark, ast.Attribute) and mark.attr == "case"
                        for mark in node.decorator_list)]


# Those that take longest come first; the operators fill what is left of the cores.
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
