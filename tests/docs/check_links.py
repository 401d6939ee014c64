#!/usr/bin/env python3
"""Checks that the links and paths in the documentation exist.

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
    """The anchors that a hosting site makes of the headings: in lower case, without punctuation, with dashes for blanks."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def alternatives(path):
    """All paths that the text names: `a/b.{h,cpp}` names two."""
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
                # The pages give the path of a program in the build folder; the source tree has its source at that path.
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
