#!/usr/bin/env python3
"""The client's libraries destroy nothing at exit.

Threads of a program may be inside calls when another thread calls exit(), so objects that outlive a call
are never destroyed: no code of ours registers a destructor.

    exit_handlers_test.py LIBRARY...
"""

import re
import subprocess
import sys

# Handlers that are allowed: code of other projects, and the handler that ends the sessions.
ALLOWED = re.compile(r"std::|_GLOBAL__sub_I_system_error\.cc|ossl_|(__cxa_)?atexit(@plt)?>|"
                     r"rcuda::client::Process::initialize\(\)")


def main(libraries):
    status = 0
    for library in libraries:
        code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", "-C", library], check=True,
                              capture_output=True, text=True).stdout
        function, seen = "", 0
        for line in code.splitlines():
            if line.endswith(">:"):
                function = line
            elif re.search(r"\s(call|jmp|bl|b)\s.*<(__cxa_)?atexit(@plt)?>", line):
                seen += 1
                if not ALLOWED.match(function.partition("<")[2]):
                    print(f"{library}: {function} registers an exit handler: a static object with a destructor?")
                    status = 1
        if not seen:
            print(f"{library}: no call of atexit() was found, so this test does not work")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
