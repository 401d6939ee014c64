#!/usr/bin/env python3
"""Checks that the documentation points at what exists.

    check_links.py ROOT

Every relative link of README.md, CONTRIBUTING.md, docs/*.md and the maps of folders must lead to a file, and its
#anchor to a heading there; every path in `backticks` that begins with a folder of the repository must exist.
"""

import pathlib
import re
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([A-Za-z0-9_./{},*-]+)`")
FOLDERS = ("api", "bench", "client", "cmake", "common", "docs", "p2p", "scripts", "server", "softgpu",
           "tests", "tools")


def anchors(text):
    """What a hosting site makes of each heading: lower case, punctuation dropped, blanks to dashes."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def alternatives(path):
    """`a/b.{h,cpp}` names several paths."""
    match = re.search(r"\{([^}]*)\}", path)
    if not match:
        return [path]
    return [each for part in match[1].split(",")
            for each in alternatives(path[:match.start()] + part + path[match.end():])]


def broken(root, page):
    text = page.read_text()
    for link in LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"no such file: {link}"
        elif anchor and anchor not in anchors(target.read_text()):
            yield f"no such heading: {link}"
    for quoted in QUOTED.findall(text):
        first, slash, _ = quoted.partition("/")
        if slash and first in FOLDERS:
            for path in alternatives(quoted):
                # A program is named as it lies in the build folder; its source is next to it here.
                path = path.rstrip("/")
                if not any(root.glob(path)) and not any(root.glob(path + ".c*")):
                    yield f"no such path: {path}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = [page for page in (root / "README.md", root / "CONTRIBUTING.md") if page.exists()]
    pages += sorted((root / "docs").glob("**/*.md"))
    pages += sorted([*root.glob("*/README.md"), *root.glob("*/executor/README.md")])
    faults = [f"{page.relative_to(root)}: {fault}" for page in pages for fault in broken(root, page)]
    print("\n".join(faults) or f"{len(pages)} pages")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
