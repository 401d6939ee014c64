"""A proxy that stands for a network which loses connections.

    cutting_proxy.py PORT [SECONDS]    prints its own port and forwards to PORT of this machine, until it is killed;
                                       once the session has begun, cuts connections about every SECONDS (1)
"""

import ctypes
import random
import socket
import struct
import sys
import threading
import time

from servers import fetch_ticket

# connect() of a TCP socket with this address (AF_UNSPEC) ends the connection with a reset.
NO_ADDRESS = bytes(16)
LIBC = ctypes.CDLL(None)


def kind_of(data):
    """The kind of the message with which the data begins (common/messages/message_io.h)."""
    return struct.unpack("<8xI", data[:12])[0]


def first_message(data):
    return data[:16 + struct.unpack("<12xI", data[:16])[0]]


HELLO, ATTACH = 1, 2  # common/messages/message_io.h


class Pair:
    """A connection from a client, and the connection to the server to which the proxy forwards it."""

    def __init__(self, client, server):
        self.client, self.server = client, server
        self.swallows = False  # whether the pair discards all further bytes
        self.kind = None  # the kind of its first message
        self.beginning = None  # the first bytes from the client, until the server answers them
        self.passed = {client: 0, server: 0}

    def ends(self):
        return (self.client, self.server)


class CuttingProxy:
    """Forwards connections to a port of this machine. From the beginning of the session on, cuts some of them after
    each pause of up to twice `seconds`. `tickets`: the proxy sends the server a ticket on each connection, because
    clients that know only the proxy's port get none. Without tickets, the server takes the clients for clients on
    another machine, so they must use TLS. `keeps`: keeps the first bytes of each connection, for began_with()."""

    # The least number of sockets of a session: the control socket, four for copies, and one for acknowledgements.
    SOCKETS = 6

    def __init__(self, port, seconds=0.1, tickets=True, keeps=False, seed=None):
        self.target = ("127.0.0.1", int(port))
        self.seconds, self.tickets, self.keeps = seconds, tickets, keeps
        self.beginnings = []
        self.random = random.Random(seed)
        self.mutex = threading.Lock()
        self.pairs = []
        self.made = self.cuts = 0
        self.is_cutting = threading.Event()
        self.is_down = threading.Event()
        self.is_closed = threading.Event()
        self.newest = None  # the first connection of the newest session
        self.missing = 0  # how many sockets the sessions still lack
        self.refused_kind = None  # connections that begin with a message of this kind are closed
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        for body in (self.accept, self.cut_some):
            threading.Thread(target=body, daemon=True).start()

    def address(self, gpu=0):
        return f"127.0.0.1@{self.port}:{gpu}"

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        if self.is_down.is_set():
            return client.close()
        try:
            server = socket.create_connection(self.target)
        except OSError:
            return client.close()
        try:
            if self.tickets:
                server.sendall(fetch_ticket(server))
        except (OSError, EOFError):
            server.close()
            return client.close()
        pair = Pair(client, server)
        with self.mutex:
            self.made += 1
            self.pairs.append(pair)
        for end in pair.ends():
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self.forward, args=(pair, server, client), daemon=True)
        back.start()
        self.forward(pair, client, server)
        back.join()
        with self.mutex:
            self.pairs.remove(pair)
        for end in pair.ends():
            end.close()

    def forward(self, pair, source, sink):
        try:
            while data := source.recv(1 << 18):
                self.look_for_the_beginning(pair, source)
                if source is pair.server and pair.beginning:
                    self.beginnings.append(pair.beginning)
                    pair.beginning = None
                if pair.kind is None and source is pair.client and len(data) >= 16:
                    self.note_kind(pair, data)
                    if pair.kind == self.refused_kind:
                        return self.close_both(pair)
                if not pair.swallows:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            self.close_both(pair)

    def look_for_the_beginning(self, pair, source):
        """A session has begun when all its sockets exist and both sides have then sent something over the first one."""
        if self.made < self.SOCKETS:
            return
        if source is pair.server:
            pair.passed[source] += 1
        elif pair.passed[pair.server]:
            pair.passed[source] += 1
            if pair is self.pairs[0]:
                self.is_cutting.set()

    def note_kind(self, pair, data):
        pair.kind = kind_of(data)
        if self.keeps:
            pair.beginning = data
        with self.mutex:
            if pair.kind == HELLO:
                self.newest = pair
                self.missing += self.SOCKETS - 1
            elif pair.kind == ATTACH and self.missing and first_message(data)[-4:] == bytes(4):  # the first attempt
                self.missing -= 1
                if self.missing == 0:
                    self.newest.passed = dict.fromkeys(self.newest.ends(), 0)

    def are_complete(self):
        """Whether no session is in its handshakes, in which cuts are not allowed: a client does not repeat a handshake."""
        with self.mutex:
            return self.missing == 0 and (self.newest is None or all(self.newest.passed.values()))

    def cut_some(self):
        self.is_cutting.wait()
        while not self.is_closed.wait(self.random.uniform(0, 2 * self.seconds)):
            with self.mutex:
                pairs = list(self.pairs)
            if pairs and not self.is_down.is_set() and self.are_complete():
                for pair in self.random.sample(pairs, self.random.randint(1, len(pairs))):
                    self.cut(pair, self.random.choice(("reset", "close", "half", "swallow")))

    def cut(self, pair, way):
        self.cuts += 1
        end = self.random.choice(pair.ends())
        try:
            if way == "reset":
                LIBC.connect(end.fileno(), NO_ADDRESS, len(NO_ADDRESS))
            elif way == "half":
                end.shutdown(socket.SHUT_WR)
            elif way == "swallow":
                pair.swallows = True
                threading.Timer(0.2, self.close_both, (pair,)).start()
            else:
                self.close_both(pair)
        except OSError:
            pass  # the connection has already ended

    @staticmethod
    def close_both(pair):
        for end in pair.ends():
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def began_with(self, kind):
        """The messages of this kind with which connections began, if the server has answered them."""
        messages = []
        for data in list(self.beginnings):
            if kind_of(data) == kind:
                messages.append(first_message(data))
        return messages

    def cut_all(self, way):
        """Cuts all connections in this way."""
        with self.mutex:
            pairs = list(self.pairs)
        for pair in pairs:
            self.cut(pair, way)

    def refuse(self, kind):
        """Ends the connections that began with a message of this kind, and refuses further ones of this kind."""
        self.refused_kind = kind
        with self.mutex:
            pairs = [pair for pair in self.pairs if pair.kind == kind]
        for pair in pairs:
            self.close_both(pair)

    def take_down(self):
        """Simulates a network that is down: ends all connections, and lets no new one reach the server."""
        self.is_down.set()
        with self.mutex:
            pairs = list(self.pairs)
        for pair in pairs:
            self.close_both(pair)

    def bring_up(self):
        self.is_down.clear()

    def close(self):
        self.is_closed.set()
        self.is_cutting.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


if __name__ == "__main__":
    print(CuttingProxy(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0).port, flush=True)
    while True:
        time.sleep(3600)
