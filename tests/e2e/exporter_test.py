#!/usr/bin/env python3
"""rcuda-exporter: the metrics that Prometheus reads are compared with what a program did, and checked by promtool.

    exporter_test.py --build FOLDER [unittest arguments]
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import urllib.request

from servers import Server, client_environment, eventually, run_tests, WITH_MEMORY

BUILD = None
HERE = os.path.dirname(os.path.abspath(__file__))
CONTRIB = os.path.join(HERE, "../../contrib/prometheus")

# Holds device memory until its input ends.
HOLD = WITH_MEMORY + """
print("holds it", flush=True)
sys.stdin.read()
"""


# Copies of known sizes, a graph, and a command that fails.
COPIES = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments, result=0):
    answer = getattr(cuda, name)(*arguments)
    assert answer == result, (name, answer)
size = ctypes.c_size_t
context, memory, other = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
host = (ctypes.c_char * (5 << 20))()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), size(5 << 20))
call("cuMemAlloc_v2", ctypes.byref(other), size(5 << 20))
call("cuMemcpyHtoD_v2", memory, host, size(20000))
call("cuMemcpyHtoD_v2", memory, host, size(8))
call("cuMemcpyDtoH_v2", host, memory, size(4096))
call("cuMemcpyDtoH_v2", host, memory, size(1))
call("cuMemcpyDtoD_v2", other, memory, size(1 << 20))
call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), size(1 << 45), result=2)
call("cuGraphCreate", ctypes.byref(graph), 0)
call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64())
for _ in range(3):
    call("cuGraphLaunch", executable, None)
call("cuCtxSynchronize")
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class ExporterTest(unittest.TestCase):
    def setUp(self):
        # Because of the limit, the server itself counts the memory of each session.
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as limits:
            limits.write('[limits.session]\ndevice_memory = "1G"\n')
            limits.flush()
            self.server = Server(BUILD, options=["--config", limits.name])
        self.addCleanup(self.server.stop)

    def export(self, *names):
        """Starts an exporter and waits until it listens."""
        self.port = free_port()
        exporter = subprocess.Popen(
            [os.path.join(BUILD, "bin/rcuda-exporter"), "--listen", f"127.0.0.1:{self.port}", *names],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(exporter.stderr.close)
        self.addCleanup(exporter.stdout.close)
        self.addCleanup(exporter.wait)
        self.addCleanup(exporter.kill)  # its HTTP server takes two seconds to stop
        self.assertIn("/metrics", exporter.stdout.readline())
        return exporter

    def scrape(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            return answer.read().decode()

    def values(self, text, name, **labels):
        """The values of all metrics of that name that have these labels."""
        found = []
        for line in text.splitlines():
            match = re.fullmatch(re.escape(name) + r"\{(.*)\} (\S+)", line)
            if match and all(f'{label}="{value}"' in match[1] for label, value in labels.items()):
                found.append(float(match[2]))
        return found

    def value(self, text, name, **labels):
        value, = self.values(text, name, **labels)
        return value

    def run_call(self, medium, count):
        subprocess.run([os.path.join(BUILD, "tests/e2e/frames"), "launch", str(count)], check=True,
                       env=client_environment(BUILD, [self.server], medium))

    def ended(self, sessions, medium):
        """The metrics when this many sessions have ended."""
        text = None

        def all_over():
            nonlocal text
            text = self.scrape()
            return (sum(self.values(text, "rcuda_sessions_started_total", medium=medium)) == sessions
                    and not self.values(text, "rcuda_sessions"))
        self.assertTrue(eventually(all_over), text)
        return text

    def test_leases_of_a_gpu(self):
        def lease(*arguments):
            return subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), *arguments, f"localhost:{self.server.port}"],
                                  capture_output=True, text=True, check=True).stdout

        def seen():
            text = self.scrape()
            return ([self.value(text, "rcuda_gpu_leases", gpu="0", kind=kind) for kind in ("exclusive", "shared")],
                    len(self.values(text, "rcuda_gpu_lease_end_timestamp_seconds", gpu="0")))

        self.export(f"localhost:{self.server.port}")
        self.assertEqual(seen(), ([0, 0], 0))
        for kind, lasts, expected in (([], "1h", ([1, 0], 1)), ([], "never", ([1, 0], 0)), (["--shared"], "1h", ([0, 1], 0))):
            lease("take", "--job", "a job", "--for", lasts, *kind)
            self.assertEqual(seen(), expected)
            lease("revoke", "--job", "a job")

    def test_what_sessions_did_is_counted_by_medium(self):
        self.export(f"localhost:{self.server.port}")
        self.run_call("shm", 10)
        few = self.ended(1, "shm")
        self.run_call("shm", 210)
        many = self.ended(2, "shm")
        commands = [self.value(text, "rcuda_commands_total", medium="shm") for text in (few, many)]
        self.assertEqual(commands[1] - 2 * commands[0], 200)
        launches = [self.value(text, "rcuda_launches_total", medium="shm") for text in (few, many)]
        self.assertEqual(launches[1] - 2 * launches[0], 200)
        self.run_call("tcp", 10)
        text = self.ended(1, "tcp")
        self.assertEqual(self.value(text, "rcuda_commands_total", medium="shm"), commands[1])
        self.assertEqual(self.value(text, "rcuda_launches_total", medium="tcp"),
                         self.value(few, "rcuda_launches_total", medium="shm"))
        self.assertGreaterEqual(self.value(text, "rcuda_worker_starts_total"), 3)
        self.assertGreater(self.value(text, "rcuda_worker_start_seconds_total"), 0)
        self.assertEqual(sum(self.values(text, "rcuda_refused_clients_total")), 0)

    def test_copies_failures_and_graphs_are_counted(self):
        self.export(f"localhost:{self.server.port}")
        subprocess.run([sys.executable, "-c", COPIES], check=True,
                       env=client_environment(BUILD, [self.server], "tcp"))
        text = self.ended(1, "tcp")
        moved = {direction: self.value(text, "rcuda_copied_bytes_total", medium="tcp", direction=direction)
                 for direction in ("to_device", "to_host", "on_server", "to_server", "from_server")}
        self.assertEqual(moved, {"to_device": 20000 + 8, "to_host": 4096 + 1, "on_server": 1 << 20,
                                 "to_server": 0, "from_server": 0})
        self.assertEqual(self.value(text, "rcuda_copies_total"), 5)
        self.assertEqual(self.value(text, "rcuda_failed_commands_total"), 1)
        self.assertEqual(self.value(text, "rcuda_graph_launches_total"), 3)

    def test_copies_to_another_server_are_counted_by_their_way(self):
        other = Server(BUILD, index=1)
        self.addCleanup(other.stop)
        self.export(f"localhost:{self.server.port}", f"localhost:{other.port}")
        for path, strategy in (("shm", "v4b"), ("tcp", "v2b")):
            subprocess.run([os.path.join(BUILD, "tests/programs/peer_trains")], check=True, stdout=subprocess.DEVNULL,
                           env=client_environment(BUILD, [self.server, other], "tcp", RCUDA_P2P_PATH=path,
                                                  RCUDA_P2P_STRATEGY=strategy))
        text = self.ended(2 + 2, "tcp")
        for server in (self.server, other):
            labels = dict(server=f"localhost:{server.port}")
            ways = [self.value(text, "rcuda_peer_copies_total", route=route, staging="host", **labels)
                    for route in ("shm", "tcp")]
            self.assertGreater(ways[0], 0)
            self.assertEqual(ways[0], ways[1])  # the same program
            self.assertEqual(len(self.values(text, "rcuda_peer_copies_total", **labels)), 2)

    def test_refusals_are_counted_by_their_reason(self):
        self.export(f"localhost:{self.server.port}")
        for address in (self.server.address(7), self.server.address(8)):
            failed = subprocess.run([sys.executable, "-c", "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"],
                                    env=dict(client_environment(BUILD, [self.server]), RCUDA_DEVICES=address),
                                    capture_output=True, text=True)
            self.assertEqual(failed.stdout, "100\n", failed.stderr)
        text = self.scrape()
        self.assertEqual(self.value(text, "rcuda_refused_clients_total", reason="denied"), 0)
        self.assertEqual(sum(self.values(text, "rcuda_refused_clients_total")), 2)

    def test_a_session_and_its_memory(self):
        self.export(f"localhost:{self.server.port}")
        program = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   env=client_environment(BUILD, [self.server], "tcp"))
        self.addCleanup(program.stdout.close)
        program.stdout.readline()
        text = self.scrape()
        self.assertEqual(self.value(text, "rcuda_sessions", medium="tcp"), 1)
        self.assertEqual(self.value(text, "rcuda_gpu_sessions", gpu="0"), 1)
        self.assertGreater(self.value(text, "rcuda_commands_total", medium="tcp"), 0)
        self.assertGreaterEqual(self.value(text, "rcuda_user_gpu_memory_bytes", gpu="0"), 3 << 20)
        user, = re.findall(r'rcuda_user_gpu_memory_bytes\{.*user="([^"]*)"', text)
        worker = self.server.sessions(BUILD)[program.pid]
        self.assertEqual(self.values(text, "rcuda_session_gpu_memory_bytes", worker=worker, user=user, gpu="0"),
                         self.values(text, "rcuda_user_gpu_memory_bytes", gpu="0"))
        # The GPU's memory and the quota are different metrics.
        own = self.value(text, "rcuda_user_gpu_memory_bytes", gpu="0")
        self.assertGreater(self.value(text, "rcuda_gpu_memory_total_bytes"), 1 << 30)
        self.assertGreaterEqual(self.value(text, "rcuda_gpu_memory_used_bytes"), 3 << 20)
        self.assertEqual(self.value(text, "rcuda_gpu_memory_quota_bytes"), 1 << 30)
        self.assertEqual(self.value(text, "rcuda_gpu_memory_quota_used_bytes"), own)
        self.assertEqual(self.value(text, "rcuda_session_gpu_memory_quota_bytes", worker=worker), 1 << 30)
        program.stdin.close()
        program.wait()
        self.assertEqual(self.values(self.ended(1, "tcp"), "rcuda_session_gpu_memory_bytes"), [])

    def test_what_promtool_says(self):
        self.export(f"localhost:{self.server.port}")
        for _ in range(2):
            text = self.scrape()
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), text)
        for figure in ("power_watts", "temperature_celsius", "utilization_ratio", "memory_total_bytes"):
            self.assertEqual(len(self.values(text, f"rcuda_gpu_{figure}")), 1, text)
        self.assertEqual(len(self.values(text, "rcuda_gpu_clock_hertz")), 4)

    def test_the_alerts_use_metrics_that_exist(self):
        rules = os.path.join(CONTRIB, "rcuda.rules.yml")
        subprocess.run(["promtool", "check", "rules", rules], check=True, capture_output=True)
        subprocess.run(["promtool", "test", "rules", os.path.join(CONTRIB, "rcuda.rules.test.yml")],
                       check=True, capture_output=True)
        self.export(f"localhost:{self.server.port}")
        self.run_call("shm", 1)
        known = set(re.findall(r"^# TYPE (rcuda_\w+)", self.ended(1, "shm"), re.MULTILINE))
        for name in ("rcuda.rules.yml", "rcuda.dashboard.json"):
            with open(os.path.join(CONTRIB, name)) as file:
                used = set(re.findall(r"\brcuda_\w+", file.read()))
            # A server without sessions, memory of sessions or copies to other servers does not have these.
            self.assertLessEqual(used, known | {"rcuda_sessions", "rcuda_user_gpu_memory_bytes",
                                                "rcuda_peer_copies_total"}, name)
        with open(os.path.join(HERE, "../../docs/monitoring.md")) as file:
            self.assertLessEqual(known, set(re.findall(r"\brcuda_\w+", file.read())))

    def test_a_server_that_is_not_there_is_down_and_said_once(self):
        nobody = free_port()
        exporter = self.export(f"localhost:{self.server.port}", f"localhost:{nobody}")
        for _ in range(3):
            text = self.scrape()
            self.assertEqual(self.value(text, "rcuda_up", server=f"localhost:{nobody}"), 0)
            self.assertEqual(self.value(text, "rcuda_up", server=f"localhost:{self.server.port}"), 1)
        exporter.terminate()
        self.assertEqual(exporter.stderr.read().count("cannot connect"), 1)
        self.assertEqual(exporter.wait(), 0)

    def test_servers_that_are_silent_do_not_add_up(self):
        silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
        for listener in silent:
            self.addCleanup(listener.close)
        names = [f"localhost:{listener.getsockname()[1]}" for listener in silent]
        self.export(*names, f"localhost:{self.server.port}", f"localhost:{self.server.port}")
        text = self.scrape()
        self.assertEqual(self.values(text, "rcuda_up"), [0, 0, 0, 0, 1])

    def test_an_address_that_is_none_is_an_error(self):
        for address in ("9309", ":9309", "localhost:9309", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999"):
            run = subprocess.run([os.path.join(BUILD, "bin/rcuda-exporter"), "--listen", address], timeout=60,
                                 capture_output=True, text=True)
            self.assertEqual(run.returncode, 2, address)
            self.assertIn(f"--listen {address} is not usable: ", run.stderr)

    def test_health_asks_no_server(self):
        self.export(f"localhost:{free_port()}")
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz") as answer:
            self.assertEqual(answer.status, 200)
            text = answer.read().decode()
        self.assertRegex(text, r'rcuda_exporter_info\{build="[0-9a-f]{12}",version="[0-9.]+"\} 1')
        self.assertNotIn("rcuda_up", text)

    def test_the_servers_of_the_variable_are_asked(self):
        with unittest.mock.patch.dict(os.environ, RCUDA_DEVICES=f"{self.server.address()},{self.server.address(1)}"):
            self.export()
        text = self.scrape()
        self.assertEqual(self.values(text, "rcuda_up"), [1])
        self.assertRegex(text, r'rcuda_server_info\{build="[0-9a-f]{12}",driver=.*,version="[0-9.]+"\} 1')

    def test_an_address_that_is_taken_is_an_error(self):
        self.export(f"localhost:{self.server.port}")
        other = subprocess.run([os.path.join(BUILD, "bin/rcuda-exporter"), "--listen", f"127.0.0.1:{self.port}"],
                               capture_output=True, text=True, timeout=60)
        self.assertEqual(other.returncode, 1)
        self.assertEqual(other.stderr, f"rcuda-exporter: cannot serve 127.0.0.1:{self.port}: another program uses this port "
                         "(ss -ltnp shows which): end it, or choose another port with --listen\n")
        other = subprocess.run([os.path.join(BUILD, "bin/rcuda-exporter"), "--listen", "192.0.2.1:9309"],
                               capture_output=True, text=True, timeout=60)
        self.assertEqual(other.returncode, 1)
        self.assertIn("cannot serve 192.0.2.1:9309: this machine does not have that address", other.stderr)


if __name__ == "__main__":
    run_tests(globals())
