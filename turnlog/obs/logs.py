"""Structured log lines on standard logging: JSON for machines, short lines for terminals, context as fields.

Context travels in `extra` (`log.info("...", extra={"run": run_id})`) or in a bound logger (`bound(log, run=..., key=...)`);
whatever is not a field of LogRecord itself becomes a field of the line. A JSON line costs about 10 µs, so hot paths log at
DEBUG only. Text from tools and models is data: it is escaped by JSON, and control characters are escaped for terminals.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

_OWN = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
_FIELD_CHARS = 4_000
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\n\t"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `at` (UTC, ms), `level`, `logger`, `service`, `message`, the context, `exception` if any."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service
        self._second = -1
        self._text = ""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": self._at(record.created),
            "level": record.levelname,
            "logger": record.name,
            "service": self._service,
            "message": record.getMessage(),
        }
        # LogRecord has some 22 fields of its own; anything beyond them is context.
        line |= {name: value for name, value in record.__dict__.items() if name not in _OWN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line)

    def _at(self, created: float) -> str:
        second = int(created)
        if second != self._second:  # strftime costs more than the rest of the line's head
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{self._text}.{int((created - second) * 1000):03d}Z"


class HumanFormatter(logging.Formatter):
    """`12:00:00.123 INFO  worker  message  run=... key=...` for people at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        context = "".join(
            f"  {name}={str(value)[:_FIELD_CHARS]}" for name, value in record.__dict__.items() if name not in _OWN
        )
        logger = record.name.removeprefix("turnlog.")
        text = f"{clock}.{int(record.msecs):03d} {record.levelname:<7} {logger}: {record.getMessage()}{context}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text.translate(_ESCAPES)


class _Bound(logging.LoggerAdapter[logging.Logger]):
    """Adds its fields to every line; fields of the call win."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        given = kwargs.get("extra")
        kwargs["extra"] = {**(self.extra or {}), **given} if given else self.extra
        return msg, kwargs


def bound(logger: logging.Logger, **fields: object) -> logging.LoggerAdapter[logging.Logger]:
    """A logger whose every line carries these fields (run, turn, key, ...)."""
    return _Bound(logger, fields)


def configure_logging(service: str, level: str = "INFO", form: str = "auto", stream: TextIO | None = None) -> None:
    """Send the process's log lines to `stream` (standard error) in one format. Called once by a service's main; replaces the
    root handlers. Switches off what LogRecord gathers and nobody prints (thread, process, caller): a third of a line's cost."""
    target = stream or sys.stderr
    human = form == "human" or (form == "auto" and target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(HumanFormatter() if human else JsonFormatter(service))
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # documented in the logging HOWTO, "Optimization"
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in ("httpx", "httpcore"):  # a line a request at INFO
        logging.getLogger(chatty).setLevel(max(root.level, logging.WARNING))


def context_of(fields: Mapping[str, object]) -> dict[str, object]:
    """`fields` without the names LogRecord keeps for itself (logging raises KeyError for them)."""
    return {name: value for name, value in fields.items() if name not in _OWN}
