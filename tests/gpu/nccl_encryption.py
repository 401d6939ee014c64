#!/usr/bin/env python3
"""NCCL between two servers whose sessions must be encrypted (TLS), on GPUs. The program calls ncclSetEncryption.

    nccl_encryption.py --build FOLDER --nccl LIBRARY [--devices 0,0]

Starts two servers with a token, each with one device of the list (both may be the same GPU), and runs a program with a rank on
each server: with a secret, without one, and with different secrets of the two ranks. Prints the outputs of both ranks. Fails if
ranks without a common secret meet, or if ranks with one do not, except for a LIBRARY that was built without TLS. Needs PyTorch, and
NCCL 2.32.3 or later as LIBRARY.
"""

import argparse
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from servers import client_environment, make_token, Server  # noqa: E402
from nccl import NO_MULTICAST  # noqa: E402

# A rank: python -c RANK number file-of-the-id secret
RANK = """
import ctypes, os, sys, time, torch
class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("mode", ctypes.c_int),
                ("psk", ctypes.c_char_p)]
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
rank, path, secret = int(sys.argv[1]), sys.argv[2], sys.argv[3]
nccl = ctypes.CDLL("libnccl.so.2")
if secret:
    print("ncclSetEncryption", nccl.ncclSetEncryption(ctypes.byref(Config(32, 0xcafebeef, 23203, 1, secret.encode()))))
torch.cuda.set_device(rank)
data, unique, comm = torch.full((1 << 20,), rank + 1.0, device="cuda"), Id(), ctypes.c_void_p()
if rank == 0:
    made = nccl.ncclGetUniqueId(ctypes.byref(unique))
    with open(path + ".new", "wb") as file:
        file.write(bytes(unique))
    os.rename(path + ".new", path)
while not os.path.exists(path):
    time.sleep(0.01)
with open(path, "rb") as file:
    unique = Id.from_buffer_copy(file.read())
result = nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, rank)
print("ncclCommInitRank", result)
if result == 0:
    stream = torch.cuda.current_stream().cuda_stream
    pointer = ctypes.c_void_p(data.data_ptr())
    print("ncclAllReduce", nccl.ncclAllReduce(pointer, pointer, ctypes.c_size_t(data.numel()), 7, 0, comm, ctypes.c_void_p(stream)))
    torch.cuda.synchronize()
    print("sum", set(data.tolist()))
os._exit(0)
"""


def run(case, environment, secrets):
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen(["timeout", "-k", "5", "60", sys.executable, "-c", RANK, str(rank), os.path.join(folder, "id"), secret],
                                  env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for rank, secret in enumerate(secrets)]
        all_output = ""
        for rank, process in enumerate(ranks):
            output, errors = process.communicate()
            all_output += output + errors
            print(f"{case}, rank {rank}: {'; '.join(output.splitlines())} (exit code {process.returncode})", flush=True)
            for line in errors.splitlines():
                if "rcuda" in line and "info" not in line or "rypt" in line:
                    print("    " + line)
        meets = all_output.count("ncclCommInitRank 0") == 2 and all_output.count("sum {3.0}") == 2
        return meets, "built without TLS" in all_output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--nccl", required=True)
    parser.add_argument("--devices", default="0,0")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = dict(make_token(arguments.build, folder), RCUDA_SERVER_NCCL=arguments.nccl, NCCL_SOCKET_IFNAME="lo", **NO_MULTICAST)
        servers = [Server(arguments.build, driver="nvidia", devices=device, index=index, environment=settings)
                   for index, device in enumerate(arguments.devices.split(","))]
        environment = client_environment(arguments.build, servers, "tcp")
        environment.update(NO_MULTICAST, RCUDA_SECURITY="tls", RCUDA_TOKEN_FILE=os.path.join(folder, "token"), RCUDA_NCCL="server",
                           NCCL_DEBUG="INFO")
        # Before the library in PyTorch's wheel, which has the same name.
        environment["LD_PRELOAD"] += " " + os.path.join(arguments.build, "lib/rcuda/libnccl.so.2")
        secret = "a secret that all ranks share, of at least 32 bytes"
        meets, lacks_tls = run("with a secret", environment, [secret, secret])
        strangers = [run("without a secret", environment, ["", ""])[0],
                     run("different secrets", environment, [secret, secret[::-1]])[0]]
        for server in servers:
            server.stop()
    sys.exit(any(strangers) or not (meets or lacks_tls))


if __name__ == "__main__":
    main()
