"""The driver API by ctypes, without a framework: results in a child of fork(), contexts, errors, memory."""

import ctypes
import os

import lines

libcuda = None


def call(name, *arguments):
    return getattr(libcuda, name)(*arguments)


def load():
    global libcuda
    try:
        libcuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        lines.missing("no libcuda.so.1", str(error))


def name_of(code):
    text = ctypes.c_char_p()
    if libcuda.cuGetErrorName(code, ctypes.byref(text)):
        return str(code)
    return text.value.decode()


def with_context():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    steps = [call("cuInit", 0), call("cuDeviceGet", ctypes.byref(device), 0),
             call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device),
             call("cuCtxSetCurrent", context)]
    return [name_of(step) for step in steps]


def in_fork(function):
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, str(function()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return text or f"ended with {os.waitstatus_to_exitcode(status)}"


@lines.case
def fork_before_init(say):
    say("child", in_fork(lambda: with_context()))
    say("parent", with_context())


@lines.case
def fork_after_init(say):
    with_context()
    count = ctypes.c_int()
    say("init in the child", in_fork(lambda: name_of(call("cuInit", 0))))
    say("count in the child", in_fork(lambda: name_of(call("cuDeviceGetCount", ctypes.byref(count)))))
    pointer = ctypes.c_uint64()
    say("memory in the child", in_fork(lambda: name_of(call("cuMemAlloc_v2", ctypes.byref(pointer),
                                                            ctypes.c_size_t(4096)))))
    say("in the parent", name_of(call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(4096))))
    say("freed", name_of(call("cuMemFree_v2", pointer)))


@lines.case
def memory(say):
    with_context()
    pointer, words = ctypes.c_uint64(), 100_000
    say("allocated", name_of(call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(4 * words))))
    say("set", name_of(call("cuMemsetD32_v2", pointer, 0x01020304, ctypes.c_size_t(words))))
    back = (ctypes.c_uint32 * words)()
    say("copied", name_of(call("cuMemcpyDtoH_v2", back, pointer, ctypes.c_size_t(4 * words))))
    say("words", lines.hash_of(bytes(back)))
    say("freed", name_of(call("cuMemFree_v2", pointer)))
    say("freed again", name_of(call("cuMemFree_v2", pointer)))


@lines.case
def errors(say):
    with_context()
    device, module = ctypes.c_int(), ctypes.c_void_p()
    say("device 99", name_of(call("cuDeviceGet", ctypes.byref(device), 99)))
    say("no image", name_of(call("cuModuleLoadData", ctypes.byref(module), b"nothing of the kind")))
    say("device's attribute 9999", name_of(call("cuDeviceGetAttribute", ctypes.byref(device), 9999, 0)))
    say("null", name_of(call("cuMemAlloc_v2", None, ctypes.c_size_t(16))))


@lines.case
def attributes(say):
    """The attributes of the GPU, except those that depend on its machine (bus, host memory)."""
    with_context()
    version, value = ctypes.c_int(), ctypes.c_int()
    say("driver version", name_of(call("cuDriverGetVersion", ctypes.byref(version))))
    say("version", version.value)
    for attribute in range(1, 145):
        code = call("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0)
        say(f"attribute {attribute}", value.value if code == 0 else name_of(code))


if __name__ == "__main__":
    load()
    lines.run()
