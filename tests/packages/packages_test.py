#!/usr/bin/env python3
"""Debian packages of a build: lintian finds no fault, and in a new Debian without a compiler or a CUDA toolkit, a
program uses the GPUs of the packages' server. Under a systemd that this test boots, the service starts, reloads, is
upgraded and is watched.

    packages_test.py --build FOLDER [unittest arguments]

If that is not possible here, exits with 77 and says why. Takes some minutes, most of them to make the new Debian.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(SOURCE, "tests/e2e"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
from new_debian import install_missing, make_debian, make_packages  # noqa: E402
from servers import run_tests, UNUSABLE_SETTINGS  # noqa: E402

BUILD = None
TREE = "/usr/lib/rcuda"
UNIT = "/lib/systemd/system/rcuda-server.service"
EXPORTER_UNIT = "/lib/systemd/system/rcuda-exporter.service"
# Runs a command in the new Debian. The command sees this machine's devices and the processes of its own namespace.
INSIDE = """
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount -t sysfs sysfs "$0/sys" 2>/dev/null || mount --rbind /sys "$0/sys"
exec chroot "$0" "$@"
"""


class PackagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = temporary.name
        os.chmod(cls.folder, 0o755)
        make_packages(BUILD, cls.folder)
        cls.root = os.path.join(cls.folder, "debian")
        os.mkdir(cls.root)
        make_debian("packages", cls.root, "--skip=cleanup/apt/lists")
        for file in ("/etc/resolv.conf", "/etc/hosts"):
            shutil.copy(file, cls.root + file)
        os.mkdir(cls.root + "/packages")
        # Without the package for Slurm, which needs Slurm and Python; tests/slurm runs its files.
        for package in set(glob.glob(os.path.join(cls.folder, "*.deb"))) - set(cls.slurm_package()):
            shutil.copy(package, cls.root + "/packages")
        cls.demo_of_archive = cls.try_archive()
        # Also systemd, which the packages do not need, but which most machines have, and procps for systemd_steps (pgrep).
        cls.inside("sh", "-ec", "apt-get install -y -qq --no-install-recommends systemd procps /packages/*.deb",
                   DEBIAN_FRONTEND="noninteractive")
        cls.inside("useradd", "--groups", "rcuda", "ada")
        cls.inside("useradd", "eve")

    @classmethod
    def tearDownClass(cls):
        cls.inside("apt-get", "purge", "-y", "-qq", "rcuda-.*", DEBIAN_FRONTEND="noninteractive")
        left = [path for path in ("/etc/rcuda", TREE, UNIT, EXPORTER_UNIT, "/var/lib/rcuda-exporter")
                if os.path.exists(cls.root + path)]
        if left:
            raise AssertionError(f"left after a purge: {left}")

    @classmethod
    def try_archive(cls):
        """Runs the demonstration from the archive, in the new Debian before any package is installed, with only the
        libraries that README names for the archive. Returns what the demonstration prints."""
        with open(os.path.join(SOURCE, "README.md")) as file:
            (libraries,) = re.findall(r"(?m)^    apt install (libssl3 .*)$", file.read())
        (archive,) = glob.glob(os.path.join(cls.folder, "rcuda-*.tar.xz"))
        os.mkdir(cls.root + "/archive")
        subprocess.run(["tar", "-xf", archive, "--strip-components=1", "-C", cls.root + "/archive"], check=True)
        cls.inside("sh", "-ec", f"apt-get install -y -qq --no-install-recommends {libraries}",
                   DEBIAN_FRONTEND="noninteractive")
        for tool in os.listdir(cls.root + "/archive/bin"):
            cls.inside(f"/archive/bin/{tool}", "--version")
        return cls.inside("/archive/bin/rcuda-run", "--demo")

    @classmethod
    def slurm_package(cls):
        return glob.glob(os.path.join(cls.folder, "rcuda-slurm_*.deb"))

    @classmethod
    def command(cls, *command, user=None):
        if user:
            command = ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *command)
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", INSIDE, cls.root, *command]

    @classmethod
    def inside(cls, *command, user=None, status=0, **variables):
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/", **variables}
        result = subprocess.run(cls.command(*command, user=user), env=environment, stdin=subprocess.DEVNULL,
                                capture_output=True, text=True)
        if result.returncode != status:
            raise AssertionError(f"{command}: {result.returncode}\n{result.stdout}{result.stderr}")
        return result.stdout + result.stderr

    def test_lintian_finds_nothing(self):
        (changes,) = glob.glob(os.path.join(self.folder, "*.changes"))
        result = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", changes],
                                capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def test_the_archive(self):
        self.assertIn(" on 1 device, 0 wrong", self.demo_of_archive)
        for file in ("examples/rcuda-server.service", "examples/server.toml", "examples/rcuda-exporter.service"):
            self.inside("test", "-e", f"/archive/share/rcuda/{file}")

    def test_neither_compiler_nor_toolkit_is_there(self):
        for program in ("cc", "gcc", "clang", "nvcc", "python3"):
            self.inside("sh", "-c", f"command -v {program}", status=127)
        self.assertNotIn("cuda", self.inside("ldconfig", "-p"))

    def test_the_package_for_slurm(self):
        (package,) = self.slurm_package()
        depends = subprocess.run(["dpkg-deb", "--field", package, "Depends"], capture_output=True, text=True, check=True)
        self.assertRegex(depends.stdout, r"slurm-wlm-basic-plugins \(>= \d+\.\d+\), slurm-wlm-basic-plugins \(<< ")
        self.assertIn("rcuda-tools (=", depends.stdout)
        folder = os.path.join(self.folder, "slurm")
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        files = os.listdir(folder + TREE + "/lib/slurm")
        self.assertEqual(sorted(files), ["job_submit.lua", "pool.py", "rcuda-hetjob", "rcuda-slurm", "rcuda-slurmctld",
                                         "rcuda.lua", "spank_rcuda.so", "state.py"])
        self.assertTrue(os.path.exists(folder + "/usr/lib/tmpfiles.d/rcuda-slurm.conf"))
        units = [folder + f"/lib/systemd/system/rcuda-slurm.{kind}" for kind in ("service", "timer")]
        with open(units[0]) as file:
            (program,) = re.findall("(?m)^ExecStart=([^ ]*)", file.read())
        self.assertTrue(os.access(folder + program, os.X_OK))

    def test_the_demonstration(self):
        shown = self.inside("rcuda-run", "--demo", user="ada")
        self.assertIn("started /usr/lib/rcuda/bin/rcuda-server", shown)
        self.assertIn("softgpu", shown)
        self.assertIn(" on 1 device, 0 wrong", shown)

    def test_the_service_serves_its_group(self):
        """The server runs with the installed configuration and with only the capabilities that the unit grants."""
        with open(self.root + UNIT) as file:
            (granted,) = re.findall(r"(?m)^CapabilityBoundingSet=(.*)$", file.read())
        bounds = ",".join(["-all", *(name.lower().replace("cap_", "+") for name in granted.split())])
        shown = self.inside("bash", "-c", """
mkfifo /ready
setpriv --no-new-privs --bounding-set="$0" rcuda-server --port 0 --ready-fd 9 9<>/ready &
read -r port </ready
for user in ada eve; do
  setpriv --reuid=$user --regid=$user --init-groups rcuda-run --demo --devices 127.0.0.1@$port:0
  echo "$user: $?"
done
rcuda-token create --user ada
kill %1
wait %1
echo "server: $?"
""", bounds)
        self.assertIn("\nada: 0\n", shown)
        self.assertRegex(shown, r"(?m)^eve: [1-9]")
        self.assertIn("--users", shown)  # the refusal names the remedy
        self.assertRegex(shown, r"(?m)^\S+ rcuda1\.")
        self.assertIn("\nserver: 0\n", shown)
        self.assertNotIn("workers see the device nodes", shown)  # CAP_SYS_ADMIN suffices to hide them

    def test_the_configuration(self):
        self.assertIn("/etc/rcuda/server.toml", self.inside("dpkg-query", "-W", "-f=${Conffiles}", "rcuda-server"))
        self.assertIn("is usable", self.inside("rcuda-server", "--check-config"))
        self.inside("rcuda-server", "--check-config", status=UNUSABLE_SETTINGS, RCUDA_SERVER_PORT="none")

    def test_the_unit(self):
        # The new Debian has no man, so the page that the unit names is not looked for.
        with open(self.root + UNIT) as file:
            self.assertIn(f"RestartPreventExitStatus=2 {UNUSABLE_SETTINGS}\n", file.read())
        exposure = self.inside("systemd-analyze", "security", "--offline=true", "--no-pager", UNIT)
        (level,) = re.findall(r"Overall exposure level.*?: ([0-9.]+)", exposure)
        self.assertLess(float(level), 5.0, exposure)

    def test_a_real_systemd(self):
        """Boots the new Debian in the virtual machine of tests/rdma, whose kernel serves any root."""
        rig = os.path.join(SOURCE, "tests/rdma")
        cache = os.path.join(BUILD, "rdma-vm")
        subprocess.run([rig + "/build_vm", cache], check=True)
        shared = os.path.join(self.folder, "shared")
        os.mkdir(shared)
        for file in (os.path.join(HERE, "systemd_steps"), os.path.join(BUILD, "tests/e2e/endless")):
            shutil.copy(file, shared)
        result = subprocess.run([rig + "/in_vm", "--cache", cache, "--share", shared, "--root", self.root, "--systemd",
                                 "--timeout", "900", "--", "bash", shared + "/systemd_steps", shared + "/endless"],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("passed  the service starts", result.stdout)
        print(result.stdout)

    def test_the_exporter_is_a_user_of_its_own(self):
        with open(self.root + EXPORTER_UNIT) as file:
            self.assertIn("\nUser=rcuda-exporter\n", file.read())
        self.assertFalse(os.path.exists(self.root + "/etc/systemd/system/multi-user.target.wants/rcuda-exporter.service"))
        exposure = self.inside("systemd-analyze", "security", "--offline=true", "--no-pager", EXPORTER_UNIT)
        (level,) = re.findall(r"Overall exposure level.*?: ([0-9.]+)", exposure)
        self.assertLess(float(level), 3.0, exposure)
        # As docs/monitoring.md describes: with the token of an observer, the exporter reports all sessions of a server
        # of this machine.
        shown = self.inside("bash", "-ec", """
rcuda-token create --server localhost --role observer >/token
mkfifo /exporter-ready
rcuda-server --ready-fd 9 9<>/exporter-ready &
read -r port </exporter-ready
install -D -m 600 -o rcuda-exporter /token /var/lib/rcuda-exporter/token
chown rcuda-exporter /var/lib/rcuda-exporter
set -a
. /etc/default/rcuda-exporter
scrape() {
  setpriv --reuid=rcuda-exporter --regid=rcuda-exporter --clear-groups rcuda-exporter $ARGS &
  exporter=$!
  until exec 8<>/dev/tcp/127.0.0.1/9309; do sleep 0.1; done 2>/dev/null
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&8
  echo "$1"; cat <&8
  kill $exporter
  wait $exporter
}
scrape without
RCUDA_TOKEN_FILE=/var/lib/rcuda-exporter/token RCUDA_SECURITY=tls scrape with
kill %1
wait %1
""")
        without, _, with_token = shown.partition("\nwith\n")
        self.assertNotIn("rcuda_worker_starts_total{", without)
        self.assertRegex(with_token, r"rcuda_worker_starts_total\{.*\} [1-9]")

    def test_manuals_and_completions(self):
        tools = sorted(os.path.basename(tool) for tool in glob.glob(f"{self.root}{TREE}/bin/*"))
        self.assertEqual(len(tools), 8)
        for tool in tools:
            self.assertRegex(self.inside(f"/usr/bin/{tool}", "--version"), rf"^{tool} [0-9.]+ \(build [0-9a-f]{{12}}\)\n$")
            section = 8 if tool == "rcuda-server" else 1
            self.inside("test", "-e", f"/usr/share/man/man{section}/{tool}.{section}.gz")
            for completion in (f"zsh/vendor-completions/_{tool}", f"fish/vendor_completions.d/{tool}.fish"):
                self.inside("test", "-e", f"/usr/share/{completion}")
            completed = self.inside("bash", "-ec", f"source /usr/share/bash-completion/completions/{tool}; "
                                    f"COMP_WORDS=({tool} --h); _{tool.replace('-', '_')} {tool} --h {tool}; "
                                    "echo ${COMPREPLY[@]}")
            self.assertEqual(completed, "--help\n", tool)
        self.assertNotIn(", now ]", self.inside("rcuda-server", "--help"))
        self.inside("test", "-e", "/usr/share/man/man5/server.toml.5.gz")

    def test_pages_examples_and_logrotate(self):
        for package in ("rcuda-client", "rcuda-server", "rcuda-tools"):
            pages = os.listdir(f"{self.root}/usr/share/doc/{package}")
            for page in ("monitoring.md", "operate.md", "security.md"):
                self.assertTrue({page, page + ".gz"} & set(pages), (package, pages))
        self.inside("test", "-e", "/usr/share/doc/rcuda-tools/examples/rcuda.rules.yml")
        with open(self.root + "/etc/logrotate.d/rcuda-server") as file:
            self.assertIn("/var/log/rcuda/*.json", file.read())

    def test_an_upgrade_does_not_stop_the_server(self):
        for script in ("prerm", "postinst"):
            with open(f"{self.root}/var/lib/dpkg/info/rcuda-server.{script}") as file:
                text = file.read()
            self.assertNotIn("restart", text)
            # The scripts stop the server only before a removal.
            for line in re.findall(r"(?m)^.*deb-systemd-invoke +stop.*$", text):
                self.assertIn('[ "$1" = remove ]', text[:text.index(line)])


if __name__ == "__main__":
    install_missing("packages", "packages", "bare", "rdma")
    run_tests(globals())
