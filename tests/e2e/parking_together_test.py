#!/usr/bin/env python3
"""Sessions that can only be parked together, because they share memory or have ranks of one NCCL communicator.

    parking_together_test.py --build FOLDER --nccl LIBRARY [unittest arguments]
"""

import os
import signal
import time

import parking_test
from servers import eventually, run_tests, Server

BUILD = NCCL = None
MANY = {"SOFTGPU_DRIVER_VERSION": "13030"}  # a driver that parks imported memory

# Further commands for programs, besides those of PROGRAM.
CODE = """
import ctypes
class Handle(ctypes.Structure):
    _fields_ = [("octets", ctypes.c_uint8 * 64)]
class Id(ctypes.Structure):
    _fields_ = [("octets", ctypes.c_uint8 * 128)]
opened, comms = ctypes.c_uint64(), []
def nccl():
    return ctypes.CDLL("libnccl.so.2")
def share():
    handle = Handle()
    check(cuda.cuIpcGetMemHandle(ctypes.byref(handle), memory))
    return bytearray(handle).hex()
def open_shared(text):
    check(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(opened), Handle.from_buffer_copy(bytearray.fromhex(text)), 1))
def fill_shared(value):
    check(cuda.cuMemsetD32_v2(opened, ctypes.c_uint(int(value)), ctypes.c_size_t(bytes // 4)))
def get_shared():
    word = ctypes.c_uint()
    check(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), ctypes.c_uint64(opened.value + bytes - 4), ctypes.c_size_t(4)))
    return word.value
def make_id():
    made = Id()
    check(nccl().ncclGetUniqueId(ctypes.byref(made)))
    return bytearray(made).hex()
def join(ranks, rank, text):
    comms.append(ctypes.c_void_p())
    check(nccl().ncclCommInitRank(ctypes.byref(comms[-1]), int(ranks), Id.from_buffer_copy(bytearray.fromhex(text)),
                                  int(rank)))
def leave():
    check(nccl().ncclCommDestroy(comms.pop()))
def reduce():
    check(nccl().ncclAllReduce(memory, memory, ctypes.c_size_t(bytes // 4), 3, 0, comms[-1], None))
    return get()
def suspend():
    check(nccl().ncclCommSuspend(comms[-1], 1))
def resume():
    check(nccl().ncclCommResume(comms[-1]))
""" + parking_test.PROGRAM


class TogetherTest(parking_test.Parking):
    def setUp(self):
        parking_test.BUILD = BUILD
        super().setUp()

    def program(self, server, mib=1, code=CODE, **more):
        return super().program(server, mib=mib, code=code,
                               LD_LIBRARY_PATH=os.path.join(BUILD, "lib/rcuda"), RCUDA_NCCL="server", **more)

    def nccl_server(self, **environment):
        return self.server(RCUDA_SERVER_NCCL=NCCL, NCCL_SOCKET_IFNAME="lo", SOFTGPU_DEVICES="2", **environment)

    def states(self, server, programs):
        return [self.state(server, program) for program in programs]

    def check_refusal(self, server, program, text, others=()):
        refused = self.park(server, program, check=False)
        self.assertEqual(refused.returncode, 1, refused.stdout)
        self.assertIn(text, refused.stderr)
        self.assertEqual(self.states(server, [program, *others]), [""] * (1 + len(others)))

    # ---- memory

    def sharing(self, **environment):
        server = self.server(**environment)
        exporter, importer = self.program(server), self.program(server)
        self.do(exporter, "fill 5")
        self.assertEqual(self.do(exporter, "get"), "5")  # waits for the fill
        self.assertEqual(self.do(importer, "open_shared " + self.do(exporter, "share")), "None")
        self.assertEqual(self.do(importer, "get_shared"), "5")
        return server, exporter, importer

    def test_sessions_that_share_memory_are_parked_and_woken_together(self):
        server, exporter, importer = self.sharing(**MANY)
        for parked, woken in ((exporter, importer), (importer, exporter), (importer, importer)):
            self.park(server, parked)
            self.assertEqual(self.states(server, (exporter, importer)), ["parked"] * 2)
            self.do(woken, "get")
            self.assertTrue(eventually(lambda: self.states(server, (exporter, importer)) == ["", ""]), server.text())
            self.assertEqual(self.do(importer, "get_shared"), "5")
        self.do(importer, "fill_shared 6")
        self.assertEqual(self.do(importer, "get_shared"), "6")  # waits for the fill
        self.assertEqual(self.do(exporter, "get"), "6")

    def test_sessions_that_share_memory_make_room_together(self):
        server, exporter, importer = self.sharing(
            SOFTGPU_MEMORY="64M", SOFTGPU_SHARED_MEMORY=self.path("account"), RCUDA_SERVER_OVERSUBSCRIBE="2",
            RCUDA_SERVER_STAY_AWAKE="0s", **MANY)
        third = self.program(server)
        self.assertEqual(self.do(third, "allocate 62"), "None")
        self.assertEqual(self.states(server, (exporter, importer, third)), ["parked", "parked", ""])
        self.assertEqual(self.do(importer, "get_shared"), "5")
        self.assertEqual(self.states(server, (exporter, importer, third)), ["", "", "parked"])

    def test_an_older_driver_refuses_imported_memory_and_both_go_on(self):
        server, exporter, importer = self.sharing()
        for program, other in ((importer, exporter), (exporter, importer)):
            self.check_refusal(server, program, "does not restore exports (driver 610 does)", [other])
        self.do(importer, "fill_shared 6")
        self.assertEqual(self.do(importer, "get_shared"), "6")  # waits for the fill
        self.assertEqual(self.do(exporter, "get"), "6")

    def test_an_older_driver_does_not_restore_exports(self):
        server = self.server()
        exporter, importer = self.program(server), self.program(server)
        self.do(exporter, "fill 7")
        name = self.do(exporter, "share")
        self.check_refusal(server, exporter, "does not restore exports (driver 610 does)", [importer])
        self.assertEqual(self.do(importer, "open_shared " + name), "None")
        self.assertEqual(self.do(importer, "get_shared"), "7")

    def test_a_session_that_only_offers_memory_is_parked_and_wakes_for_another_that_opens_it(self):
        server = self.server(**MANY)
        exporter, importer = self.program(server), self.program(server)
        self.do(exporter, "fill 7")
        name = self.do(exporter, "share")
        self.park(server, exporter)
        self.assertEqual(self.states(server, (exporter, importer)), ["parked", ""])
        self.assertEqual(self.do(importer, "open_shared " + name), "None")
        self.assertEqual(self.do(importer, "get_shared"), "7")
        self.assertEqual(self.state(server, exporter), "")

    def test_busy_sessions_keep_the_others_from_the_park(self):
        server, exporter, importer = self.sharing(**MANY)
        worker = self.session(server, importer)["worker"]
        os.kill(worker, signal.SIGSTOP)
        self.check_refusal(server, exporter, "its worker did not stop calling the driver in time", [importer])
        self.assertEqual(self.do(exporter, "get"), "5")
        again = self.smi("park", f"127.0.0.1:{server.port}", str(self.session(server, exporter)["worker"]), check=False)
        self.assertIn("has not answered an earlier attempt to park it", again.stderr)
        os.kill(worker, signal.SIGCONT)
        self.assertEqual(self.do(importer, "get_shared"), "5")
        self.park(server, exporter)
        self.assertEqual(self.states(server, (exporter, importer)), ["parked"] * 2)

    def test_the_end_of_one_leaves_the_other(self):
        server, exporter, importer = self.sharing(**MANY)
        self.park(server, exporter)
        os.kill(self.session(server, importer)["worker"], signal.SIGKILL)
        self.assertTrue(eventually(lambda: self.session(server, importer) is None), server.text())
        self.assertEqual(self.do(exporter, "get"), "5")

    def test_a_session_that_shares_memory_with_another_server_is_refused(self):
        servers = [self.server(**MANY), Server(BUILD, environment=MANY)]
        self.addCleanup(servers[1].stop)
        exporter, importer = (self.program(server) for server in servers)
        self.assertEqual(self.do(importer, "open_shared " + self.do(exporter, "share")), "None")
        self.check_refusal(servers[0], exporter, "sessions of other servers")
        self.check_refusal(servers[1], importer, "sessions of other servers")

    def test_idle_sessions_are_parked_when_all_are_idle(self):
        server = self.server('park_after = "1s"\n', **MANY)
        exporter, importer = self.program(server), self.program(server)
        self.do(importer, "open_shared " + self.do(exporter, "share"))
        for _ in range(15):  # the importer is busy
            self.do(importer, "get")
            self.assertEqual(self.states(server, (exporter, importer)), ["", ""])
            time.sleep(0.1)
        self.assertTrue(eventually(lambda: self.states(server, (exporter, importer)) == ["parked"] * 2), server.text())

    def test_there_must_be_room_for_all(self):
        server = self.server(SOFTGPU_MEMORY="128M", **MANY)
        exporter, importer = self.program(server, mib=20), self.program(server, mib=20)
        self.do(exporter, "fill 5")
        self.do(importer, "open_shared " + self.do(exporter, "share"))
        self.park(server, exporter)
        other = self.program(server, mib=70)
        self.do(other, "fill 1")
        self.send(importer, "get_shared")
        self.assertTrue(eventually(lambda: self.states(server, (exporter, importer)) == ["waiting"] * 2), server.text())
        other.stdin.close()
        self.assertEqual(importer.stdout.readline().strip(), "5")
        self.assertEqual(self.do(exporter, "get"), "5")

    # ---- NCCL

    def ranks(self, server):
        programs = [self.program(server), self.program(server, RCUDA_DEVICES=server.address(1))]
        name = self.do(programs[0], "make_id")
        for rank, program in enumerate(programs):
            self.send(program, f"join 2 {rank} {name}")
        for program in programs:
            self.assertEqual(program.stdout.readline().strip(), "None", self.text_of(program.log))
        return programs

    def reduce(self, programs, value):
        """All-reduces the value of two ranks, so that the sum is twice the value."""
        for program in programs:
            self.do(program, f"fill {value}")
        for program in programs:
            self.send(program, "reduce")
        for program in programs:
            self.assertEqual(program.stdout.readline().strip(), str(value * len(programs)), self.text_of(program.log))

    def test_ranks_are_parked_and_woken_together(self):
        server = self.nccl_server()
        programs = self.ranks(server)
        for value in (1, 2, 3):
            self.reduce(programs, value)
            self.park(server, programs[value % 2])
            self.assertEqual(self.states(server, programs), ["parked"] * 2)
        self.reduce(programs, 4)

    def test_a_rank_alone_is_parked(self):
        server = self.nccl_server()
        program = self.program(server)
        self.do(program, "join 1 0 " + self.do(program, "make_id"))
        self.park(server, program)
        self.reduce([program], 5)
        self.do(program, "leave")
        self.park(server, program)
        self.assertEqual(self.do(program, "get"), "5")

    def test_a_communicator_that_the_program_has_suspended_stays_so(self):
        server = self.nccl_server()
        program = self.program(server)
        self.do(program, "join 1 0 " + self.do(program, "make_id"))
        self.assertEqual(self.do(program, "suspend"), "None")
        self.park(server, program)
        self.assertEqual(self.do(program, "resume"), "None")
        self.reduce([program], 6)

    def test_nccl_that_cannot_suspend_is_refused(self):
        for variables, text in (({"TESTNCCL_VERSION": "22800"}, "install 2.29.7 or later"),
                                ({"TESTNCCL_SUSPEND": "fails"}, "ncclCommSuspend of an NCCL communicator returned")):
            with self.subTest(text):
                server = self.nccl_server(**variables)
                programs = self.ranks(server)
                self.check_refusal(server, programs[0], text, programs[1:])
                self.reduce(programs, 7)

    def test_ranks_of_other_servers_are_refused(self):
        environment = {"RCUDA_SERVER_NCCL": NCCL, "NCCL_SOCKET_IFNAME": "lo"}
        servers = [self.server(**environment), Server(BUILD, index=1, environment=environment)]
        self.addCleanup(servers[1].stop)
        programs = [self.program(server) for server in servers]
        name = self.do(programs[0], "make_id")
        for rank, program in enumerate(programs):
            self.send(program, f"join 2 {rank} {name}")
        for program in programs:
            self.assertEqual(program.stdout.readline().strip(), "None", self.text_of(program.log))
        self.check_refusal(servers[0], programs[0], "ranks of other servers")
        self.reduce(programs, 8)

    def test_a_rank_that_ends_while_parked_does_not_hang_the_other(self):
        server = self.nccl_server()
        programs = self.ranks(server)
        self.do(programs[0], "fill 9")
        self.park(server, programs[0])
        programs[1].kill()
        self.assertTrue(eventually(lambda: self.session(server, programs[1]) is None), server.text())
        self.assertEqual(self.do(programs[0], "get"), "9")
        self.assertIn("error", self.do(programs[0], "reduce"))


if __name__ == "__main__":
    run_tests(globals(), "nccl")
