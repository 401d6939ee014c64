"""How the clients in this folder check and print what a GPU computed.

Each result is compared with NumPy's result or with a value worked out by hand, and printed as `name: value`. Of a large
result the digest is printed. No output depends on the run: local and remote runs must print the same.
"""

import hashlib
import os
import sys
import traceback

import numpy

SECTIONS = []
SECTION = ""
FAILURES = []


def section(function):
    """Marks a function as a part of a client. When one part fails, the others still run."""
    SECTIONS.append(function)
    return function


def fail(name, text):
    FAILURES.append(f"{SECTION}.{name}: {text}")
    print(f"{SECTION}.{name}: WRONG")


def show(name, value):
    """Prints a value for which there is no expected value, but which must be the same in every run."""
    if isinstance(value, numpy.ndarray):
        digest = hashlib.sha256(numpy.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        value = f"{value.dtype} {'x'.join(map(str, value.shape)) or 'scalar'} {digest}"
    print(f"{SECTION}.{name}: {value}")


def equal(name, value, expected):
    """The value must be the expected one, bit for bit. Both are host values."""
    if isinstance(expected, numpy.ndarray):
        value = numpy.asarray(value)
        if value.shape != expected.shape or value.dtype != expected.dtype:
            return fail(name, f"{value.dtype}{value.shape}, expected {expected.dtype}{expected.shape}")
        if value.tobytes() != expected.tobytes():
            index = numpy.flatnonzero((value != expected).ravel())[:5]
            return fail(name, f"at {index}: {value.ravel()[index]}, expected {expected.ravel()[index]}")
    elif value != expected:
        return fail(name, f"{value!r}, expected {expected!r}")
    return show(name, value)


def near(name, value, expected, relative=1e-5, absolute=1e-6):
    """The value must be within these bounds of the expected one."""
    value, expected = numpy.asarray(value), numpy.asarray(expected)
    if value.shape != expected.shape or not numpy.allclose(value, expected, relative, absolute):
        return fail(name, f"{value.ravel()[:5]}, expected {expected.ravel()[:5]}")
    return show(name, value)


def raises(name, kind, function, text=""):
    """The call must raise an error of this kind with this text in it."""
    try:
        function()
    except kind as error:
        if text not in str(error):
            return fail(name, f"{error!r} has no {text!r}")
        return show(name, f"{type(error).__name__} {text}".rstrip())
    return fail(name, f"no {kind.__name__} was raised")


def skip(reason):
    """Reports that a section is left out. tests/allowed_skips.txt must list the reason."""
    print(f"SKIPPED {SECTION}: {reason}", file=sys.stderr)


def main(leave=False):
    """Runs all sections and exits. `leave`: without Python's cleanup, for clients in which that would fail."""
    global SECTION
    for function in SECTIONS:
        SECTION = function.__name__
        try:
            function()
        except Exception:  # whatever the section raises, the others still run
            FAILURES.append(f"{SECTION}:\n{traceback.format_exc()}")
            print(f"{SECTION}: FAILED")
        sys.stdout.flush()
    for failure in FAILURES:
        print(failure, file=sys.stderr)
    if leave:
        sys.stderr.flush()
        os._exit(1 if FAILURES else 0)
    sys.exit(1 if FAILURES else 0)
