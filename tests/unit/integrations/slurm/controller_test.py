#!/usr/bin/env python3
"""The controller's part of the Slurm integration: the pool's file, the choice of devices, and the devices of jobs."""

import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import threading
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../..")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "integrations/slurm/controller"))
from pool import choose, list_text, parse_licences, parse_pool, usable  # noqa: E402
from state import Entry, State  # noqa: E402

POOL = """
# the cheapest first
l4    24G  node[08-10]:0-3
h100  80G  gpu1:0-7 gpu2@9000:0-3,6   # one is broken
part  20G  shares=2 [fe80::1]:0-1
"""


class PoolTest(unittest.TestCase):
    def test_types_in_the_order_of_the_file(self):
        pool = parse_pool(POOL)
        self.assertEqual(list(pool), ["l4", "h100", "part"])
        self.assertEqual(list(pool["l4"].servers), ["node08", "node09", "node10"])
        self.assertEqual(pool["h100"].servers["gpu2@9000"], [0, 1, 2, 3, 6])
        self.assertEqual(list(pool["part"].servers), ["[fe80::1]"])
        self.assertEqual([one.memory_mib for one in pool.values()], [24 << 10, 80 << 10, 20 << 10])
        self.assertEqual([one.licences() for one in pool.values()], [12, 13, 4])

    def test_a_bad_line_is_named(self):
        for line, text in (("h100 80G", "write a type"), ("h100 80 gpu1:0", "80 is not a size"), ("h100 1.G gpu1:0", "1.G is not a size"), ("h,1 80G gpu1:0", "h,1"),
                           ("h100 80G gpu1", "gpu1 is not a server"), ("h100 80G gpu1:3-0", "3-0"),
                           ("h100 80G gpu1:0 gpu1:1", "gpu1 is named twice"),
                           ("h100 80G gpu1:0 GPU1@8308:1", "gpu1 is named twice"),
                           ("h100 80G gpu1:0\na100 80G gpu1@8308:0", "device 0 of gpu1 is in type h100 as well"),
                           ("h100 80G gpu1:0\nh100 80G gpu2:0", "twice"),
                           ("h100 80G gpu1:0\nl4 24G gpu1:0-1", "device 0 of gpu1 is in type h100")):
            with self.assertRaisesRegex(ValueError, "^line [23]: .*" + text):
                parse_pool("\n" + line)

    def test_licences_of_a_job(self):
        self.assertEqual(parse_licences("matlab:1,rcuda_h100:2"), {"h100": 2})
        self.assertEqual(parse_licences("rcuda_h100"), {"h100": 1})
        self.assertEqual(parse_licences("matlab:1"), {})

    def test_lists(self):
        self.assertEqual(list_text([3, 0, 1, 6]), "0-1,3,6")
        self.assertEqual(list_text([]), "")


class ReasonTest(unittest.TestCase):
    def test_a_reason_is_the_last_line(self):
        loader = importlib.machinery.SourceFileLoader("rcuda_slurm",
                                                      os.path.join(ROOT, "integrations/slurm/controller/rcuda-slurm"))
        script = importlib.util.module_from_spec(importlib.util.spec_from_loader("rcuda_slurm", loader))
        loader.exec_module(script)
        why = "cannot connect to gpu1:8308 (Connection refused)"
        warning = "rcuda-lease: RCUDA_WIAT is not a variable of rcuda\n"
        for errors in (f"rcuda-lease: {why}\n", f"{warning}rcuda-lease: {why}\n", f"\n{warning}{why}"):
            self.assertEqual(script.reason(errors), why)
        self.assertEqual(script.reason("\n"), "rcuda-lease failed")


class ChooseTest(unittest.TestCase):
    def setUp(self):
        self.h100 = parse_pool("h100 80G a:0-3 b:0-3 c:0-3")["h100"]

    def test_a_job_fills_the_fullest_server_that_can_hold_it(self):
        used = {("b", 0): 1, ("b", 1): 1}
        self.assertEqual(choose(self.h100, 2, used, {}), {"b": [2, 3]})
        self.assertEqual(choose(self.h100, 3, used, {}), {"a": [0, 1, 2]})

    def test_a_large_job_gets_few_servers(self):
        self.assertEqual(choose(self.h100, 6, {("a", 0): 1}, {}), {"b": [0, 1, 2, 3], "c": [0, 1]})
        self.assertEqual(choose(self.h100, 12, {}, {}), {name: [0, 1, 2, 3] for name in "abc"})
        self.assertIsNone(choose(self.h100, 13, {}, {}))

    def test_servers_that_do_not_answer_are_left_out(self):
        self.assertEqual(choose(self.h100, 1, {}, {"a": "down", "b": "down"}), {"c": [0]})
        self.assertIsNone(choose(self.h100, 9, {}, {"a": "down"}))

    def test_shares(self):
        part = parse_pool("part 20G shares=2 a:0-1")["part"]
        self.assertEqual(choose(part, 1, {("a", 0): 1}, {}), {"a": [1]})
        self.assertEqual(choose(part, 2, {("a", 0): 1}, {}), {"a": [0, 1]})
        self.assertIsNone(choose(part, 2, {("a", 0): 2}, {}))


class UsableTest(unittest.TestCase):
    """a, b and c have four devices each."""
    h100 = parse_pool("h100 80G a:0-3 b:0-3 c:0-3")["h100"]

    def usable(self, jobs, *away):
        return usable(self.h100, jobs, away)

    def test_what_is_there(self):
        self.assertEqual(self.usable({}), 12)
        self.assertEqual(self.usable({}, "a", "x"), 8)

    def test_jobs_keep_what_they_have_of_a_server_that_is_away(self):
        jobs = {"1": Entry("h100", "1a2b3c4d", {"a": [0, 1], "b": [0]}), "2": Entry("l4", "1a2b3c4d", {"a": [0]})}
        self.assertEqual(self.usable(jobs), 12)
        self.assertEqual(self.usable(jobs, "a"), 10)

    def test_what_was_not_given_back_is_nobodys(self):
        jobs = {"1/1a2b3c4d": Entry("h100", "1a2b3c4d", {"a": [0, 1]})}
        self.assertEqual(self.usable(jobs), 10)
        self.assertEqual(self.usable(jobs, "a"), 8)

    def test_servers_that_have_left_the_pool(self):
        self.assertEqual(self.usable({"1": Entry("h100", "1a2b3c4d", {"d": [0]})}), 13)
        self.assertEqual(self.usable({"1/1a2b3c4d": Entry("h100", "1a2b3c4d", {"d": [0]})}), 12)

    def test_shared_devices_count_as_often(self):
        part = parse_pool("part 20G shares=2 a:0-1 b:0")["part"]
        self.assertEqual(usable(part, {"1": Entry("part", "1a2b3c4d", {"b": [0]})}, ["b"]), 5)


class StateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_it_is_kept_for_its_owner_only(self):
        with State(self.folder).locked() as state:
            state.put("1", Entry("h100", "1a2b3c4d", {"a": [0, 1, 2, 6], "[fe80::1]@9000": [0]}))
            state.put("2", Entry("h100", "1a2b3c4e", {"b": [0]}))
        with State(self.folder).locked() as state:
            entry = state.get("1")
            self.assertEqual((entry.type, entry.lease, entry.devices),
                             ("h100", "1a2b3c4d", {"a": [0, 1, 2, 6], "[fe80::1]@9000": [0]}))
            self.assertEqual(entry.grant(), "1a2b3c4d a:0-2,6 [fe80::1]@9000:0")
            self.assertEqual(state.used({"b": [0, 1]}), {("b", 0): 1})
            self.assertIsNone(state.get("3"))
        self.assertEqual(os.stat(os.path.join(self.folder, "jobs")).st_mode & 0o777, 0o600)

    def test_an_error_changes_nothing(self):
        with self.assertRaises(RuntimeError), State(self.folder).locked() as state:
            state.put("1", Entry("h100", "1a2b3c4d", {"a": [0]}))
            raise RuntimeError
        with State(self.folder).locked() as state:
            self.assertEqual(state.jobs, {})

    def test_one_at_a_time(self):
        def add(name):
            for i in range(20):
                with State(self.folder).locked() as state:
                    state.put(f"{name}.{i}", Entry("h100", "1a2b3c4d", {"a": [0]}))
        threads = [threading.Thread(target=add, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with State(self.folder).locked() as state:
            self.assertEqual(len(state.jobs), 80)

    def test_a_failed_server_is_avoided_for_a_while(self):
        with State(self.folder).locked() as state:
            state.avoid("a", "down")
            state.failures["b"] = "0 long ago"
            self.assertEqual(state.avoided(), {"a": "down"})
        with State(self.folder).locked() as state:
            self.assertEqual(state.avoided(), {"a": "down"})


if __name__ == "__main__":
    unittest.main()
