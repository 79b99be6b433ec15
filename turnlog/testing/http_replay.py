"""A loopback HTTP/1.1 server that plays prepared responses, whole or broken, over real sockets.

For tests of HTTP clients: bodies cut into pieces anywhere, missing bytes, resets, silence, garbage instead of HTTP. It never
sleeps: whoever wants it slow holds an event.
"""

from __future__ import annotations

import queue
import random
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any, NamedTuple


class Received(NamedTuple):
    """A request as it arrived; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """What to send. `pieces` is the body, each piece written on its own."""

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    chunked: bool = False
    """Chunked transfer encoding, a chunk a piece; else a content-length."""
    missing: int = 0
    """How many bytes of the announced body never come: the connection ends before them."""
    reset: bool = False
    """End the connection with a reset instead of an orderly close."""
    close: bool = False
    """End the connection after the response without having said so, as a server does with an idle one."""
    raw: bytes | None = None
    """Send exactly this instead of a response, and close."""
    hold: threading.Event | None = None
    """Wait for this between the head with the first piece and the rest (before everything, if there is no piece)."""


def pieces_of(body: bytes, chance: random.Random) -> tuple[bytes, ...]:
    """The body cut at random places, as a network may cut it."""
    cuts = sorted(chance.randrange(len(body) + 1) for _ in range(chance.randrange(8)))
    edges = [0, *cuts, len(body)]
    return tuple(piece for start, end in pairwise(edges) if (piece := body[start:end]))


class ReplayServer:
    """Serves from construction to `close`, a thread per connection. `answer` runs in these threads."""

    def __init__(self, answer: Callable[[Received], Reply]) -> None:
        self.received: list[Received] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.answer = self._answer
        self.ended = self._server.ended
        """Gets an item whenever a connection was closed from this side."""
        self._user_answer = answer
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="replay-server")
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def connections(self) -> int:
        """How many were accepted so far."""
        return self._server.accepted

    def close(self) -> None:
        """Ends every connection, waits for the threads. Events that replies hold on must be set before."""
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join()

    def _answer(self, received: Received) -> Reply:
        self.received.append(received)
        return self._user_answer(received)


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close waits for them, and no socket outlives the test
    request_queue_size = 256
    answer: Callable[[Received], Reply]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        self.accepted = 0
        self.ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
            self.accepted += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close without the orderly shutdown of the base class, which would turn a reset into an end of stream."""
        with self._open_lock:
            self._open.discard(request)
            request.close()
        self.ended.put(None)

    def end_connections(self) -> None:
        with self._open_lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # the client was first

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients under test break connections; that is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._send(self.server.answer(Received(self.path, headers, body)))

    def _send(self, reply: Reply) -> None:
        if reply.hold is not None and not reply.pieces:
            reply.hold.wait()
        if reply.raw is not None:
            self.wfile.write(reply.raw)
        else:
            self.wfile.write(_head(reply))
            for index, piece in enumerate(reply.pieces):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.chunked else piece)
                if index == 0 and reply.hold is not None:
                    reply.hold.wait()
            if reply.chunked and not reply.missing:
                self.wfile.write(b"0\r\n\r\n")
        if reply.raw is not None or reply.missing or reply.reset or reply.close:
            self.close_connection = True
        if reply.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def log_message(self, *args: Any) -> None:
        """Nothing: a test's output belongs to the test."""


def _head(reply: Reply) -> bytes:
    length = sum(map(len, reply.pieces)) + reply.missing
    framing = ("transfer-encoding", "chunked") if reply.chunked else ("content-length", str(length))
    lines = [f"HTTP/1.1 {reply.status} Prepared", *(f"{name}: {value}" for name, value in (*reply.headers, framing))]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
