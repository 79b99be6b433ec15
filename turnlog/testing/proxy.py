"""A TCP proxy between Kafka clients and one broker that understands frames: it loses requests or answers on purpose.

    proxy = KafkaProxy()                                  # listens at once, on a free port
    broker = EmbeddedBroker.start(..., advertised_port=proxy.port)
    proxy.forward_to(broker.port)
    rule = proxy.on(PRODUCE, Action.LOSE_ANSWER, containing=b"step 7", times=4)
    ...clients of 127.0.0.1:<proxy.port>...
    proxy.close()

Rules are asked in the order they were made; the first that matches a request decides what becomes of it and its answer. A broker tells
clients the advertised port, so they come through here for good. Kafka answers the requests of a connection in their order, hence an
answer that is held holds up those behind it on its connection; other connections go on.

Frames: 4 bytes of length, then api key, api version, correlation id, client id. https://kafka.apache.org/protocol#protocol_messages
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

LOOPBACK = "127.0.0.1"

# Api keys that tests speak of.
PRODUCE = 0
FETCH = 1
METADATA = 3
OFFSET_COMMIT = 8
JOIN_GROUP = 11
HEARTBEAT = 12
SYNC_GROUP = 14
INIT_PRODUCER_ID = 22

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")
_LARGEST_FRAME = 100 * 1024 * 1024
_CONNECT_S = 5.0


class Action(enum.Enum):
    """What becomes of a request that a rule matches."""

    FORWARD = enum.auto()
    """As without a proxy."""
    LOSE_REQUEST = enum.auto()
    """The connection is cut before the broker saw the request."""
    HOLD_REQUEST = enum.auto()
    """The broker sees it when it is released, even if the client has hung up meanwhile."""
    LOSE_ANSWER = enum.auto()
    """The broker does its work; the connection is cut when it answers."""
    SWALLOW_ANSWER = enum.auto()
    """The broker does its work; its answer never comes, and the connection lives until the client gives up."""
    HOLD_ANSWER = enum.auto()
    """The answer waits for `release`."""
    NO_BROKERS = enum.auto()
    """The answer to a METADATA request (version 9 or later) names no broker, as when all of them are fenced for a moment."""


class Request(NamedTuple):
    """One request of a client. `frame` is all of it without the length."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    frame: bytes

    @classmethod
    def parse(cls, frame: bytes) -> Request:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
        name = frame[_HEADER.size : _HEADER.size + max(0, length)].decode("utf-8", "replace")
        return cls(api_key, version, correlation_id, name, frame)


@dataclass
class Rule:
    """What to do with some requests. `hits` counts those it decided on, `answers` those of them the broker has answered."""

    action: Action
    api_key: int
    containing: bytes = b""
    client_id: str | None = None
    times: int | None = None
    hits: int = 0
    answers: int = 0
    _freed: threading.Event = field(default_factory=threading.Event)

    def matches(self, request: Request) -> bool:
        return (
            request.api_key == self.api_key
            and (self.times is None or self.hits < self.times)
            and (self.client_id is None or request.client_id == self.client_id)
            and self.containing in request.frame
        )

    def release(self) -> None:
        """Let go what is held, and hold nothing any more."""
        self.times = 0
        self._freed.set()

    def wait(self) -> None:
        self._freed.wait()


class KafkaProxy:
    """One listening port in front of one broker. Thread-safe; its threads are daemons and end with `close`."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server((LOOPBACK, port), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._upstream: int | None = None
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def forward_to(self, port: int) -> None:
        """Where the broker listens. Until this is called, connections are refused."""
        self._upstream = port

    def on(
        self,
        api_key: int,
        action: Action,
        *,
        containing: bytes = b"",
        client_id: str | None = None,
        times: int | None = None,
    ) -> Rule:
        """Do `action` with the next `times` requests (None: all) of this kind that contain these bytes and come from this client."""
        rule = Rule(action, api_key, containing, client_id, times)
        with self._lock:
            self._rules.append(rule)
        return rule

    def disconnect(self) -> None:
        """The broker is out of reach: cut every connection and refuse new ones, until `forward_to`."""
        self._upstream = None
        self.cut()

    def cut(self) -> None:
        """Cut every connection; clients may connect again at once."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def close(self) -> None:
        """Stop for good, also what is held."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for rule in self._rules:
            rule.release()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            if self._upstream is None:
                raise ConnectionRefusedError
            broker = socket.create_connection((LOOPBACK, self._upstream), _CONNECT_S)
        except OSError:
            client.close()
            return
        broker.settimeout(None)
        link = _Link(client, broker, self._decide, self._forget)
        with self._lock:
            self._links.add(link)
        link.start()

    def _decide(self, request: Request) -> Rule | None:
        with self._lock:
            rule = next((rule for rule in self._rules if rule.matches(request)), None)
            if rule is not None:
                rule.hits += 1
            return rule

    def _forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)


class _Link:
    """One client's connection and the one to the broker behind it."""

    def __init__(
        self,
        client: socket.socket,
        broker: socket.socket,
        decide: Callable[[Request], Rule | None],
        forget: Callable[[_Link], None],
    ) -> None:
        self._client = client
        self._broker = broker
        self._decide = decide
        self._forget = forget
        self._asked: deque[tuple[int, Rule | None]] = deque()  # in flight, in the order of their answers

    def start(self) -> None:
        for pump in (self._requests, self._answers):
            threading.Thread(target=self._run, args=(pump,), name="proxy-link", daemon=True).start()

    def close(self) -> None:
        for end in (self._client, self._broker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._forget(self)

    def _run(self, pump: Callable[[], None]) -> None:
        try:
            with contextlib.suppress(OSError):  # either side is gone
                pump()
        finally:
            self.close()

    def _requests(self) -> None:
        while (frame := _read(self._client)) is not None:
            request = Request.parse(frame)
            rule = self._decide(request)
            if rule is not None and rule.action is Action.LOSE_REQUEST:
                return
            if rule is not None and rule.action is Action.HOLD_REQUEST:
                rule.wait()
            self._asked.append((request.correlation_id, rule))
            _write(self._broker, frame)

    def _answers(self) -> None:
        while (frame := _read(self._broker)) is not None:
            rule = self._rule_of(_CORRELATION.unpack_from(frame)[0])
            if rule is not None:
                rule.answers += 1
                if rule.action is Action.LOSE_ANSWER:
                    return
                if rule.action is Action.SWALLOW_ANSWER:
                    continue
                if rule.action is Action.HOLD_ANSWER:
                    rule.wait()
                if rule.action is Action.NO_BROKERS:
                    frame = _without_brokers(frame)
            _write(self._client, frame)

    def _rule_of(self, correlation_id: int) -> Rule | None:
        """The rule of the request that is answered; requests that have no answer (acks=0) are passed over."""
        while self._asked:
            asked, rule = self._asked.popleft()
            if asked == correlation_id:
                return rule
        return None


def _read(end: socket.socket) -> bytes | None:
    """One frame, None at the end of the stream."""
    head = _exactly(end, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if not _CORRELATION.size <= length <= _LARGEST_FRAME:
        raise OSError(f"a frame of {length} bytes: this is not Kafka's protocol")
    return _exactly(end, length)


def _without_brokers(frame: bytes) -> bytes:
    """A metadata answer with an empty list of brokers: correlation id, tags, throttle time, then the list."""
    start = 9
    count, at = _varint(frame, start)
    for _ in range(count - 1):
        host, at = _varint(frame, at + 4)  # behind the node's id
        rack, at = _varint(frame, at + host - 1 + 4)  # behind host and port
        tags, at = _varint(frame, at + max(0, rack - 1))
        if tags:
            raise OSError("a broker with tagged fields: this proxy does not know them")
    return frame[:start] + b"\x01" + frame[at:]


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint, and where it ends."""
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _exactly(end: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = end.recv(count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def _write(end: socket.socket, frame: bytes) -> None:
    end.sendall(_LENGTH.pack(len(frame)) + frame)
