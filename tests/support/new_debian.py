"""Helpers for tests of installed files: Debian's packages on this machine, our packages, and a new Debian.

If a function cannot provide the packages or the Debian, it prints "<test>: SKIPPED: <reason>" and exits with 77. Its
parameter `test` is the name of the test in that line.
"""

import os
import shutil
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def skip(test, reason):
    print(f"{test}: SKIPPED: {reason}")
    sys.exit(77)


def install_missing(test, *sections):
    """Installs the missing packages of these sections of scripts/packages.txt."""
    if not shutil.which("apt-get"):
        skip(test, "installing Debian's packages needs apt-get, which is not installed")
    if os.geteuid() != 0:
        skip(test, "only root can make a Debian")
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], stderr=subprocess.DEVNULL).returncode != 0:
        skip(test, "no mount namespaces here")
    missing = subprocess.run([os.path.join(SOURCE, "scripts/missing_packages"), *sections], check=True,
                             capture_output=True, text=True).stdout.split()
    if not missing:
        return
    print(f"{test}: installing", *missing, flush=True)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        if subprocess.run(["apt-get", *command], env=environment, stdout=subprocess.DEVNULL).returncode != 0:
            skip(test, f"could not install {' '.join(missing)}")


def make_debian(test, target, *options):
    """Makes a Debian: the folder `target`, or the archive `target` if its name ends with .tar."""
    made = subprocess.run([os.path.join(SOURCE, "tests/support/make_debian"), target, *options],
                          capture_output=True, text=True)
    if made.returncode != 0:  # not a failure of the tested software
        print(made.stderr)
        skip(test, "mmdebstrap could not make a Debian here")


def make_packages(build, folder):
    # Strong compression would take most of the time.
    made = subprocess.run([os.path.join(SOURCE, "scripts/make_packages"), "--build", build, "--output", folder],
                          env=dict(os.environ, DPKG_DEB_COMPRESSOR_TYPE="gzip", DPKG_DEB_COMPRESSOR_LEVEL="1"),
                          capture_output=True, text=True)
    if made.returncode != 0:
        raise AssertionError(made.stdout[-4000:] + made.stderr[-4000:])
