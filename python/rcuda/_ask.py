"""_ask.py libnvidia-ml.so.1: prints the names of the GPUs in RCUDA_DEVICES, as JSON."""

import ctypes
import json
import sys


def main():
    nvml = ctypes.CDLL(sys.argv[1])
    count, handle, name = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
    names = []

    def check(result, what):
        if result != 0:
            nvml.nvmlErrorString.restype = ctypes.c_char_p
            sys.exit(f"{what}: {nvml.nvmlErrorString(result).decode()}")

    check(nvml.nvmlInit_v2(), "starting NVML")
    check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "querying the number of GPUs")
    for index in range(count.value):
        check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)), f"GPU {index} of the list")
        check(nvml.nvmlDeviceGetName(handle, name, len(name)), f"GPU {index} of the list")
        names.append(name.value.decode())
    print(json.dumps(names))


if __name__ == "__main__":
    main()
