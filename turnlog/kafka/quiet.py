"""A broker that is away must not fill the log: the client library says so for every connection, several times a second."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

AGAIN_S = 10.0
_KINDS_KEPT = 256
_VARYING = re.compile(r"\d+")


class OncePerWhile(logging.Filter):
    """Lets one line of a kind through per ten seconds and says with the next one how many were left out.

    A kind is the text without its numbers. With `at_most` lines are lowered to that level: what the library repairs by itself (a lost
    connection) is a warning, whatever it calls it.
    """

    def __init__(
        self, again_s: float = AGAIN_S, clock: Callable[[], float] = time.monotonic, at_most: int = logging.CRITICAL
    ) -> None:
        super().__init__()
        self._at_most = at_most
        self._again_s = again_s
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        kind = _VARYING.sub("", text)
        now = self._clock()
        last, left_out = self._seen.get(kind, (0.0, 0))
        if last and now - last < self._again_s:
            self._seen[kind] = (last, left_out + 1)
            return False
        if len(self._seen) >= _KINDS_KEPT:
            self._seen.clear()
        self._seen[kind] = (now, 0)
        if record.levelno > self._at_most:
            record.levelno, record.levelname = self._at_most, logging.getLevelName(self._at_most)
        if left_out:
            record.msg, record.args = f"{text} (and {left_out} more like this)", ()
        return True


def quieten(library: str, *modules: str) -> None:
    """Put the filter on these loggers, once each; the client library's own lines become warnings at most."""
    for name in (library, *modules):
        logger = logging.getLogger(name)
        if not any(isinstance(each, OncePerWhile) for each in logger.filters):
            logger.addFilter(OncePerWhile(at_most=logging.WARNING if name == library else logging.CRITICAL))
