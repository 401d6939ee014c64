#!/usr/bin/env python3
"""NVRTC's compilations are kept in a cache between processes, as with a local driver.

    compile_cache_test.py --build FOLDER --wheels FOLDER [unittest arguments]
"""

import glob
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from servers import client_environment, run_tests, Server  # noqa: E402

BUILD = WHEELS = None

# Compiles a kernel for an architecture and prints the cubin's hash.
COMPILE = """
import ctypes, hashlib, sys
nvrtc = ctypes.CDLL(sys.argv[1])
program, size = ctypes.c_void_p(), ctypes.c_size_t()
code = b'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 3; }'
options = (ctypes.c_char_p * 1)(b"--gpu-architecture=" + sys.argv[2].encode())
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, b"scale.cu", 0, None, None) == 0
assert nvrtc.nvrtcCompileProgram(program, 1, options) == 0
assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
cubin = ctypes.create_string_buffer(size.value)
assert nvrtc.nvrtcGetCUBIN(program, cubin) == 0
print(hashlib.sha256(cubin.raw).hexdigest())
"""


class CompileCacheTest(unittest.TestCase):
    def setUp(self):
        self.server = Server(BUILD)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.nvrtc, = glob.glob(os.path.join(WHEELS, "lib/python*/site-packages/nvidia/cu13/lib/libnvrtc.so.13"))

    def tearDown(self):
        self.server.stop()

    def compile(self, architecture="sm_90", **more):
        """The cubin's hash, and the cache's answer to each of NVRTC's queries."""
        environment = client_environment(BUILD, [self.server], "shm", CUDA_CACHE_PATH=self.folder.name,
                                         RCUDA_LOG="debug", **more)
        result = subprocess.run([sys.executable, "-c", COMPILE, self.nvrtc, architecture], env=environment,
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        said = [line.rsplit(" ", 1)[1] for line in result.stderr.splitlines() if "compile cache: query" in line]
        return result.stdout.strip(), said

    def files(self):
        folder = os.path.join(self.folder.name, "rcuda")
        return sorted(os.listdir(folder)) if os.path.exists(folder) else []

    def test_the_second_process_finds_what_the_first_one_compiled(self):
        first, said = self.compile()
        self.assertEqual(said, ["new", "new"])
        self.assertEqual(len(self.files()), 2)
        self.assertEqual(self.compile(), (first, ["known", "known"]))
        other, said = self.compile("sm_80")
        self.assertEqual(said, ["new", "new"])
        self.assertNotEqual(other, first)

    def test_a_damaged_file_is_compiled_again(self):
        first, _ = self.compile()
        for name in self.files():
            os.truncate(os.path.join(self.folder.name, "rcuda", name), 100)
        self.assertEqual(self.compile(), (first, ["new", "new"]))
        self.assertEqual(self.compile(), (first, ["known", "known"]))

    def test_nothing_is_kept_if_the_user_does_not_want_it(self):
        first, _ = self.compile(CUDA_CACHE_DISABLE="1")
        self.assertEqual(self.files(), [])
        self.assertEqual(self.compile(CUDA_CACHE_MAXSIZE="100"), (first, ["new", "new"]))
        self.assertEqual(self.files(), [])


if __name__ == "__main__":
    run_tests(globals(), "wheels")
