#!/usr/bin/env python3
"""tests/check_units.py: which texts it reports as a time or a size that is printed by hand."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "check_units.py"


class CheckUnitsTest(unittest.TestCase):
    def test_lines(self):
        for line, is_by_hand in (
                ('RCUDA_INFO("over after %.1f s", seconds);', True),
                ('std::snprintf(text, sizeof text, "%.1f us predicted: ", us);', True),
                ('RCUDA_INFO("%zu MiB of it", bytes >> 20);', True),
                ('fmt::format("over {}, {} s, worker {}", medium, seconds, worker);', True),
                ('text += fmt::format("{:.1f} us", us);', True),
                ('text += std::to_string(took.count()) + " us";', True),
                ('RCUDA_INFO("over after %s", rounded_time_text(time).c_str());', False),
                ('fmt::format("{} session{}", count, count == 1 ? "" : "s");', False),
                ('std::snprintf(text, sizeof text, "%.2f GB/s", rate);', False),
                ('return "frame of " + std::to_string(bytes) + " bytes";', False),
                ('RCUDA_DEBUG("worker %d stops", pid);', False),
                ('// "%.1f s"', False)):
            with self.subTest(line=line), tempfile.TemporaryDirectory() as root:
                folder = pathlib.Path(root, "server")
                folder.mkdir()
                (folder / "a.cpp").write_text("int a;\n  " + line + "\n")
                done = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
                self.assertEqual(done.returncode, int(is_by_hand), done.stdout)
                self.assertEqual("server/a.cpp:2: " in done.stdout, is_by_hand)


if __name__ == "__main__":
    unittest.main()
