"""A proxy that stands for a network which loses connections.

    cutting_proxy.py PORT [SECONDS]    prints its own port; cuts connections to PORT of this machine about every
                                       SECONDS (1), once their session has begun, until it is killed
"""

import ctypes
import random
import socket
import struct
import sys
import threading
import time

from servers import fetch_ticket

# A TCP connection to this address is disconnected with a reset.
NO_ADDRESS = bytes(16)
LIBC = ctypes.CDLL(None)


class Pair:
    """A client's connection and the one that carries its bytes on."""

    def __init__(self, client, server):
        self.client, self.server = client, server
        self.swallows = False  # forwards nothing more
        self.passed = {client: 0, server: 0}

    def ends(self):
        return (self.client, self.server)


class CuttingProxy:
    """Forwards connections to a port of this machine. From the beginning of the session on, it cuts some of them
    after each pause of up to twice `seconds`. `tickets`: it fetches the connections' tickets, because its clients do
    not know that port; otherwise they are clients of another machine, which use TLS. `keeps`: the first bytes of each
    connection, for began_with()."""

    # The control socket, four sockets for copies, and the one for acknowledgements.
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
                if self.keeps and source is pair.client and not pair.passed[source]:
                    pair.passed[source] = 1
                    self.beginnings.append(data)
                if not pair.swallows:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            self.close_both(pair)

    def look_for_the_beginning(self, pair, source):
        """A session has begun when all its sockets exist, and then both sides have sent something over the first."""
        if self.is_cutting.is_set() or self.made < self.SOCKETS or pair is not self.pairs[0]:
            return
        if source is pair.server:
            pair.passed[source] += 1
        elif pair.passed[pair.server]:
            self.is_cutting.set()

    def cut_some(self):
        self.is_cutting.wait()
        while not self.is_closed.wait(self.random.uniform(0, 2 * self.seconds)):
            with self.mutex:
                pairs = list(self.pairs)
            if pairs and not self.is_down.is_set():
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
            pass  # it has ended by itself

    @staticmethod
    def close_both(pair):
        for end in pair.ends():
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def began_with(self, kind):
        """The first messages of the connections that began with a message of this kind."""
        messages = []
        for data in list(self.beginnings):
            first, length = struct.unpack("<8x2I", data[:16])
            if first == kind:
                messages.append(data[:16 + length])
        return messages

    def take_down(self):
        """The network is gone: all connections end, and no new one reaches the server."""
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
