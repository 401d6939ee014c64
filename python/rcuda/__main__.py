"""python -m rcuda, and the command rcuda-run: runs a program on remote GPUs."""

import os
import sys

from ._connect import FOLDER


def main():
    program = os.path.join(FOLDER, "bin", "rcuda-run")
    os.execv(program, ["rcuda-run", *sys.argv[1:]])


if __name__ == "__main__":
    main()
