#!/usr/bin/env python3
"""rcuda.connect(): the messages of its errors.

    connect_test.py LIBRARIES      the folder of the built libnvidia-ml.so.1
"""

import importlib.util
import pathlib
import socket
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
LIBRARIES = None


def load():
    """The module alone, because the package is not installed."""
    spec = importlib.util.spec_from_file_location("rcuda_connect", SOURCE / "python/rcuda/_connect.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LIBRARIES = LIBRARIES
    return module


class ConnectTest(unittest.TestCase):
    def test_wrong_types(self):
        for devices, *texts in ((["node1:0"], "not list", '",".join'), (("node1:0",), "not tuple", '",".join'),
                                (0, "not int"), (b"node1:0", "not bytes"), ({}, "not dict"), (False, "not bool")):
            with self.assertRaises(TypeError) as raised:
                load().connect(devices)
            for text in ('takes a text such as "node1:0,node2:0"', *texts):
                self.assertIn(text, str(raised.exception))

    def test_no_devices(self):
        module = load()
        with self.assertRaisesRegex(module.Error, "no GPUs are named: write rcuda.connect"):
            module.connect("")

    def test_a_reason_is_our_line(self):
        lost = "GPU 0 of the list: GPU is lost\n"
        ours = "2026-11-29T10:00:00.123Z rcuda[12] error: "
        for text, reason in ((ours + "cannot connect to node1\n" + lost, "cannot connect to node1"),
                             (f"{ours}one\n{ours.replace('error', 'warning')}two\n{lost}", "one\ntwo"),
                             (lost, "GPU 0 of the list: GPU is lost"), ("", "")):
            self.assertEqual(load()._reason_of(text), reason)

    def test_a_list_that_is_no_pool(self):
        for pool, reason in (("node1", '"node1" is not a device: the ":gpu" is missing'),
                             ("node1:0;node2:0", "commas separate devices, semicolons do not"),
                             ("node1:x", '"x" is not a GPU number'), ("udp:node1:0", '"udp" is not a medium')):
            module = load()
            with self.assertRaises(module.Error) as raised:
                module.connect(pool)
            self.assertIn(f"no connection to {pool}: ", str(raised.exception))
            self.assertIn(reason, str(raised.exception))

    def test_a_server_that_is_not_there(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        module = load()
        with self.assertRaises(module.Error) as raised:
            module.connect(f"127.0.0.1@{port}:0")
        text = str(raised.exception)
        self.assertTrue(text.startswith(f"no connection to 127.0.0.1@{port}:0: "), text)
        self.assertIn(f"cannot connect to 127.0.0.1:{port} (Connection refused)", text)
        self.assertNotIn("is lost", text)
        self.assertNotIn("rcuda[", text)


if __name__ == "__main__":
    LIBRARIES = sys.argv.pop(1)
    unittest.main()
