"""A proxy that stands for the network: there is no local socket for the proxy's port, so a client that
connects to the proxy gets no ticket and no shared memory.

    proxy.py ADDRESS PORT      prints its own port, and forwards until it is killed
"""

import socket
import sys
import threading


class Proxy:
    """Forwards connections to a port of this machine, and keeps the bytes that it forwards."""

    def __init__(self, port, host="127.0.0.1"):
        self.target = (host, int(port))
        self.seen = bytearray()
        self.listener = socket.create_server((host, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, socket.create_connection(self.target) as server:
            back = threading.Thread(target=self.forward, args=(server, client), daemon=True)
            back.start()
            self.forward(client, server)
            back.join()

    def forward(self, source, sink):
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := source.recv(1 << 16):
                self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side has ended, so the proxy ends the other one
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def address(self):
        return f"127.0.0.1@{self.port}:0"

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


if __name__ == "__main__":
    print(Proxy(sys.argv[2], sys.argv[1]).port, flush=True)
    threading.Event().wait()
