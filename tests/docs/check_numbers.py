#!/usr/bin/env python3
"""Checks that numbers in the documentation are those in the code.

    check_numbers.py ROOT

Each line of NUMBERS has a page, the page's text with the number in parentheses, a source file, and the text before the number
in that file. Both texts are regular expressions; a blank in the first one also matches a line break. KB, MB and GB are powers
of 1024, as in all pages.
"""

import pathlib
import re
import sys

ARCHITECTURE, P2P, SECURITY = "docs/architecture.md", "docs/p2p.md", "docs/security.md"
ISOLATION, QUOTAS, FAILURES = "docs/isolation.md", "docs/quotas.md", "docs/failures.md"
BULK = "common/transport/tcp/tcp_bulk.cpp"
NUMBERS = (
    (ARCHITECTURE, r"A program has up to (\d+) servers", "common/wire/address_ranges.h", "kMostServers = "),
    (ARCHITECTURE, r"With more than (\d+), pairs of servers", "client/process/process.cpp", "kMostEagerServers = "),
    (ARCHITECTURE, r"base of a worker \| (\d+ GiB)", "common/wire/address_ranges.h", "kWindowRanges.*?#else.*?kBaseBytes = "),
    (ARCHITECTURE, r"at most (\d+) times the memory", "common/wire/address_ranges.h", "kSmallWindowBytes = 1ull << 40;\n.*?kMostWindowTimes = "),
    (ARCHITECTURE, r"spares a session for (\d+) s after", "server/daemon/admission/lost_client.h", r"kSpared\{"),
    (ARCHITECTURE, r"and for (\d+) s after an attempt", "server/daemon/admission/lost_client.h", r"kSparedAfterAttempt\{"),
    (ARCHITECTURE, r"in slots of (\d+ MB)", "client/session/staging.h", "kSlotBytes = "),
    (ARCHITECTURE, r"in pieces of (\d+ MB)", "client/hostmem/move_pages.h", "kMovedBytes = "),
    (ARCHITECTURE, r"a block of (\d+ KB)", "client/mirror/mirror_exchange.h", "kMirrorBlockBytes = "),
    (ARCHITECTURE, r"acknowledgement after (\d+ KiB)", "common/transport/tcp/resumable_socket.h", "kAcknowledgedByPut = "),
    (ARCHITECTURE, r"After (\w+) refusals", "common/transport/tcp/reconnects.cpp", "kRefusals = "),
    (P2P, r"After (\d+) commands have run", "server/executor/core/command_scheduler.cpp", "kMostBehind = "),
    (P2P, r"together have (\d+ MB) at most", "p2p/link/requests.h", "inboxes_limit_bytes = "),
    (P2P, r"also has (\d+ MB) in GPU memory", "p2p/link/requests.h", "device_inbox_bytes = "),
    (P2P, r"planner adds (\d+) µs", "p2p/plan/planner.cpp", "kTcpTurnUs = "),
    (P2P, r"chunk size \((\d+ KB) to", "p2p/plan/planner.cpp", "kSmallestChunk = "),
    (P2P, r"KB to (\d+ MB), and equal parts", "p2p/plan/planner.cpp", "kLargestChunk = "),
    (P2P, r"A piece has at least (\d+ KB)", BULK, "kMinPieceBytesWithImmediate = "),
    (P2P, r"as in a train\) at least (\d+ KB)", BULK, "kMinPieceBytesAmongMany = "),
    (P2P, r"each piece has at least (\d+ KB)", BULK, "kMinPieceBytesOfFew = "),
    (P2P, r"fewer than (\w+) processors, each piece", BULK, "kFewProcessors = "),
    (SECURITY, r"at most (\d+) connections that have not", "server/daemon/connection/connections.cpp", "kMostNewcomers = "),
    (SECURITY, r"at most (\d+) tickets", "server/identity/tickets.h", "kMostPerUser = "),
    (SECURITY, r"address space of at most (\d+ MiB)", "server/door/door.cpp", "#else.*?kMostMemory = "),
    (SECURITY, r"ends (\w+) seconds after its last", "server/door/doors.h", r"kLinger\{"),
    (SECURITY, r"At most (\d+) doors are for origins", "server/door/doors.h", "size_t most = "),
    (SECURITY, r"and (\d+) in a second", "server/door/doors.cpp", "kStartsInSecond = "),
    (SECURITY, r"for about (\d+) ms at most", "server/daemon/connection/connections.h", r"kTimeForStrangers\{"),
    (SECURITY, r"authority: (\w+) in all", "common/identity/certificate.h", "kMostCertificates = "),
    (ISOLATION, r"at most ([\d,]+) names of handles", "server/names/exported_names.h", "kMostHandles = "),
    (ISOLATION, r"At most (\d+) connections are in progress", "server/executor/peers/peer_hub.cpp", "kMostAttempts = "),
    (ISOLATION, r"at most (\d+) lines of a worker", "server/daemon/pool/worker_log.h", "kMostLines = "),
    (QUOTAS, r"At most (\d+) programs wait", "server/daemon/admission/admission.h", "kMostWaiting = "),
    (FAILURES, r"acknowledged data for (\d+) s", "common/transport/tcp/tcp_link.cpp", r"kHostLost = std::chrono::seconds\("),
    (FAILURES, r"a silent loss after (\d+) s", "common/transport/tcp/tcp_link.cpp", r"kConnectionLost = std::chrono::seconds\("),
)
WORDS = {"three": 3, "four": 4, "six": 6}
UNITS = {"": 1, "KB": 1 << 10, "KiB": 1 << 10, "MB": 1 << 20, "MiB": 1 << 20, "GiB": 1 << 30}


def in_page(text):
    number, _, unit = text.partition(" ")
    return WORDS[number] if number in WORDS else int(number.replace(",", "")) * UNITS[unit]


def in_source(text):
    """The value of an expression such as `32ull << 30`, `uint64_t{16} << 10` or `65536`."""
    value, _, shift = re.sub(r"[a-z_0-9]+\{(\d+)\}", r"\1", text).partition("<<")
    return int(re.match(r"[\d']+", value.strip())[0].replace("'", "")) << int(shift or 0)


def faults(root):
    for page, words, source, before in NUMBERS:
        said = re.search(words.replace(" ", r"\s+"), (root / page).read_text())
        done = re.search("(?s)" + before + r"(.+?)(?:[;,)]|\}[;,])", (root / source).read_text())
        if not said or not done:
            yield f"{page if not said else source} has no longer: {words if not said else before}"
        elif in_page(said[1]) != in_source(done[1]):
            yield f"{page} has {said[1]} in \"{' '.join(said[0].split())}\", {source} {done[1]}"


def main():
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found) or f"{len(NUMBERS)} numbers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
