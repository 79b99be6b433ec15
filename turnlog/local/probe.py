"""Asks a port the one question that tells a serving Kafka from anything else: who are you, and is your broker up?

One Metadata request, by hand (Kafka protocol, api key 3, version 4). An open port proves nothing: Kafka listens before
it serves, and on a busy machine a stranger may have taken the port.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_METADATA, _VERSION = 3, 4
_CLIENT_ID = b"turnlog-probe"
_MAX_ANSWER = 1 << 20


@dataclass(frozen=True)
class Seen:
    """What a cluster says of itself. `brokers` are (host, port) as its clients are told; empty while it is fenced."""

    cluster_id: str | None
    brokers: tuple[tuple[str, int], ...]


def probe(host: str, port: int, timeout_s: float = 2.0) -> Seen | None:
    """Ask once. None means that nobody answered, or not in Kafka's protocol; never raises for that."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(_request())
            return _parse(_read_frame(connection))
    except (OSError, ValueError, struct.error):
        return None


def _request() -> bytes:
    header = struct.pack(">hhih", _METADATA, _VERSION, 1, len(_CLIENT_ID)) + _CLIENT_ID
    body = struct.pack(">i?", 0, False)  # no topics, create none
    return struct.pack(">i", len(header) + len(body)) + header + body


def _read_frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _read_exactly(connection, 4))
    if not 0 < size <= _MAX_ANSWER:
        raise ValueError(f"a frame of {size} bytes")
    return _read_exactly(connection, size)


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionError("closed in the middle of an answer")
        data += chunk
    return bytes(data)


def _parse(frame: bytes) -> Seen:
    (broker_count,) = struct.unpack_from(">i", frame, 8)  # after correlation id and throttle time
    at = 12
    brokers = []
    for _ in range(broker_count):
        host, at = _string(frame, at + 4)
        (port,) = struct.unpack_from(">i", frame, at)
        _, at = _string(frame, at + 4)  # the rack
        brokers.append((host or "", port))
    cluster_id, _ = _string(frame, at)
    return Seen(cluster_id, tuple(brokers))


def _string(frame: bytes, at: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", frame, at)
    if length < 0:
        return None, at + 2
    return frame[at + 2 : at + 2 + length].decode(), at + 2 + length
