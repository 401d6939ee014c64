#!/usr/bin/env python3
"""Containers of podman: with the CDI specification, a container of an image without rcuda has remote GPUs. And the
Containerfiles make images of a server and of a client.

    containers_test.py --build FOLDER --wheels FOLDER [unittest arguments]

The image is a new Debian with Python. If podman cannot run a container here, exits with 77 and says why. Takes some
minutes. podman writes only into a temporary folder, and all mounts are in a namespace of this test.
"""

import glob
import ipaddress
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(SOURCE, folder) for folder in ("tests/e2e", "tests/support")]
from new_debian import install_missing, make_debian, make_packages, skip  # noqa: E402
from servers import eventually, run_tests, Server  # noqa: E402

BUILD = WHEELS = None
IMAGE = "localhost/debian"
DEMO = "/opt/rcuda/lib/rcuda/demo"
# Makes podman run on machines that do not let a container change settings: only cgroups of version 2 are mounted, because
# crun does not support both versions together. $0: the folder for CDI specifications.
PREPARE = """
mount --make-rprivate /
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
  umount -R /sys/fs/cgroup
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
mkdir -p /etc/cdi
mount --bind "$0" /etc/cdi
exec "$@"
"""
COUNT = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so"), ctypes.c_int()
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""
# Uses packages of PyPI as they are: CuPy, and a client of NVML.
CUPY = """
import cupy, pynvml
print(cupy.cuda.runtime.getDeviceCount(), int((cupy.arange(1000) * 3).sum()))
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetCount())
"""


class ContainersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = os.environ["RCUDA_TEST_FOLDER"]
        archive = os.path.join(cls.folder, "debian.tar")
        make_debian("containers", archive, "--include=python3-minimal,libpython3-stdlib")
        cls.podman("import", archive, IMAGE)
        os.remove(archive)
        # By default, podman sets higher limits than some machines allow.
        limits = [f"--ulimit={name}={least}:{least}" for name, least in (("nofile", 1024), ("nproc", 4096))]
        cls.options = ["--rm", "--cgroups=disabled", *limits]
        tried = cls.run_podman("run", *cls.options, "--network=host", IMAGE, "true")
        if tried.returncode != 0:
            skip("containers", "podman cannot run a container here: " + " ".join(tried.stderr.split()))

    @classmethod
    def run_podman(cls, *arguments):
        folders = [f"--{name}={os.path.join(cls.folder, name)}" for name in ("root", "runroot")]
        return subprocess.run(["podman", *folders, "--runtime=crun", "--cgroup-manager=cgroupfs", *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)

    @classmethod
    def podman(cls, *arguments):
        result = cls.run_podman(*arguments)
        if result.returncode != 0:
            raise AssertionError(f"podman {arguments}: {result.returncode}\n{result.stdout}{result.stderr}")
        return result.stdout

    def server(self, **arguments):
        server = Server(BUILD, **arguments)
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, server.text()))
        return server

    def specify(self, *pool, **variables):
        """Writes the CDI specification of a pool. It applies to all containers that start from now on."""
        made = subprocess.run([os.path.join(BUILD, "bin/rcuda-run"), "--devices", ",".join(pool), "--cdi"],
                              env=dict(os.environ, **variables), capture_output=True, text=True, check=True)
        with open("/etc/cdi/rcuda.json", "w") as file:
            file.write(made.stdout)

    def run_image(self, *arguments, devices=("all",), network="host"):
        return self.run_podman("run", *self.options, f"--network={network}",
                               *(f"--device=rcuda/gpu={device}" for device in devices), *arguments)

    def check(self, result, output):
        self.assertEqual((result.returncode, result.stdout), (0, output), result.stderr)

    def test_an_image_has_the_gpus_of_two_servers(self):
        pool = [self.server(environment=dict(SOFTGPU_DEVICES="2"), index=index) for index in range(2)]
        self.specify(pool[0].address(0), pool[1].address(1), pool[1].address(0))
        result = self.run_image(IMAGE, DEMO)
        self.assertIn(" on 3 devices, 0 wrong", result.stdout, result.stderr)
        self.check(self.run_image(IMAGE, "python3", "-c", COUNT), "0 0 3\n")
        # A container can have any of the devices. It also has the device file that JAX looks for.
        for devices in (["1"], ["0", "2"], ["2", "1", "0"]):
            self.check(self.run_image(IMAGE, "python3", "-c", COUNT, devices=devices), f"0 0 {len(devices)}\n")
        self.check(self.run_image(IMAGE, "sh", "-c", "test -e /dev/nvidiactl; echo $?; touch /opt/rcuda/lib/a; echo $?"),
                   "0\n1\n")
        result = self.run_image(IMAGE, "true", devices=["3"])
        self.assertIn("rcuda/gpu=3", result.stderr)

    def test_programs_of_pypi(self):
        server = self.server(environment=dict(SOFTGPU_DEVICES="2"))
        self.specify(server.address(0), server.address(1))
        packages = [glob.glob(os.path.join(WHEELS, group, "lib/python*/site-packages"))[0]
                    for group in ("python-cuda13", "python-nvml")]
        volumes = [f"--volume={packages[0]}:/usr/local/lib/python3.11/dist-packages:ro", f"--volume={packages[1]}:/nvml:ro"]
        self.check(self.run_image(*volumes, "--env=PYTHONPATH=/nvml", "--env=CUPY_COMPILE_WITH_PTX=1", IMAGE,
                                  "python3", "-c", CUPY), f"2 {999 * 500 * 3}\n2\n")

    def test_a_server_of_root_on_this_machine(self):
        """The container has no network and reaches the server by its socket for containers."""
        server = self.server(options=("--users", "nobody"))
        self.specify(f"local@{server.port}:0")
        result = self.run_image("--user=nobody", IMAGE, DEMO, network="none")
        self.assertIn(" on 1 device, 0 wrong", result.stdout, result.stderr + server.text())
        result = self.run_image(IMAGE, DEMO, network="none")
        self.assertIn("root of another machine or of a container is not root", result.stderr)

    def test_a_network_of_its_own(self):
        """The container has a network of its own, so to the server it is another machine, and it needs a token."""
        tried = self.run_podman("run", *self.options, "--network=podman", IMAGE, "true")
        if tried.returncode != 0:
            self.skipTest("no network of its own for a container here: " + " ".join(tried.stderr.split()))
        (network,) = json.loads(self.podman("network", "inspect", "podman"))
        gateway = ipaddress.ip_network(network["subnets"][0]["subnet"])[1]
        home = os.path.join(self.folder, "home")
        os.mkdir(home)
        server = self.server(options=("--listen", "0.0.0.0"), environment=dict(XDG_CONFIG_HOME=home, RCUDA_SERVER_USERS="root"))
        address = f"{gateway}@{server.port}:0"
        self.specify(address, XDG_CONFIG_HOME=home)
        result = self.run_image(IMAGE, DEMO, network="podman")
        self.assertIn("no credentials", result.stderr)
        token = subprocess.run([os.path.join(BUILD, "bin/rcuda-token"), "create", "--server", "*", "--user", "root"], check=True, capture_output=True,
                               text=True, env=dict(os.environ, XDG_CONFIG_HOME=home)).stdout
        os.makedirs(home + "/rcuda", exist_ok=True)
        with open(os.open(home + "/rcuda/token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(token)
        self.specify(address, XDG_CONFIG_HOME=home)
        result = self.run_image(IMAGE, DEMO, network="podman")
        self.assertIn(" on 1 device, 0 wrong", result.stdout, result.stderr)

    def test_the_containerfiles(self):
        packages = os.path.join(self.folder, "packages")
        make_packages(BUILD, packages)
        for name, more in (("server", ["--build-arg=PACKAGES=rcuda-server rcuda-tools rcuda-softgpu"]), ("client", [])):
            file = os.path.join(SOURCE, f"packaging/containers/{name}.Containerfile")
            self.podman("build", "--layers=false", "--isolation=chroot", "--network=host", f"--build-arg=BASE={IMAGE}",
                        *more, f"--file={file}", f"--tag=rcuda-{name}", packages)
        port = self.server().port  # a port that was free: the container uses this machine's network
        self.doCleanups()
        server = self.podman("run", *self.options, "--network=host", "--detach", "rcuda-server",
                             "--port", port).strip()
        self.addCleanup(self.run_podman, "stop", server)
        self.assertTrue(eventually(lambda: "serving " in self.run_podman("logs", server).stderr))
        token = os.path.join(self.folder, "token")
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(self.podman("exec", server, "rcuda-token", "create", "--server", "*"))
        result = self.run_podman("run", *self.options, "--network=host", f"--volume={token}:/token",
                                 "--env=RCUDA_TOKEN_FILE=/token", f"--env=RCUDA_DEVICES=127.0.0.1@{port}:0",
                                 "--env=RCUDA_TRANSPORT=tcp", "--env=RCUDA_SECURITY=tls", "rcuda-client", "--demo")
        self.assertIn(" on 1 device, 0 wrong", result.stdout, result.stderr)
        self.assertIn("softgpu", self.podman("exec", server, "rcuda-smi", f"127.0.0.1:{port}"))


def enter_namespace():
    """Starts this program again, in a mount namespace that is prepared for podman."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "cdi"))
        had_bridge = os.path.exists("/sys/class/net/cni-podman0")
        ended = subprocess.run(["unshare", "--mount", "sh", "-ec", PREPARE, os.path.join(folder, "cdi"), sys.executable,
                                *sys.argv], env=dict(os.environ, RCUDA_TEST_FOLDER=folder))
        if not had_bridge:
            subprocess.run(["ip", "link", "delete", "cni-podman0"], stderr=subprocess.DEVNULL)
    sys.exit(ended.returncode)


if __name__ == "__main__":
    if "RCUDA_TEST_FOLDER" not in os.environ:
        install_missing("containers", "containers", "bare", "packages")
        enter_namespace()
    run_tests(globals(), "wheels")
