#!/usr/bin/env python3
"""Faults while programs run: the errors that their clients get. Other sessions are not affected.

    faults_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import os
import signal
import socket
import subprocess
import threading
import unittest

from servers import client_environment, eventually, fetch_ticket, run_tests, Server

BUILD = PROGRAMS = None
# Only a program that hangs takes longer.
HANG_SECONDS = 120


class Proxy:
    """Forwards TCP connections to a port of this machine. Once the network is lost, it keeps the
    connections and forwards nothing. Sends the server a ticket on each connection, because clients
    that know only the proxy's port get none."""

    def __init__(self, port):
        self.port_behind = int(port)
        self.gone = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port_behind))
            server.sendall(fetch_ticket(server))
            self.sockets += [client, server]
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self.pass_on, args=ends, daemon=True).start()

    def pass_on(self, source, destination):
        try:
            while data := source.recv(1 << 16):
                if self.gone.is_set():
                    return
                destination.sendall(data)
            if not self.gone.is_set():
                destination.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        for end in [self.listener, *self.sockets]:
            end.close()


class FaultsTest(unittest.TestCase):
    def setUp(self):
        self.running = []

    def tearDown(self):
        for process in self.running:
            process.kill()
            process.communicate()

    def server(self, *options, **environment):
        server = Server(BUILD, options=options, environment=environment)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def start(self, environment, program="endless"):
        """Starts a program that uses its device until a call fails. Returns when the program uses the device."""
        run = subprocess.Popen([os.path.join(BUILD, "tests/e2e", program)], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.running.append(run)
        self.assertEqual(run.stdout.readline(), "running\n")
        return run

    def check_lost(self, run, server, why=""):
        """Checks that the program got an error from CUDA and printed one line that names the
        server and says why. Returns the seconds since its last successful call."""
        out, err = run.communicate(timeout=HANG_SECONDS)
        self.assertEqual(run.returncode, 3, err)
        error, seconds = out.split()
        self.assertEqual(error, "cudaErrorDevicesUnavailable")
        lines = [line for line in err.splitlines() if "is lost" in line]
        self.assertEqual(len(lines), 1, err)
        self.assertIn(server, lines[0])
        self.assertIn(why, lines[0])
        return float(seconds)

    def check_works(self, server, transport):
        result = subprocess.run([os.path.join(PROGRAMS, "vector_add")], capture_output=True,
                                env=client_environment(BUILD, [server], transport), timeout=HANG_SECONDS)
        self.assertEqual(result.returncode, 0, result.stderr)

    def check_killed_worker(self, transport):
        server = self.server("--pool", "2")
        environment = client_environment(BUILD, [server], transport)
        bystander = subprocess.Popen([os.path.join(BUILD, "tests/e2e/ordering_rounds"), "150", "1"],
                                     env=environment, stdout=subprocess.PIPE, text=True)
        self.running.append(bystander)
        victim = self.start(environment)
        os.kill(server.sessions(BUILD)[victim.pid], signal.SIGKILL)
        seconds = self.check_lost(victim, server.port)
        self.assertLessEqual(seconds, 1.0)  # the documented limit
        out, _ = bystander.communicate(timeout=HANG_SECONDS)
        self.assertEqual((out, bystander.returncode), ("150 rounds\n", 0))
        self.check_works(server, transport)
        self.assertRegex(server.text(), "which served a session of .*, ended with signal Killed")

    def test_a_killed_worker_shm(self):
        self.check_killed_worker("shm")

    def test_a_killed_worker_tcp(self):
        self.check_killed_worker("tcp")

    def check_host_memory(self, transport, others=0):
        """Kills the worker of a program. If there is another server, the program continues with that server's GPU."""
        servers = [self.server() for _ in range(1 + others)]
        run = self.start(client_environment(BUILD, servers, transport), "rcuda_lost_host_memory")
        os.kill(servers[0].sessions(BUILD)[run.pid], signal.SIGKILL)
        out, err = run.communicate(timeout=HANG_SECONDS)
        lines = "CUDA_ERROR_DEVICE_UNAVAILABLE\n" * 6 + "the other GPU works\n" * others
        self.assertEqual((run.returncode, out), (0, lines), err)
        self.assertEqual(err.count("is lost"), 1, err)
        self.assertNotIn("page-locked", err)
        self.assertNotIn("kept alike", err)

    def test_host_memory_of_a_killed_worker_shm(self):
        self.check_host_memory("shm")

    def test_host_memory_of_a_killed_worker_tcp(self):
        self.check_host_memory("tcp")

    def test_the_other_server_of_a_killed_worker_shm(self):
        self.check_host_memory("shm", others=1)

    def test_the_other_server_of_a_killed_worker_tcp(self):
        self.check_host_memory("tcp", others=1)

    def check_silent_worker(self, transport):
        server = self.server()
        run = self.start(client_environment(BUILD, [server], transport))
        worker = server.sessions(BUILD)[run.pid]
        os.kill(worker, signal.SIGSTOP)
        try:
            self.check_lost(run, server.port)
        finally:
            os.kill(worker, signal.SIGCONT)
        # The worker continues and notices that its client has ended.
        self.assertTrue(eventually(lambda: worker not in server.workers()))
        self.check_works(server, transport)

    def test_a_worker_that_stops_answering_shm(self):
        self.check_silent_worker("shm")

    def test_a_worker_that_stops_answering_tcp(self):
        self.check_silent_worker("tcp")

    def check_stopped_client(self, transport):
        server = self.server(RCUDA_SERVER_PEER_TIMEOUT="500ms")
        run = self.start(client_environment(BUILD, [server], transport))
        worker = server.sessions(BUILD)[run.pid]
        run.send_signal(signal.SIGSTOP)
        self.assertTrue(eventually(lambda: worker not in server.workers()))
        self.assertIn("silent for 500ms: its process is stopped", server.text())
        run.send_signal(signal.SIGCONT)
        self.check_lost(run, server.port, "this process was silent for 500ms")

    def test_a_client_that_is_stopped_for_too_long_shm(self):
        self.check_stopped_client("shm")

    def test_a_client_that_is_stopped_for_too_long_tcp(self):
        self.check_stopped_client("tcp")

    def test_a_network_that_is_gone(self):
        server = self.server(RCUDA_SERVER_PEER_TIMEOUT="2s")
        proxy = Proxy(server.port)
        self.addCleanup(proxy.close)
        # The proxy sends the ticket, so the client must not also identify itself.
        environment = dict(client_environment(BUILD, [server], "tcp", RCUDA_SECURITY="none"),
                           RCUDA_DEVICES=f"127.0.0.1@{proxy.port}:0")
        run = self.start(environment)
        worker = server.sessions(BUILD)[run.pid]
        proxy.gone.set()
        self.check_lost(run, str(proxy.port))
        # The worker, too, gives up its client after some silence.
        self.assertTrue(eventually(lambda: worker not in server.workers()))
        self.assertIn("silent", server.text())
        self.check_works(server, "tcp")

    def check_stuck_worker(self, transport):
        server = self.server(RCUDA_SERVER_STOP_TIMEOUT="1s")
        environment = client_environment(BUILD, [server], transport)
        run = self.start(environment, "stuck")
        worker = server.sessions(BUILD)[run.pid]
        # The call does not return: the driver is executing it.
        self.assertFalse(eventually(lambda: run.poll() is not None, seconds=2))
        self.assertIn(worker, server.workers())
        run.kill()
        # The worker ends with its client, although its thread is blocked in the driver.
        self.assertTrue(eventually(lambda: worker not in server.workers()))
        self.assertIn("a call into the driver does not return", server.text())
        self.check_works(server, transport)

    def test_a_call_that_does_not_return_shm(self):
        self.check_stuck_worker("shm")

    def test_a_call_that_does_not_return_tcp(self):
        self.check_stuck_worker("tcp")

    def with_idle_worker(self, server):
        """The worker of the session, and the idle worker, which starts a moment later."""
        self.assertTrue(eventually(lambda: len(server.workers()) > 1))
        return server.workers()

    def test_a_killed_daemon_and_a_call_that_does_not_return(self):
        server = Server(BUILD, environment={"RCUDA_SERVER_STOP_TIMEOUT": "1s"})
        run = self.start(client_environment(BUILD, [server], "shm"), "stuck")
        workers = self.with_idle_worker(server)
        server.process.kill()
        server.process.wait()
        self.assertTrue(eventually(
            lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers)))
        run.communicate(timeout=HANG_SECONDS)

    def test_a_killed_daemon(self):
        server = Server(BUILD)
        run = self.start(client_environment(BUILD, [server], "tcp"))
        workers = self.with_idle_worker(server)
        server.process.kill()
        server.process.wait()
        self.check_lost(run, server.port)
        self.assertTrue(eventually(
            lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers)))


if __name__ == "__main__":
    run_tests(globals(), "programs")
