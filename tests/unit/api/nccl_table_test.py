#!/usr/bin/env python3
"""Checks our libnccl.so.2 and api/table/nccl.toml: the library exports every function of the table and nothing else, under
NCCL's SONAME and without versions, so that it satisfies programs that were linked to NCCL. And the table agrees with the
header of each NCCL that is installed here (nvidia-nccl wheels, the system's).

    nccl_table_test.py TABLE LIBRARY NM READELF [FOLDER]

FOLDER: where wheels may be unpacked.
"""

import pathlib
import re
import subprocess
import sys
import tomllib
import unittest

TABLE, LIBRARY, NM, READELF = sys.argv[1:5]
FOLDERS = [pathlib.Path(path) for path in sys.argv[5:]]
OURS = {"rcuda_nccl_stub"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def headers():
    found = [pathlib.Path("/usr/include/nccl.h")]
    for folder in FOLDERS:
        found += folder.glob("**/nvidia/nccl/include/nccl.h")
    return [path for path in found if path.exists()]


def split(parameters):
    return [text for text in map(str.strip, parameters.split(",")) if text not in ("", "void")]


def kind(text):
    """How a caller passes the parameter: as a pointer, a struct by value, or a number of some width."""
    if "*" in text or re.search(r"\b(ncclComm_t|ncclWindow_t|cudaStream_t|ncclParamHandle_t)\b", text):
        return "pointer"
    for name, by_value in (("UniqueId", "id"), ("Team", "team"), ("Multimem", "multimem")):
        if name in text and "TeamMode" not in text:
            return by_value
    return "size" if "size_t" in text else "number"


def declarations(header):
    """name -> kinds of the parameters."""
    text = header.read_text()
    for more in ("nccl_device/host.h",):
        if (header.parent / more).exists():
            text += (header.parent / more).read_text()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    pattern = re.compile(r"(?:ncclResult_t|ncclTeam_t|const char\*|int|void)\s+(nccl\w+)\s*\(([^()]*)\)\s*;", re.S)
    return {name: [kind(p) for p in split(parameters)] for name, parameters in pattern.findall(text)}


class NcclTable(unittest.TestCase):
    def setUp(self):
        with open(TABLE, "rb") as file:
            self.table = tomllib.load(file)

    def test_the_library_exports_the_table(self):
        exported = {line.split()[-1] for line in run(NM, "-D", "--defined-only", LIBRARY).splitlines()}
        expected = set(self.table) | {f"p{name}" for name in self.table} | OURS
        self.assertEqual(exported, expected)

    def test_its_name_is_nccls_and_it_needs_no_client(self):
        dynamic = run(READELF, "-d", LIBRARY)
        self.assertIn("soname: [libnccl.so.2]", dynamic)
        self.assertNotRegex(dynamic, r"NEEDED.*(cuda|stdc)")

    def test_the_table_has_the_functions_of_installed_headers(self):
        for header in headers():
            for name, kinds in declarations(header).items():
                with self.subTest(header=str(header), function=name):
                    self.assertIn(name, self.table)
                    ours = re.search(r"\((.*)\)", self.table[name]["signature"])[1]
                    self.assertEqual([kind(p) for p in split(ours)], kinds)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
