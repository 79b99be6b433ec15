"""What a child said last, for people: the few lines of its log that tell why it ended, whatever format they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from turnlog.local.process import tail

LINES = 3
LOOKED_AT = 200
"""A stack trace of Java is long."""
LINE_CHARS = 400
_ERRORS = frozenset({"ERROR", "CRITICAL", "FATAL"})
_LEVEL = re.compile(r"^[\d:.,T-]+ +(TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|FATAL|CRITICAL)\b")
_FRAME = re.compile(
    r"^(\s+at |\s+\.\.\. \d+ |  File \"|    |Traceback \(most recent|\s*$)|^(The above|During handling of)"
)
"""Stack frames of Java and Python, their source lines, and what stands between them."""


def last_words(log: Path, *, since: int = 0) -> str:
    """The last words in what was written to the log after it had `since` bytes; empty if nothing was."""
    return told(tail(log, LOOKED_AT, since=since))


def told(text: str) -> str:
    """The last error lines of a log's end, or where it has none, its last lines; of JSON lines the message. Stack frames are left
    out, long lines are cut."""
    lines = list(_lines(text))
    telling = [line for error, line in lines if error] or [line for _, line in lines]
    return "\n".join(line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}…" for line in telling[-LINES:])


def _lines(text: str) -> Iterator[tuple[bool, str]]:
    """Each line that says something, and whether it tells of an error. A line without a level belongs to the one before it; at
    the start it is the program's own cry."""
    error = True
    for line in text.splitlines():
        entry = _json(line)
        if entry is not None:
            error = entry.get("level") in _ERRORS
            yield error, str(entry["message"])
            if raised := str(entry.get("exception") or "").strip():
                yield error, raised.splitlines()[-1]
            error = True  # after our own lines, plain text is a traceback or a last cry
            continue
        if level := _LEVEL.match(line):
            error = level[1] in _ERRORS
        if not _FRAME.search(line):
            yield error, line


def _json(line: str) -> dict[str, object] | None:
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "message" in entry else None
