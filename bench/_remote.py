"""A process of a benchmark that answers calls over a pipe, one at a time."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_START_S = 60.0
_CONTEXT = multiprocessing.get_context("spawn")  # librdkafka's threads do not survive a fork


class RemoteFailed(Exception):
    """The process ended, or what it was asked raised; the message has its words."""


class Remote:
    """One child process running `target(connection, *args)`, which begins with `serve` or `until_closed`."""

    def __init__(self, name: str, target: Callable[..., None], *args: Any) -> None:
        self.name = name
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=target, args=(theirs, *args), name=name, daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def wait_ready(self) -> None:
        """Raises RemoteFailed if it does not say so in time."""
        if not self._connection.poll(_START_S):
            raise RemoteFailed(f"{self.name} is not ready after {_START_S:.0f} s")
        self._answer()

    def ask(self, verb: str, *args: Any) -> Any:
        """Call `verb` there and wait for its answer, however long it takes. Raises RemoteFailed."""
        self._connection.send((verb, args))
        return self._answer()

    def _answer(self) -> Any:
        try:
            problem, answer = self._connection.recv()
        except EOFError:
            raise RemoteFailed(f"{self.name} ended; its traceback is above") from None
        if problem:
            raise RemoteFailed(f"{self.name}: {problem}")
        return answer

    def stop(self) -> None:
        """Close the pipe, which ends it; by force after five seconds."""
        self._connection.close()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def ready(connection: Connection) -> None:
    """Tell `wait_ready`."""
    connection.send(("", None))


def serve(connection: Connection, verbs: dict[str, Callable[..., Any]]) -> None:
    """In the child: answer calls until the other side closes."""
    ready(connection)
    while True:
        try:
            verb, args = connection.recv()
        except EOFError:
            return
        try:
            answer = ("", verbs[verb](*args))
        except Exception as problem:  # noqa: BLE001 - it is raised again on the other side
            answer = (repr(problem), None)
        connection.send(answer)


def until_closed(connection: Connection) -> threading.Event:
    """In the child: an event that is set once the other side has closed (or died)."""
    closed = threading.Event()

    def wait() -> None:
        try:
            connection.recv()
        except EOFError:
            closed.set()

    threading.Thread(target=wait, daemon=True, name="until-closed").start()
    ready(connection)
    return closed
