#!/usr/bin/env python3
"""What clients of NVML in Python (nvidia-ml-py, gpustat) show of remote GPUs, without a session and during one.

    nvml_test.py --build FOLDER --wheels FOLDER [unittest arguments]
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

from servers import message, read_message, run_tests, Server

BUILD = WHEELS = None
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GIB = 1 << 30
DRIVER = "580.0.0-softgpu"
REFUSAL, GPU_QUERY = 4, 19  # kinds of messages (common/messages/message_io.h)

# Prints what NVML reports about each device, as one line of JSON.
LOOK = """
import json, pynvml as n
n.nvmlInit()
def known(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as error:
        return str(error)
def device(handle):
    memory = n.nvmlDeviceGetMemoryInfo(handle)
    return dict(
        name=n.nvmlDeviceGetName(handle), uuid=n.nvmlDeviceGetUUID(handle), index=n.nvmlDeviceGetIndex(handle),
        address=n.nvmlDeviceGetPciInfo(handle).busId, total=memory.total, used=memory.used, free=memory.free,
        utilization=n.nvmlDeviceGetUtilizationRates(handle).gpu, power=n.nvmlDeviceGetPowerUsage(handle),
        temperature=n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU),
        sm_clock=n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM), ecc=n.nvmlDeviceGetEccMode(handle),
        state=n.nvmlDeviceGetPerformanceState(handle), fan=known(n.nvmlDeviceGetFanSpeed, handle),
        fields=[(f.nvmlReturn, f.value.ullVal) for f in n.nvmlDeviceGetFieldValues(handle, [83, 186, 999])],
        setting=known(n.nvmlDeviceSetPowerManagementLimit, handle, 200000),
        processes=[(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(handle)])
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps(dict(driver=n.nvmlSystemGetDriverVersion(), devices=[device(h) for h in handles],
    paths=[[n.nvmlDeviceGetTopologyCommonAncestor(a, b) for b in handles] for a in handles])))
n.nvmlShutdown()
"""

# Holds 1 GiB of each device until its standard input ends.
HOLD = """
import ctypes, sys
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for device in range(count.value):
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)) == 0
print("held", flush=True)
sys.stdin.read()
"""


class NvmlTest(unittest.TestCase):
    def server(self, rules="", **more):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "server.toml")
        with open(path, "w") as file:
            file.write(rules)
        server = Server(BUILD, options=["--config", path], **more)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def environment(self, pool, **more):
        return dict(os.environ, RCUDA_DEVICES=",".join(pool), LD_LIBRARY_PATH=os.path.join(BUILD, "lib/rcuda"), **more)

    def run_python(self, pool, *arguments, **more):
        return subprocess.run([os.path.join(WHEELS, "bin/python"), *arguments], capture_output=True, text=True,
                              env=self.environment(pool, **more))

    def look(self, pool, **more):
        result = self.run_python(pool, "-c", LOOK, **more)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def hold(self, pool):
        process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, env=self.environment(pool))

        def end():
            process.communicate()
            self.assertEqual(process.returncode, 0)
        self.addCleanup(end)
        self.assertEqual(process.stdout.readline(), "held\n")
        return process

    def test_devices_without_a_session(self):
        server = self.server(environment=dict(SOFTGPU_DEVICES="2", SOFTGPU_MEMORY="8G"))
        seen = self.look([server.address(1), server.address(0)])
        self.assertEqual(server.sessions(BUILD), {})
        self.assertNotIn("session of", server.text())
        self.assertEqual(seen["driver"], DRIVER)
        one, two = seen["devices"]
        # NVML has the order of RCUDA_DEVICES, which lists the server's device 1 first.
        self.assertEqual((one["index"], two["index"]), (0, 1))
        self.assertEqual((one["address"], two["address"]), ("00000000:11:00.0", "00000000:10:00.0"))
        self.assertNotEqual(one["uuid"], two["uuid"])
        for device, number in ((one, 1), (two, 0)):
            self.assertIn("softgpu", device["name"])
            self.assertRegex(device["uuid"], r"^GPU-[0-9a-f]{8}-[0-9a-f-]{27}$")
            self.assertEqual((device["total"], device["free"], device["used"]), (8 * GIB, 8 * GIB, 0))
            self.assertEqual((device["utilization"], device["temperature"]), (7 + number, 31 + number))
            self.assertEqual((device["power"], device["sm_clock"]), (71000 + number, 345))
            self.assertEqual((device["ecc"], device["state"], device["processes"]), ([1, 1], 0, []))
            not_supported = 3
            energy, power, unknown = device["fields"]
            self.assertEqual(energy, [0, 1000000 + number])
            self.assertEqual((power[0], unknown[0]), (not_supported, not_supported))
            self.assertEqual((device["fan"], device["setting"]), ("Not Supported", "Insufficient Permissions"))

    def test_a_device_that_the_server_does_not_have(self):
        server = self.server(environment=dict(SOFTGPU_DEVICES="2"))
        ask = os.path.join(SOURCE, "python/rcuda/_ask.py")
        asked = subprocess.run([sys.executable, "-I", ask, os.path.join(BUILD, "lib/rcuda/libnvidia-ml.so.1")],
                               capture_output=True, text=True, env=self.environment([server.address(7)]))
        self.assertNotEqual(asked.returncode, 0)
        line = f"127.0.0.1:{server.port} does not offer device 7 (it offers 0 and 1): correct RCUDA_DEVICES\n"
        self.assertIn(line, asked.stderr)  # rcuda.connect() raises an error with this line

    def test_memory_is_the_quota(self):
        server = self.server("[limits.session]\ndevice_memory = \"3G\"\n[limits.user]\ndevice_memory = \"5G\"\n")
        pool = [server.address()]
        (idle,) = self.look(pool)["devices"]
        self.assertEqual((idle["total"], idle["used"], idle["processes"]), (3 * GIB, 0, []))
        holder = self.hold(pool)
        (busy,) = self.look(pool)["devices"]
        self.assertEqual(busy["total"], 3 * GIB)
        # What the driver needs for a context counts as well.
        self.assertGreaterEqual(busy["used"], GIB)
        self.assertLess(busy["used"], 2 * GIB)
        self.assertEqual(busy["used"] + busy["free"], busy["total"])
        ((pid, used),) = busy["processes"]
        self.assertEqual((pid, used), (holder.pid, busy["used"]))
        # The user's limit now leaves less than the limit of the session.
        for _ in range(3):
            self.hold(pool)
        (full,) = self.look(pool)["devices"]
        self.assertEqual(full["total"], 3 * GIB)
        self.assertLessEqual(full["free"], GIB)
        self.assertEqual(len(full["processes"]), 4)

    def test_processes_of_other_machines_are_not_shown(self):
        server = self.server()
        pool = [server.address()]
        unshare = ["unshare", "--uts", "sh", "-c", "hostname elsewhere && exec \"$0\" \"$@\""]
        if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
            self.skipTest("no UTS namespace here")
        holder = self.hold(pool)
        elsewhere = subprocess.run([*unshare, os.path.join(WHEELS, "bin/python"), "-c", LOOK], capture_output=True,
                                   text=True, env=self.environment(pool))
        self.assertEqual((elsewhere.returncode, elsewhere.stderr), (0, ""))
        self.assertEqual(json.loads(elsewhere.stdout)["devices"][0]["processes"], [])
        ((pid, used),) = self.look(pool)["devices"][0]["processes"]
        self.assertEqual(pid, holder.pid)
        self.assertGreaterEqual(used, GIB)  # as the server's NVML reports

    def test_topology_of_two_servers(self):
        one = self.server(environment=dict(SOFTGPU_DEVICES="2"))
        two = self.server(index=1)
        seen = self.look([one.address(0), two.address(0), one.address(1)])
        internal, node, system = 0, 40, 50
        self.assertEqual(seen["paths"], [[internal, system, node], [system, internal, system],
                                         [node, system, internal]])
        # The first devices of the two servers have the same address, so the client changes the domain of the second
        # server's device, as in CUDA.
        self.assertEqual([device["address"] for device in seen["devices"]],
                         ["00000000:10:00.0", "00000001:10:00.0", "00000000:11:00.0"])

    # What NCCL asks on GPUs from sm_90 on. Without access to the switch, the answers are those of a local NVML that cannot
    # see it.
    def test_nvlinks(self):
        look = """
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
def known(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError_NotSupported:
        return None
for link in 0, 1, 2:
    (state,) = n.nvmlDeviceGetFieldValues(gpu, [(n.NVML_FI_DEV_NVLINK_GET_STATE, link)])
    print(state.value.uiVal if state.nvmlReturn == 0 else None,
          known(n.nvmlDeviceGetNvLinkCapability, gpu, link, n.NVML_NVLINK_CAP_P2P_SUPPORTED),
          getattr(known(n.nvmlDeviceGetNvLinkRemotePciInfo, gpu, link), "busId", None))
"""
        server = self.server(environment=dict(SOFTGPU_DEVICES="3", SOFTGPU_NVLINKS="2"))
        pool = [server.address(gpu) for gpu in range(3)]
        switch, hidden, none = ["1 1 FFFFFFFF:FF:FF.0"] * 2, ["1 1 None"] * 2, ["None None None"]
        for devices, visible, expected in (
                (pool, "0,1,2", switch), (pool[:2], "1,0", switch),
                # A session may not import memory of hidden GPUs, which other ranks may use.
                (pool, "0", hidden), (pool, "0,1", hidden), (pool[:1], "0", hidden)):
            with self.subTest(devices=devices, visible=visible):
                told = self.run_python(devices, "-c", look, CUDA_VISIBLE_DEVICES=visible)
                self.assertEqual(told.stdout.splitlines(), expected + none, told.stderr)
        late = self.run_python(pool, "-c", "import os, pynvml\npynvml.nvmlInit()\npynvml.nvmlDeviceGetCount()\n"
                               "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n" + look)
        self.assertEqual(late.stdout.splitlines(), hidden + none, late.stderr)

    def test_nvlinks_between_gpus(self):
        look = ("import pynvml as n\nn.nvmlInit()\ntry:\n"
                "    print(n.nvmlDeviceGetNvLinkRemotePciInfo(n.nvmlDeviceGetHandleByIndex(0), 0).busId)\n"
                "except n.NVMLError_NotSupported:\n    print('hidden')\n")
        server = self.server(environment=dict(SOFTGPU_DEVICES="2", SOFTGPU_NVLINKS="2", SOFTGPU_NVLINK_END="0"))
        told = self.run_python([server.address(0), server.address(1)], "-c", look)
        self.assertEqual(told.stdout, "hidden\n", told.stderr)

    def test_every_function_exists(self):
        look = ("import ctypes, inspect, pynvml, re\nlibrary = ctypes.CDLL('libnvidia-ml.so.1')\n"
                "names = set(re.findall(r'_nvmlGetFunctionPointer\\(\"(\\w+)\"', inspect.getsource(pynvml)))\n"
                "print(len(names), [name for name in names if not hasattr(library, name)])\n")
        result = self.run_python([""], "-c", look)
        count, _, missing = result.stdout.strip().partition(" ")
        self.assertEqual(missing, "[]", result.stderr)
        self.assertGreater(int(count), 300)

    def test_a_server_that_is_gone(self):
        there = self.server()
        gone = Server(BUILD, index=1)
        pool = [there.address(), gone.address()]
        self.assertEqual(gone.stop(), 0)
        look = ("import pynvml as n\nn.nvmlInit()\nassert n.nvmlDeviceGetCount() == 2\n"
                "print(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0)))\n"
                "try:\n    n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(1))\n"
                "except n.NVMLError_GpuIsLost:\n    print('lost')\n")
        result = self.run_python(pool, "-c", look)
        self.assertEqual((result.returncode, result.stdout.splitlines()[1:]), (0, ["lost"]), result.stderr)
        self.assertIn("softgpu", result.stdout)
        self.assertEqual(result.stderr.count("NVML"), 1, result.stderr)  # the message is printed once
        self.assertIn(gone.port, result.stderr)

    def test_a_stranger_learns_nothing(self):
        server = self.server()
        # A connection over TCP from the server's machine, without a ticket.
        with socket.create_connection(("127.0.0.1", int(server.port))) as connection:
            connection.sendall(message(GPU_QUERY))
            kind, text = read_message(connection)
        self.assertEqual(kind, REFUSAL)
        self.assertIn("brings no ticket", text)

    def test_without_a_pool(self):
        look = "import pynvml as n\nn.nvmlInit()\nprint(n.nvmlDeviceGetCount())\n"
        result = self.run_python([""], "-c", look)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("RCUDA_DEVICES", result.stderr)

    def test_gpustat(self):
        server = self.server("[limits.session]\ndevice_memory = \"4G\"\n")
        pool = [server.address()]
        holder = self.hold(pool)
        result = self.run_python(pool, "-m", "gpustat", "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        shown = json.loads(result.stdout)
        self.assertEqual(shown["driver_version"], DRIVER)
        (gpu,) = shown["gpus"]
        self.assertIn("softgpu", gpu["name"])
        self.assertEqual((gpu["utilization.gpu"], gpu["temperature.gpu"]), (7, 31))
        self.assertEqual((gpu["power.draw"], gpu["enforced.power.limit"]), (71, 700))
        self.assertEqual(gpu["memory.total"], 4096)
        self.assertGreaterEqual(gpu["memory.used"], 1024)
        (process,) = gpu["processes"]
        self.assertEqual(process["pid"], holder.pid)
        self.assertEqual(process["gpu_memory_usage"], gpu["memory.used"])
        self.assertIn("python", process["command"])


if __name__ == "__main__":
    run_tests(globals(), "wheels")
