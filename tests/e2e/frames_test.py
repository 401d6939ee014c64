#!/usr/bin/env python3
"""The cost of CUDA calls on the wire: a post has no answer, and a waiting call takes one round trip.
The worker counts the commands that it receives and the answers that it sends, in a session with few
calls and in one with many. The difference does not contain the cost of the session itself.

    frames_test.py --build FOLDER [unittest arguments]
"""

import os
import re
import subprocess
import unittest

from servers import Server, client_environment, eventually, run_tests

BUILD = None
FEW, MANY = 10, 210

# (commands, answers) of one call.
EVERYWHERE = {
    "launch": (1, 0),
    "record": (1, 0),
    "wait_event": (1, 0),
    "query_done": (0, 0),
    # After the GPU's writes to mapped memory are fetched, later queries of the record fetch nothing.
    "query_done_beside_mapped": (0, 0),
    "memset": (1, 0),
    "create_event": (2, 0),
    "pinned_up_async": (1, 0),
    "pinned_up_async_4m": (1, 0),
    "pinned_up_1m": (1, 1),
    "pinned_down_async": (1, 0),
    "pageable_up": (1, 0),
    # The client asks for the address of the variable only once.
    "symbol_up": (1, 0),
    "pageable_down": (1, 1),
    "pinned_down": (1, 1),
    "memset_synchronize": (2, 1),
    # Two copies. Each waits itself, and nothing is queued after it, so the synchronization sends nothing.
    "pageable_down_synchronize": (2, 2),
    "synchronize": (0, 0),
    "synchronize_device": (0, 0),
    "allocate": (2, 2),
    # Four commands: ask whether the server has the image, load it, ask for its function, unload it. The image is not
    # sent again.
    "load_kernel_again": (4, 3),
    "load_one_of_many": (4, 3),
    # The client keeps the answer to the first call.
    "active_clusters": (0, 0),
    "active_clusters_with_attributes": (0, 0),
    "launch_with_attributes": (1, 0),
}
# An image that the server lacks, over TCP: the client sends the question whether the server has it together with the
# image, then the load together with the question for the function. Over shared memory: the client first sends the load
# and the question for the function without the image. They fail, and the client sends them again after the image. Over
# TCP, if an image has few functions, the client asks for all of them while the server loads the image. Over TCP, the bytes
# of page-locked memory travel with the command, and the wait is a separate command. A copy of 64 KB takes two answers,
# which the client requests together. Before a launch, the client sends the host's changes of
# memory that the kernel may use.
BY_MEDIUM = {
    "shm": {"pinned_up": (1, 1), "pinned_down_64k": (1, 1), "memset_pinned_up_beside_mapped": (2, 1),
            "load_new_kernel": (7, 5), "load_new_and_known_kernel": (11, 8), "load_one_of_three": (4, 3),
            "launch_in_structure": (1, 0), "launch_beside_structure": (1, 0), "launch_beside_pointer": (1, 0)},
    "tcp": {"pinned_up": (2, 1), "pinned_down_64k": (2, 2), "memset_pinned_up_beside_mapped": (3, 1),
            "load_new_kernel": (5, 3), "load_new_and_known_kernel": (9, 6), "load_one_of_three": (6, 5),
            "launch_in_structure": (2, 0), "launch_beside_structure": (1, 0), "launch_beside_pointer": (2, 0)},
}
# After this many places in a stream's queue, the client posts a mark, to find out how far the stream is
# (client/session/timeline.cpp). A call takes one place, or more if its bytes travel separately (PLACES).
BETWEEN_MARKS = 252
PLACES = {"tcp": {"pinned_down_async": 3, "pinned_up_async_4m": 9}}


class FramesTest(unittest.TestCase):
    def setUp(self):
        self.server = Server(BUILD)

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0, self.server.text())

    def session(self, medium, call, count):
        """Commands and answers of a session that makes the call `count` times."""
        client = subprocess.Popen(
            [os.path.join(BUILD, "tests/e2e/frames"), call, str(count)],
            env=client_environment(BUILD, [self.server], medium))
        self.assertEqual(client.wait(timeout=60), 0)
        over = re.compile(rf"\(pid {client.pid}\) over .*: (\d+) commands, (\d+) answers")
        self.assertTrue(eventually(lambda: over.search(self.server.text())), self.server.text())
        return [int(number) for number in over.search(self.server.text()).groups()]

    def check(self, medium):
        for call, (commands, answers) in {**EVERYWHERE, **BY_MEDIUM[medium]}.items():
            with self.subTest(medium=medium, call=call):
                places = PLACES.get(medium, {}).get(call, 1)
                marks = MANY * places // BETWEEN_MARKS - FEW * places // BETWEEN_MARKS
                few = self.session(medium, call, FEW)
                many = self.session(medium, call, MANY)
                # Each mark has an answer, because the program waits for its work before it ends.
                self.assertEqual([m - f for m, f in zip(many, few)],
                                 [commands * (MANY - FEW) + marks, answers * (MANY - FEW) + marks])

    def test_shared_memory(self):
        self.check("shm")

    def test_tcp(self):
        self.check("tcp")


if __name__ == "__main__":
    run_tests(globals())
