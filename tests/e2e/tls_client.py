"""A TLS client that sends a server any messages of a test. Uses OpenSSL's own library, because Python's ssl module does
not export keying material.
"""

import base64
import ctypes
import hashlib
import hmac
import socket
import struct

from servers import message, read_message

CHALLENGE, AUTHENTICATE = 13, 14
TOKEN = 1

_ssl = ctypes.CDLL("libssl.so.3")
for _name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
    getattr(_ssl, _name).restype = ctypes.c_void_p


class TlsConnection:
    """A connection whose calls block for at most 60 s. The constructor reads the server's challenge."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", int(port)))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("<2q", 60, 0))
        self.context = ctypes.c_void_p(_ssl.SSL_CTX_new(ctypes.c_void_p(_ssl.TLS_client_method())))
        self.ssl = ctypes.c_void_p(_ssl.SSL_new(self.context))
        _ssl.SSL_set_fd(self.ssl, self.socket.fileno())
        if _ssl.SSL_connect(self.ssl) != 1:
            raise OSError("the TLS handshake failed")
        kind, challenge = read_message(self)
        if kind != CHALLENGE:
            raise OSError(f"a message {kind} in place of the challenge")
        exported, label = ctypes.create_string_buffer(32), b"EXPORTER-rcuda-proof"
        assert _ssl.SSL_export_keying_material(self.ssl, exported, ctypes.c_size_t(32), label, ctypes.c_size_t(len(label)),
                                               None, ctypes.c_size_t(0), 0) == 1
        self.binding = hmac.digest(challenge[:32], exported.raw, "sha256")

    def login(self, token):
        """The message Authenticate for the token. It is valid only on this connection."""
        _, identity, secret, _ = token.split(".")
        key = hashlib.sha256(base64.urlsafe_b64decode(secret + "=")).digest()
        mac = hmac.digest(key, b"rcuda client" + self.binding, "sha256")
        return message(AUTHENTICATE, struct.pack("<2I", TOKEN, len(identity)) + identity.encode() + mac + bytes(12))

    def sendall(self, data):
        if _ssl.SSL_write(self.ssl, data, len(data)) != len(data):
            raise OSError("the server has closed the connection")

    def recv(self, most):
        data = ctypes.create_string_buffer(most)
        got = _ssl.SSL_read(self.ssl, data, most)
        return data.raw[:max(0, got)]

    def fileno(self):
        return self.socket.fileno()

    def close(self):
        if self.ssl:
            _ssl.SSL_free(self.ssl)
            _ssl.SSL_CTX_free(self.context)
            self.ssl = None
            self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
