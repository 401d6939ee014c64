"""Runs a command that sees no GPU of this machine: no device files and no driver.

    hide_gpu.py [--cache FILE] [--stand-in] -- COMMAND ...

The command runs in a mount namespace. There, /dev has no nodes of NVIDIA and of graphics devices,
/proc/driver/nvidia and the driver's folders are empty, and each library of the driver is an empty file. FILE
is an ld.so.cache without the driver's libraries, because Triton asks ldconfig where libcuda is. (Run this
program with the command `ldconfig -X -C FILE` to make such a file.) --stand-in makes /dev/nvidiactl an
ordinary empty file, because JAX uses no GPU if there is no file of this name. Needs CAP_SYS_ADMIN; without
it, prints the reason and exits with 78.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile

CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
LIBRARY = re.compile(r"^lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[\w.-]+|(EGL|GLX|GLESv\w+)_nvidia)\.so")
DEVICE = re.compile(r"^(nvidia.*|nvhost.*|nvmap|dri|dxg)$")
FOLDERS = ["/usr/local/nvidia", "/usr/lib/wsl/lib"]
SEARCHED = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib/x86_64-linux-gnu", "/lib64",
            "/usr/local/lib", "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/local/cuda/compat",
            "/usr/local/cuda/lib64"]

libc = ctypes.CDLL(None, use_errno=True)


def fail(what):
    number = ctypes.get_errno()
    print(f"hide_gpu: {what}: {os.strerror(number)}; it needs root and mount namespaces",
          file=sys.stderr)
    sys.exit(78)


def mount(source, target, kind=None, flags=0, data=None):
    text = [value.encode() if value is not None else None for value in (source, target, kind)]
    if libc.mount(*text, ctypes.c_ulong(flags), data.encode() if data else None):
        fail(f"mount {source} on {target}")


def driver_libraries():
    """The paths at which a program that searches could find libraries of the driver."""
    folders = set(SEARCHED) | set(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    try:
        listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
        folders |= {os.path.dirname(line.split("=> ")[1]) for line in listed.splitlines() if "=> " in line}
    except OSError:
        pass
    found = set()
    for folder in folders:
        # rcuda's own folder has librcuda.so under the driver's name, and an NVML. Neither is hidden.
        own = os.path.basename(os.path.realpath(os.path.join(folder, "libcuda.so.1"))) == "librcuda.so"
        if own or not os.path.isdir(folder):
            continue
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if LIBRARY.match(name) and os.path.isfile(real):
                found.add(real)
    return sorted(found)


def hide_devices(scratch, stand_in):
    """Mounts a new /dev: it has everything of the old /dev except the GPUs."""
    new = os.path.join(scratch, "dev")
    os.mkdir(new)
    mount("tmpfs", new, "tmpfs", 0, "mode=755")
    for entry in os.scandir("/dev"):
        target = os.path.join(new, entry.name)
        if DEVICE.match(entry.name):
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
        elif entry.is_dir(follow_symlinks=False):
            os.mkdir(target)
            mount(entry.path, target, flags=MS_BIND | MS_REC)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
            mount(entry.path, target, flags=MS_BIND)
    if stand_in:
        open(os.path.join(new, "nvidiactl"), "w").close()
    mount(new, "/dev", flags=MS_BIND | MS_REC)


def hide(cache, stand_in):
    if libc.unshare(CLONE_NEWNS):
        fail("unshare")
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    # Only this namespace sees what is in the scratch folder, so nothing is left of it when the command ends.
    scratch = tempfile.gettempdir() + "/hide_gpu"
    os.makedirs(scratch, exist_ok=True)
    mount("tmpfs", scratch, "tmpfs", 0, "mode=755")
    empty_file, empty_folder = os.path.join(scratch, "file"), os.path.join(scratch, "folder")
    open(empty_file, "w").close()
    os.mkdir(empty_folder)
    libraries = driver_libraries()
    hide_devices(scratch, stand_in)
    for folder in FOLDERS + ["/proc/driver/nvidia"]:
        if os.path.isdir(folder):
            mount(empty_folder, folder, flags=MS_BIND)
    for library in libraries:
        if os.path.exists(library):
            mount(empty_file, library, flags=MS_BIND)
    if cache:
        mount(cache, "/etc/ld.so.cache", flags=MS_BIND)


def main():
    arguments = sys.argv[1:]
    cache, stand_in = None, False
    if arguments[:1] == ["--cache"]:
        cache, arguments = arguments[1], arguments[2:]
    if arguments[:1] == ["--stand-in"]:
        stand_in, arguments = True, arguments[1:]
    if arguments[:1] != ["--"] or len(arguments) < 2:
        sys.exit(__doc__)
    hide(cache, stand_in)
    os.execvp(arguments[1], arguments[1:])


main()
