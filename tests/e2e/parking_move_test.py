#!/usr/bin/env python3
"""Parked sessions that wake on another GPU of their server.

    parking_move_test.py --build FOLDER [unittest arguments]
"""

import os
import subprocess
import unittest

import parking_test
from servers import audit_lines, client_environment, eventually, run_tests

BUILD = None
NOBODY = 65534

CODE = """
import ctypes
def identity():
    uuid, address = (ctypes.c_uint8 * 16)(), ctypes.create_string_buffer(32)
    check(cuda.cuDeviceGetUuid_v2(uuid, 0))
    check(cuda.cuDeviceGetPCIBusId(address, 32, 0))
    return bytearray(uuid).hex() + " " + address.value.decode()
""" + parking_test.PROGRAM


class MoveTest(parking_test.Parking):
    def setUp(self):
        parking_test.BUILD = BUILD
        super().setUp()

    def server(self, *arguments, **environment):
        return super().server(*arguments, **{"SOFTGPU_DEVICES": "3", "SOFTGPU_MEMORY": "64M", **environment})

    def program(self, server, **more):
        return super().program(server, code=CODE, **more)

    def move(self, server, program, to, *options, check=True):
        if not self.state(server, program):
            self.park(server, program)
        return self.smi("move", f"127.0.0.1:{server.port}", str(self.session(server, program)["worker"]), "--to", str(to),
                        *options, check=check)

    def used(self, server):
        return [device["used_bytes"] // parking_test.MIB for device in self.look(server)["devices"]]

    def draining(self, server):
        return [device["draining"] for device in self.look(server)["devices"]]

    def devices(self, server, program):
        return self.session(server, program)["devices"]

    def check_uses(self, server, gpu, mib=16):
        def only_there():
            used = self.used(server)
            return used[gpu] >= mib and all(used[other] < mib for other in range(len(used)) if other != gpu)
        self.assertTrue(eventually(only_there), self.used(server))

    def test_a_session_goes_on_with_another_gpu_and_sees_its_old_one(self):
        server = self.server(rules='[limits.user]\ndevice_memory = "60M"\n')
        program = self.program(server)
        self.do(program, "fill 11")
        identity, info = self.do(program, "identity"), self.do(program, "info")
        self.check_uses(server, 0)
        for to in (1, 2, 0):
            answer = self.move(server, program, to)
            self.assertIn(f"wakes on GPU {to}", answer.stdout)
            self.assertEqual(self.devices(server, program), [to])
            self.assertEqual(self.state(server, program), "parked")
            self.assertEqual(self.do(program, "get"), "11")
            self.check_uses(server, to)
            self.assertEqual(self.do(program, "identity"), identity)
            self.assertEqual(self.do(program, "info"), info)
            self.assertEqual(self.do(program, "allocate 4"), "None")
            self.assertEqual(self.do(program, "release"), "None")
        moves = [line for line in audit_lines(self.path("audit"), "control") if line["what"] == "move"]
        self.assertEqual([line["worker"] for line in moves], [self.session(server, program)["worker"]] * 3)

    def test_the_last_of_several_moves_counts(self):
        server = self.server()
        program = self.program(server)
        self.do(program, "fill 12")
        for to in (1, 2):
            self.move(server, program, to)
        self.assertEqual(self.do(program, "get"), "12")
        self.check_uses(server, 2)
        self.move(server, program, 0)
        self.move(server, program, 2)
        self.assertEqual(self.do(program, "get"), "12")
        self.check_uses(server, 2)

    def test_the_quota_of_the_new_gpu_counts(self):
        server = self.server(rules='[limits.user]\ndevice_memory = "24M"\n')
        first = self.program(server)
        self.do(first, "fill 1")
        second = self.program(server, RCUDA_DEVICES=server.address(1))
        self.do(second, "fill 2")
        self.move(server, first, 1)
        self.send(first, "get")  # 16 and 16 MiB exceed the quota on GPU 1
        self.assertFalse(eventually(lambda: self.state(server, first) == "", 0.5))
        third = self.program(server)  # GPU 0 has room again
        self.do(third, "fill 3")
        second.stdin.close()
        self.assertEqual(first.stdout.readline().strip(), "1")
        self.assertEqual(self.do(first, "allocate 9"), "error 2")
        self.assertTrue(eventually(lambda: self.used(server) == [16, 16, 0]), self.used(server))

    def test_it_waits_for_room_on_the_new_gpu(self):
        server = self.server()
        first, second = self.program(server, mib=40), self.program(server, mib=40, RCUDA_DEVICES=server.address(1))
        self.do(first, "fill 1")
        self.do(second, "fill 2")
        self.move(server, first, 1)
        self.send(first, "get")
        self.assertTrue(eventually(lambda: self.state(server, first) == "waiting"), server.text())
        second.stdin.close()
        self.assertEqual(first.stdout.readline().strip(), "1")

    def refusal(self, server, program, to, *options):
        refused = self.move(server, program, to, *options, check=False)
        self.assertEqual(refused.returncode, 1, refused.stdout)
        return refused.stderr

    def test_moves_that_make_no_sense_are_refused(self):
        server = self.server()
        program = self.program(server, RCUDA_DEVICES=f"{server.address(0)},{server.address(2)}")
        self.do(program, "fill 13")
        self.assertIn("name one of them", self.refusal(server, program, 1))
        self.assertIn("does not have GPU 1", self.refusal(server, program, 1, "--from", "1"))
        self.assertIn("has GPU 2 already", self.refusal(server, program, 2, "--from", "0"))
        self.assertIn("does not offer GPU 7", self.refusal(server, program, 7, "--from", "0"))
        self.move(server, program, 1, "--from", "0")
        self.assertEqual(self.devices(server, program), [1, 2])
        self.assertEqual(self.do(program, "get"), "13")
        self.check_uses(server, 1)

    def test_an_older_driver_refuses(self):
        server = self.server(SOFTGPU_DRIVER_VERSION="12080")
        program = self.program(server)
        self.do(program, "fill 14")
        self.assertIn("install NVIDIA driver 580", self.refusal(server, program, 1))
        self.assertEqual(self.do(program, "get"), "14")

    def test_leased_gpus_are_refused(self):
        server = self.server()
        program = self.program(server)
        subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), "take", f"127.0.0.1:{server.port}", "--devices==1", "--for", "1h"], check=True,
                       capture_output=True)
        self.assertIn("lease", self.refusal(server, program, 1))

    def test_a_gpu_that_drains_loses_its_sessions_and_gets_no_new_ones(self):
        server = self.server()
        programs = [self.program(server) for _ in range(3)]
        other = self.program(server, RCUDA_DEVICES=server.address(1))
        for value, program in enumerate(programs):
            self.do(program, f"fill {value}")
        self.smi("drain", f"127.0.0.1:{server.port}", "--gpu", "0")
        self.assertEqual(sorted(self.devices(server, program)[0] for program in [*programs, other]), [1, 1, 2, 2])
        with self.assertRaisesRegex(AssertionError, "GPU 0 of the server is draining"):
            self.program(server)
        for value, program in enumerate(programs):
            self.assertEqual(self.do(program, "get"), str(value))
        self.assertEqual(self.used(server)[0], 0)
        self.assertEqual(self.draining(server), [True, False, False])
        self.assertIn("is draining", self.refusal(server, other, 0))
        self.assertIn("does not offer GPU 9", self.smi("drain", f"127.0.0.1:{server.port}", "--gpu", "9", check=False).stderr)
        self.smi("resume", f"127.0.0.1:{server.port}")
        self.assertEqual(self.draining(server), [False] * 3)
        self.program(server)

    @unittest.skipIf(os.geteuid() != 0, "needs a server of root")
    def test_only_operators_move_sessions(self):
        server = self.server()
        program = self.program(server)
        worker = str(self.session(server, program)["worker"])
        refused = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), "move", f"127.0.0.1:{server.port}", worker, "--to", "1"],
                                 capture_output=True, text=True, user=NOBODY, group=NOBODY, extra_groups=[],
                                 env=client_environment(BUILD, [server]), cwd="/")
        self.assertEqual(refused.returncode, 1, refused.stdout)
        self.assertEqual(self.devices(server, program), [0])


if __name__ == "__main__":
    run_tests(globals())
