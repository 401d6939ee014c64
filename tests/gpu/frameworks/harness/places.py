"""Where a program runs: natively, or remotely as on a machine without a GPU."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HIDE = os.path.join(FOLDER, "hide_gpu.py")


class Server:
    """rcuda-server of the build folder, on a free port."""

    def __init__(self, build, out, driver, sessions):
        self.log = os.path.join(out, "logs", "server.log")
        self.build = build
        images = os.path.join(out, "work", "images")
        os.makedirs(images, mode=0o700, exist_ok=True)
        environment = dict(os.environ, RCUDA_DRIVER=driver, RCUDA_LOG="info", RCUDA_SERVER_IMAGE_CACHE=images)
        read_end, write_end = os.pipe()
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [os.path.join(build, "bin/rcuda-server"), "--port", "0", "--devices", "0", "--pool",
                 str(min(sessions, 6)), "--ready-fd", str(write_end)],
                env=environment, pass_fds=[write_end], stdout=log, stderr=log)
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            self.port = ready.readline().strip()
        if not self.port:
            self.stop()
            raise SystemExit(f"rcuda-server did not start, see {self.log}")

    def sessions(self):
        """The number of sessions, or the error of rcuda-smi as a text."""
        told = subprocess.run([os.path.join(self.build, "bin/rcuda-smi"), f"127.0.0.1@{self.port}"],
                              capture_output=True, text=True)
        if told.returncode:
            return f"rcuda-smi failed: {told.stderr.strip()[-100:]}"
        return len(re.findall(r", worker ", told.stdout))

    def sessions_left(self, seconds=20):
        """The number of sessions after all programs have ended. Waits, because a session ends after its kernels."""
        end = time.monotonic() + seconds
        while self.sessions() != 0 and time.monotonic() < end:
            time.sleep(0.2)
        return self.sessions()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


class Places:
    """Makes the commands and environments of tasks. `server` must be set before a remote task."""

    def __init__(self, options, build, out):
        self.options, self.build, self.out, self.server = options, build, out, None
        self.cache = os.path.join(out, "work", "ld.so.cache")
        self.isolated = False
        # A short name, because sockets of worker processes are in TMPDIR, and a path of a socket has at most 107 bytes.
        self.scratch = tempfile.mkdtemp(prefix="fw.", dir="/tmp")

    def close(self):
        shutil.rmtree(self.scratch, ignore_errors=True)

    def isolate(self):
        """Prepares the isolation of remote programs from this machine's GPU. Returns the reason if that is not possible."""
        made = subprocess.run([sys.executable, HIDE, "--", "/sbin/ldconfig", "-X", "-C", self.cache],
                              capture_output=True, text=True)
        self.isolated = made.returncode == 0 and os.path.exists(self.cache)
        if self.isolated:
            return ""
        return (made.stderr.strip().splitlines() or ["hide_gpu.py failed and gave no reason"])[-1]

    def environment(self, task):
        work = os.path.join(self.out, "work", task.label)
        temporary = os.path.join(self.scratch, hashlib.sha256(task.label.encode()).hexdigest()[:12])
        os.makedirs(temporary, exist_ok=True)
        environment = dict(os.environ)
        for name in list(environment):
            if name.startswith("RCUDA_") or name == "LD_PRELOAD":
                del environment[name]
        environment.update(
            FRAMEWORKS_MODE=task.mode, PYTHONUNBUFFERED="1", PYTHONHASHSEED="0",
            PYTHONDONTWRITEBYTECODE="1", PYTHONFAULTHANDLER="1",
            CUDA_VISIBLE_DEVICES="0", CUDA_CACHE_PATH=os.path.join(work, "cuda"),
            CUBLAS_WORKSPACE_CONFIG=":4096:8", OMP_NUM_THREADS="2",
            TRITON_CACHE_DIR=os.path.join(work, "triton"),
            TORCHINDUCTOR_CACHE_DIR=os.path.join(work, "inductor"),
            TORCHINDUCTOR_COMPILE_THREADS="2", PYTORCH_KERNEL_CACHE_PATH=os.path.join(work, "torch"),
            CUPY_CACHE_DIR=os.path.join(work, "cupy"), NUMBA_CACHE_DIR=os.path.join(work, "numba"),
            XLA_PYTHON_CLIENT_PREALLOCATE="false", TF_CPP_MIN_LOG_LEVEL="2", JAX_PLATFORMS="cuda",
            TMPDIR=temporary)
        return environment

    def __call__(self, task, arguments):
        command = [sys.executable, *arguments]
        environment = self.environment(task)
        if task.mode.startswith("native"):
            if self.options.driver == "softgpu":
                libraries = os.path.join(self.build, "softgpu/lib")
                environment["LD_LIBRARY_PATH"] = ":".join(
                    filter(None, [libraries, environment.get("LD_LIBRARY_PATH")]))
            return command, environment
        command = [os.path.join(self.build, "bin/rcuda-run"), "--devices",
                   f"127.0.0.1@{self.server.port}:0", "--transport", task.mode.split("-")[0], "--", *command]
        if self.isolated:
            command = [sys.executable, HIDE, "--cache", self.cache,
                       *(["--stand-in"] if task.program.stand_in else []), "--", *command]
        return command, environment


def proof(mode, process, build):
    """The problem if a process used a wrong libcuda or could open a device, otherwise an empty text."""
    loaded = " ".join(process.get("driver", ["none"])).split()
    reached = [node for node in " ".join(process.get("devices", ["none"])).split() if node != "none"]
    paths = {path for path in loaded if path != "none"}
    own = {path for path in paths if path.startswith(os.path.join(build, "lib") + "/")}
    if mode.startswith("native"):
        return f"used {' '.join(sorted(own))}" if own else ""
    if paths - own:
        return "loaded " + " ".join(sorted(paths - own))
    if not any(os.path.basename(path) == "librcuda.so" for path in own):
        return "did not load librcuda.so"
    return f"could open {' '.join(reached)}" if reached else ""
