"""Writes docs/coverage.md, and lists functions of a toolkit that the table lacks."""

from cuda_header import PER_THREAD_SUFFIX

MEANING = {
    "local": "answered in the client, no message",
    "cached": "queried once, then answered in the client",
    "post": "one-way message, no wait",
    "call": "round trip",
    "custom": "handwritten message: copies, launches, loading, waiting",
}


def counts(table):
    found = {klass: 0 for klass in MEANING}
    for function in table.functions.values():
        if function.is_driver:
            found[function.klass] += 1
    return found


def emit(table, toolkit, old_versions):
    per_thread = sum(1 for s in toolkit.symbols if PER_THREAD_SUFFIX.search(s))
    version = f"{toolkit.cuda_version // 1000}.{toolkit.cuda_version % 1000 // 10}"
    found = counts(table)
    old = [name for name in old_versions if name not in table.functions]
    lines = [f"# Coverage of the driver API (CUDA {version})\n\n"
             "Generated from `api/table` by the target `api-coverage`; a test fails when it is out of "
             f"date. A `libcuda.so.1` exports {len(toolkit.symbols)} symbols, and so does "
             "`librcuda.so`. The symbols are:\n\n| | functions | meaning |\n|---|---:|---|\n"]
    lines += [f"| {klass} | {found[klass]} | {MEANING[klass]} |\n" for klass in MEANING]
    lines.append(f"| older versions | {len(old)} | forward to the current version of the function |\n")
    lines.append(f"| per-thread variants | {per_thread} | `_ptds` and `_ptsz`: the same for the "
                 "per-thread default stream |\n")
    rest = len(toolkit.symbols) - sum(found.values()) - len(old) - per_thread
    lines.append(f"| not supported | {rest} | log their name once and return CUDA_ERROR_NOT_SUPPORTED; "
                 "reasons below |\n")
    for family in table.families:
        functions = [f for f in table.functions.values() if f.family == family and f.is_driver]
        lines.append(f"\n## {family.capitalize()}\n\n| function | class | client | note |\n"
                     "|---|---|---|---|\n")
        for f in sorted(functions, key=lambda f: f.name):
            client = "handwritten" if f.handwritten_client else "generated"
            note = f.note or (f"as `{f.alias}`" if f.alias else "")
            lines.append(f"| {f.name} | {f.klass} | {client} | {note} |\n")
    lines.append("\n## Not supported\n\n")
    reasons = {}
    for name, reason in table.unsupported.items():
        if name in toolkit.prototypes:
            reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        lines.append(f"- {reason[0].upper()}{reason[1:]}: {', '.join(sorted(names))}.\n")
    lines.append("- The interface of CUDA 3.1 and before, with 32-bit device addresses.\n")
    return "".join(lines)


def report(table):
    """The differences between the installed header and the table; "" if there are none."""
    lines = []
    if table.unknown:
        lines.append("In this cuda.h, but neither in api/table nor in unsupported.toml:\n")
        lines += [f"  {name}\n" for name in table.unknown]
    if table.skipped:
        lines.append("In api/table, but not in this cuda.h (skipped):\n")
        lines += [f"  {name}\n" for name in table.skipped]
    return "".join(lines)
