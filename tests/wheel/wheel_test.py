#!/usr/bin/env python3
"""The client's wheel in a fresh virtual environment: programs, NVML's clients and CuPy on a server with softgpu.

    wheel_test.py --build FOLDER --wheels FOLDER [--made] [unittest arguments]

By default the wheel contains what is built in FOLDER. --made: the wheel is the one for any Linux, which
scripts/make_wheel builds first.
"""

import glob
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(SOURCE, "tests/e2e"))
from servers import run_tests, Server  # noqa: E402

BUILD = WHEELS = None
MADE = "--made" in sys.argv

# Opens the driver by both names, as programs do, and adds two numbers on the GPU.
USE = """
import ctypes
def use():
    for name in ("libcuda.so", "libcuda.so.1"):
        cuda, count, memory, context = ctypes.CDLL(name), ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
        assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert cuda.cuCtxSetCurrent(context) == 0
        assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(8)) == 0
        word = ctypes.c_uint64(0)
        assert cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(0xa5), ctypes.c_size_t(8)) == 0
        assert cuda.cuMemcpyDtoH_v2(ctypes.byref(word), memory, ctypes.c_size_t(8)) == 0
        assert word.value == 0xa5a5a5a5a5a5a5a5
    print(count.value, "devices")
"""


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = temporary.name
        if MADE:
            subprocess.run([os.path.join(SOURCE, "scripts/make_wheel"), "--architecture", platform.machine(),
                            "--output", cls.folder], check=True, stdout=subprocess.DEVNULL)
        else:
            subprocess.run([os.path.join(SOURCE, "scripts/make_wheel"), "--build", BUILD, "--output", cls.folder],
                           check=True, stdout=subprocess.DEVNULL)
        (cls.wheel,) = glob.glob(cls.folder + "/*.whl")
        # A wheel of the other architecture lies beside it, as after make_wheel; pip must choose the right one.
        other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
        shutil.copy(cls.wheel, cls.wheel.replace(platform.machine(), other))
        cls.venv = os.path.join(cls.folder, "venv")
        # With the Python for which CuPy is installed.
        subprocess.run([os.path.join(WHEELS, "python-cuda13/bin/python"), "-m", "venv", "--without-pip", cls.venv],
                       check=True)
        subprocess.run([sys.executable, "-m", "pip", "--python", cls.venv + "/bin/python", "install", "--quiet",
                        "--no-index", "--disable-pip-version-check", "--root-user-action=ignore",
                        "--find-links", cls.folder, "rcuda"], check=True)
        (packages,) = glob.glob(cls.venv + "/lib/python*/site-packages")
        with open(os.path.join(packages, "clients.pth"), "w") as file:
            for group in ("python-cuda13", "python-nvml"):
                (others,) = glob.glob(os.path.join(WHEELS, group, "lib/python*/site-packages"))
                file.write(others + "\n")

    def setUp(self):
        self.server = Server(BUILD, environment=dict(SOFTGPU_DEVICES="2"))

        def stop():
            self.assertEqual(self.server.stop(), 0, self.server.text())
        self.addCleanup(stop)
        self.pool = f"{self.server.address(1)},{self.server.address(0)}"

    def run_in_venv(self, *command, **variables):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("RCUDA_", "LD_", "PYTHON"))}
        environment.update(variables, PATH=self.venv + "/bin:" + os.environ["PATH"])
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.folder)

    def python(self, text, **variables):
        return self.run_in_venv("python", "-c", text, **variables)

    def check(self, result, output):
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout, output)

    def check_error(self, text, *said, **variables):
        result = self.python("import rcuda\ntry:\n    " + text.replace("\n", "\n    ") +
                             "\nexcept rcuda.Error as error:\n    print(error)\n", **variables)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for part in said:
            self.assertIn(part, result.stdout)

    def test_commands_run_a_program(self):
        for command in (["rcuda-run"], ["python", "-m", "rcuda"]):
            result = self.run_in_venv(*command, "--devices", self.pool, "--demo")
            self.assertIn("1728 points on 2 devices, 0 wrong\n", result.stdout)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
        program = os.path.join(BUILD, "tests/programs/vector_add")
        with open(os.path.join(SOURCE, "tests/programs/expected/vector_add.txt")) as expected:
            self.check(self.run_in_venv("rcuda-run", "--devices", self.pool, "--", program), expected.read())
        self.check(self.run_in_venv("rcuda-run", "--devices", self.pool, "--", "python", "-c", USE + "use()"),
                   "2 devices\n")

    def test_connect(self):
        text = USE + f"import rcuda\nprint(*rcuda.connect('{self.pool}'), sep=', ')\nuse()\n"
        name = "softgpu"
        result = self.python(text)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, rf"^.*{name}.*, .*{name}.*\n2 devices\n$")

    def test_cupy_and_nvml(self):
        text = (f"import rcuda; rcuda.connect('{self.pool}')\n"
                "import cupy, pynvml, os, signal, subprocess, sys\n"
                "print(cupy.cuda.runtime.getDeviceCount(), int((cupy.arange(1000) * 3).sum()))\n"
                "pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())\n"
                "handle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
                "print(os.getpid() in [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)])\n")
        self.check(self.python(text, CUPY_COMPILE_WITH_PTX="1"), f"2 {999 * 500 * 3}\n2\nTrue\n")

    def test_child_processes_have_the_gpus(self):
        text = USE + f"""
import multiprocessing, rcuda
if __name__ == "__main__":
    rcuda.connect("{self.pool}")
    for method in ("spawn", "fork"):
        process = multiprocessing.get_context(method).Process(target=use)
        process.start()
        process.join()
        assert process.exitcode == 0
"""
        path = os.path.join(self.folder, "children.py")
        with open(path, "w") as file:
            file.write(text)
        self.check(self.run_in_venv("python", path), "2 devices\n2 devices\n")

    def test_connect_twice(self):
        self.check_error(f"assert len(rcuda.connect('{self.pool}')) == 2\n"
                         f"assert len(rcuda.connect('{self.pool}')) == 2\n"
                         "rcuda.connect('elsewhere:0')", self.pool, "elsewhere:0", "use another process")

    def test_connect_in_a_program_of_rcuda_run(self):
        text = "import rcuda\nprint(len(rcuda.connect()))\ntry:\n    rcuda.connect('elsewhere:0')\n" \
               "except rcuda.Error:\n    print('refused')"
        self.check(self.run_in_venv("rcuda-run", "--devices", self.pool, "--", "python", "-c", text), "2\nrefused\n")
        other = "import rcuda\ntry:\n    rcuda.connect('elsewhere:0')\nexcept rcuda.Error as error:\n    print(error)"
        result = self.run_in_venv("rcuda-run", "--devices", self.pool, "--", "python", "-c", other)
        self.assertIn("start it without rcuda-run", result.stdout)

    def test_what_is_wrong_is_named(self):
        self.check_error("rcuda.connect()", "no GPUs are named", "RCUDA_DEVICES")
        self.check_error("rcuda.connect('127.0.0.1@1:0')", "no connection to 127.0.0.1@1:0", "127.0.0.1")
        self.check_error("rcuda.connect('nonsense')", "nonsense", "host")
        self.check_error(f"rcuda.connect('{self.server.address(7)}')",
                         "does not offer device 7 (it offers 0 and 1): correct RCUDA_DEVICES")

    def test_connect_comes_too_late(self):
        for module in ("cupy", "pynvml"):
            self.check_error(f"import {module}\nrcuda.connect('{self.pool}')", module, "before")
        driver = os.path.join(self.folder, "libcuda.so.1")
        if not os.path.exists(driver):
            os.symlink(os.path.join(BUILD, "softgpu/lib/libcuda.so.1"), driver)
        self.check_error(f"import ctypes\nctypes.CDLL('{driver}')\nrcuda.connect('{self.pool}')", "libcuda.so",
                         "already loaded", "rcuda-run")

    def test_the_version(self):
        result = self.python("import rcuda, json; print(json.dumps(rcuda.__version__))")
        with open(os.path.join(BUILD, "CMakeCache.txt")) as cache:
            self.assertIn(f"CMAKE_PROJECT_VERSION:STATIC={json.loads(result.stdout)}\n", cache.read())


if __name__ == "__main__":
    if MADE:
        if not shutil.which("apt-get"):
            print("wheel.made: SKIPPED: a wheel is made from Debian's packages, and there is no apt-get")
            sys.exit(77)
        sys.argv.remove("--made")
    run_tests(globals(), "wheels")
