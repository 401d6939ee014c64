#!/usr/bin/env python3
"""Sessions that take turns on their GPU, because together they hold more memory than it has (oversubscribe).

    turns_test.py --build FOLDER [unittest arguments]
"""

import os
import random
import subprocess
import threading
import time
import unittest

import parking_test
from parking_test import MIB
from servers import eventually, run_tests

BUILD = None
NOBODY = 65534

CODE = """
import ctypes, random
streams = [ctypes.c_void_p(), ctypes.c_void_p()]
flag, last = ctypes.c_uint64(), 0
def read(offset):
    word = ctypes.c_uint()
    check(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), ctypes.c_uint64(memory.value + offset), ctypes.c_size_t(4)))
    return word.value
def offsets():
    return [0, bytes // 2, bytes - 4] + [random.randrange(bytes // 4) * 4 for _ in range(8)]
def work(value):
    # The memory must have the value of the last call. Fills one half and copies it to the other half.
    global last
    wrong = [offset for offset in offsets() if last and read(offset) != last]
    last, half = int(value), bytes // 2
    check(cuda.cuMemsetD32_v2(memory, ctypes.c_uint(last), ctypes.c_size_t(half // 4)))
    check(cuda.cuMemcpyDtoD_v2(ctypes.c_uint64(memory.value + half), memory, ctypes.c_size_t(half)))
    wrong += [offset for offset in offsets() if read(offset) != last]
    return "wrong " + str(wrong) if wrong else "right"
def block():
    # Starts work that ends only with unblock().
    for stream in streams: check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    check(cuda.cuMemAlloc_v2(ctypes.byref(flag), ctypes.c_size_t(4)))
    check(cuda.cuMemsetD32_v2(flag, ctypes.c_uint(0), ctypes.c_size_t(1)))
    check(cuda.cuStreamWaitValue32_v2(streams[0], flag, ctypes.c_uint(1), 0))
def unblock():
    check(cuda.cuStreamWriteValue32_v2(streams[1], flag, ctypes.c_uint(1), 0))
    check(cuda.cuStreamSynchronize(streams[0]))
def loop(seconds):
    import time
    end, rounds = time.monotonic() + float(seconds), 0
    while time.monotonic() < end:
        fill(rounds + 1)
        if read(bytes - 4) != rounds + 1: return "wrong"
        rounds += 1
    return "right"
""" + parking_test.PROGRAM


class Turns(parking_test.Parking):
    def setUp(self):
        parking_test.BUILD = BUILD
        super().setUp()

    def server(self, settings="", rules="", **more):
        settings = "oversubscribe = 2.0\n" * ("oversubscribe" not in settings) + settings
        settings = 'stay_awake = "0s"\n' * ("stay_awake" not in settings) + settings
        return super().server(settings, rules, **{"SOFTGPU_MEMORY": "64M", "SOFTGPU_SHARED_MEMORY": self.path("account"), **more})

    def start_program(self, server, mib=40, **more):
        return super().start_program(server, mib=mib, code=CODE, **more)


class TurnsTest(Turns):
    def test_eight_sessions_of_half_the_gpu_take_turns(self):
        server = self.server('oversubscribe = 4.0\nstay_awake = "100ms"\n', SOFTGPU_MEMORY="72M")
        faults = []

        def use(seed):
            chance, program = random.Random(seed), None
            try:
                program = self.program(server, mib=32)
                for turn in range(1, 7):
                    time.sleep(chance.uniform(0, 0.3))
                    self.assertEqual(self.do(program, f"work {seed * 100 + turn}"), "right", self.text_of(program.log))
            except Exception as fault:
                faults.append((seed, fault))

        threads = [threading.Thread(target=use, args=[seed]) for seed in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(faults, [], server.text())
        self.assertIn("because another session needs its GPU memory", server.text())
        self.assertNotIn("ends:", server.text())

    def test_an_allocation_and_a_wake_park_the_session_that_has_been_idle_longest(self):
        server = self.server()
        first, second = self.program(server, mib=30), self.program(server, mib=30)
        third = self.program(server, mib=1)
        self.do(first, "work 1")
        self.do(second, "work 2")
        self.assertEqual(self.do(third, "allocate 30"), "None")
        self.assertEqual([self.state(server, one) for one in (first, second, third)], ["parked", "", ""])
        self.assertIn(f"because another session needs its GPU memory (worker {self.session(server, third)['worker']})", server.text())
        self.assertEqual(self.do(first, "work 3"), "right")
        self.assertEqual([self.state(server, one) for one in (first, second, third)], ["", "parked", ""])
        self.assertEqual(self.do(second, "work 4"), "right")

    def test_parking_by_request_and_by_time_goes_on(self):
        server = self.server('park_after = "200ms"\n')
        program = self.program(server)
        self.assertTrue(eventually(lambda: self.state(server, program) == "parked"), server.text())
        self.assertEqual(self.do(program, "work 1"), "right")

    def test_free_memory_includes_what_other_sessions_would_give(self):
        server = self.server("oversubscribe = 1.5\n")
        first, second = self.program(server, mib=40), self.program(server, mib=1)
        self.assertEqual(self.do(second, "info"), str((96 - 42) * MIB))  # the server counts the 1 MiB as 2 MiB
        self.assertEqual(self.do(second, "allocate 40"), "None")
        self.assertEqual(self.state(server, first), "parked")
        self.assertEqual(self.do(second, "info"), str(23 * MIB))
        self.assertEqual(self.do(second, "allocate 24"), "error 2")

    def test_sessions_hold_no_more_than_the_setting_allows(self):
        server = self.server("oversubscribe = 1.5\n")
        first, second = self.program(server, mib=40), self.program(server, mib=40)
        third = self.program(server, mib=1)
        self.assertEqual(self.state(server, first), "parked")
        self.assertEqual(self.do(third, "allocate 40"), "error 2")
        self.assertIn("cannot allocate 40 MiB on GPU 0", server.text())
        self.assertIsNone(second.poll())

    def test_without_the_setting_nothing_is_parked(self):
        server = self.server("oversubscribe = 1\n")
        first, second = self.program(server, mib=40), self.program(server, mib=1)
        self.assertEqual(self.do(second, "allocate 40"), "error 2")
        self.assertEqual(self.do(second, "info"), str(23 * MIB))
        self.assertEqual(self.state(server, first), "")

    def test_a_session_with_work_is_not_parked(self):
        server = self.server()
        first, second = self.program(server, mib=40), self.program(server, mib=1)
        self.assertEqual(self.do(first, "block"), "None")
        self.assertEqual(self.do(second, "allocate 40"), "error 2")
        self.assertEqual(self.state(server, first), "")
        self.assertEqual(self.do(first, "unblock"), "None")
        self.assertEqual(self.do(second, "allocate 40"), "None")
        self.assertEqual(self.state(server, first), "parked")
        second.stdin.close()
        second.wait()
        self.assertEqual(self.text_of(second.log).count("asked for 40 MiB of device 0, which has no room: no other session can be parked"), 1)

    def test_two_sessions_that_need_each_others_room_do_not_wait_for_each_other(self):
        server = self.server("oversubscribe = 3.0\n")
        programs = [self.program(server, mib=30), self.program(server, mib=30)]
        for program in programs:
            self.send(program, "allocate 30")
        answers = [program.stdout.readline().strip() for program in programs]
        self.assertIn("None", answers, server.text())
        for program in programs:
            self.assertEqual(self.do(program, "work 5"), "right")

    def test_a_session_that_woke_stays_awake_for_a_while(self):
        server = self.server('stay_awake = "5s"\n')
        first, second = self.program(server, mib=40), self.program(server, mib=1)
        self.send(second, "allocate 40")
        time.sleep(0.5)
        self.assertEqual(self.state(server, first), "")
        self.assertEqual(second.stdout.readline().strip(), "None")
        self.assertEqual(self.state(server, first), "parked")

    def test_a_client_that_ends_while_it_waits_leaves_nothing(self):
        server = self.server('stay_awake = "1h"\n')
        first, second = self.program(server, mib=40), self.program(server, mib=1)
        self.send(second, "allocate 40")
        time.sleep(0.3)
        second.kill()
        self.assertTrue(eventually(lambda: len(self.look(server)["sessions"]) == 1), server.text())
        self.assertEqual(self.do(first, "work 1"), "right")

    def test_room_of_a_session_that_ends_is_used(self):
        server = self.server('stay_awake = "1h"\n')
        first, second = self.program(server, mib=40), self.program(server, mib=1)
        self.send(second, "allocate 40")
        time.sleep(0.3)
        first.stdin.close()
        self.assertEqual(second.stdout.readline().strip(), "None")

    def test_the_start_of_a_worker_parks_the_session_that_has_been_idle_longest(self):
        server = self.server("oversubscribe = 3.0\n", options=["--pool", "0"], SOFTGPU_CONTEXT_MEMORY="14M")
        first, second = self.program(server, mib=14), self.program(server, mib=14)
        self.do(first, "work 1")
        self.do(second, "work 2")
        third = self.program(server, mib=2)
        self.assertEqual([self.state(server, one) for one in (first, second, third)], ["parked", "", ""], server.text())
        self.assertIn("because a new session needs its GPU memory", server.text())
        self.assertEqual(self.do(third, "work 3"), "right")
        self.assertEqual(self.do(first, "work 4"), "right")

    def test_a_session_with_work_is_not_parked_for_the_start_of_a_worker(self):
        server = self.server(options=["--pool", "0"], SOFTGPU_CONTEXT_MEMORY="20M")
        first = self.program(server, mib=30)
        self.assertEqual(self.do(first, "block"), "None")
        second = self.start_program(server, mib=2)
        time.sleep(1)
        self.assertEqual(self.state(server, first), "")
        self.assertEqual(self.do(first, "unblock"), "None")
        self.assertEqual(second.stdout.readline().strip(), "ready", self.text_of(second.log) + server.text())
        self.assertEqual(self.state(server, first), "parked")

    def test_thrashing_is_reported_once(self):
        server = self.server()
        programs = [self.program(server, mib=40), self.program(server, mib=40)]
        for round in range(1, 16):
            for program in programs:
                self.assertEqual(self.do(program, f"work {round}"), "right")
        self.assertEqual(server.text().count("sessions displace each other"), 1, server.text())


class MovableTurnsTest(Turns):
    """The same tests with memory that the workers themselves move."""
    way = "worker"

    test_eight_sessions_of_half_the_gpu_take_turns = TurnsTest.test_eight_sessions_of_half_the_gpu_take_turns
    test_an_allocation_and_a_wake_park_the_session_that_has_been_idle_longest = (
        TurnsTest.test_an_allocation_and_a_wake_park_the_session_that_has_been_idle_longest)
    test_a_session_with_work_is_not_parked = TurnsTest.test_a_session_with_work_is_not_parked
    test_the_start_of_a_worker_parks_the_session_that_has_been_idle_longest = (
        TurnsTest.test_the_start_of_a_worker_parks_the_session_that_has_been_idle_longest)


@unittest.skipIf(os.geteuid() != 0, "needs a server of root, for sessions of two users")
class PriorityTest(Turns):
    """Sessions of nobody have a higher priority than those of root."""

    def server(self, settings="", **more):
        return super().server(settings, "[limits.users.nobody.session]\npriority = 10\n", options=["--users", "nobody"], **more)

    def nobody(self, server, **more):
        return self.program(server, user=NOBODY, HOME="/", **more)

    def test_a_higher_priority_displaces_a_session_that_has_just_woken(self):
        server = self.server('stay_awake = "1h"\n')
        low, high = self.program(server, mib=40), self.nobody(server, mib=1)
        self.assertEqual([self.session(server, one)["priority"] for one in (low, high)], [0, 10])
        self.assertEqual(self.do(high, "allocate 40"), "None")
        self.assertEqual(self.state(server, low), "parked")

    def test_a_session_with_work_stays_without_preempt(self):
        server = self.server()
        low, high = self.program(server, mib=40), self.nobody(server, mib=1)
        self.do(low, "block")
        self.assertEqual(self.do(high, "allocate 40"), "error 2")
        self.assertEqual(self.do(low, "unblock"), "None")

    def test_preempt_parks_a_session_between_its_commands(self):
        server = self.server('preempt = true\nstay_awake = "1h"\n')
        low, high = self.program(server, mib=40), self.nobody(server, mib=1)
        self.send(low, "loop 3")
        time.sleep(0.5)
        self.assertEqual(self.do(high, "allocate 40"), "None")
        self.assertIn(self.state(server, low), ("parked", "waiting"))
        self.assertEqual(self.do(high, "release"), "None")
        self.assertEqual(low.stdout.readline().strip(), "right")

    def test_preempt_gives_up_if_the_work_does_not_end(self):
        server = self.server('preempt = true\npreempt_wait = "300ms"\n')
        low, high = self.program(server, mib=40), self.nobody(server, mib=1)
        self.do(low, "block")
        self.assertEqual(self.do(high, "allocate 40"), "error 2")
        self.assertEqual(self.do(low, "unblock"), "None")
        self.assertEqual(self.do(low, "work 3"), "right")

    def test_preempt_does_not_park_a_session_of_the_same_priority(self):
        server = self.server("preempt = true\n")
        low, other = self.program(server, mib=40), self.program(server, mib=1)
        self.do(low, "block")
        self.assertEqual(self.do(other, "allocate 40"), "error 2")
        self.assertEqual(self.do(low, "unblock"), "None")


class LeaseTest(Turns):
    def lease(self, server, *options):
        taken = subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), "take", f"127.0.0.1:{server.port}", "--devices", "1",
                                "--for", "never", "--shared", *options], capture_output=True, text=True)
        self.assertEqual(taken.returncode, 0, taken.stderr)
        return {"RCUDA_LEASE": dict(line.split("=", 1) for line in taken.stdout.split())["RCUDA_LEASE"]}

    def test_a_leased_gpu_is_oversubscribed_only_if_the_lease_says_so(self):
        server = self.server("oversubscribe = 3.0\n")
        plain, flagged = self.lease(server), self.lease(server, "--oversubscribe")
        leased, other = self.program(server, mib=40, **plain), self.program(server, mib=1)
        self.assertEqual(self.do(other, "allocate 40"), "error 2")
        self.assertEqual(self.state(server, leased), "")
        leased.stdin.close()
        leased.wait()
        leased = self.program(server, mib=40, **flagged)
        self.assertEqual(self.do(other, "allocate 40"), "None", server.text())
        self.assertEqual(self.state(server, leased), "parked")


if __name__ == "__main__":
    run_tests(globals())
