"""What a failed attempt means: one function sorts exceptions, along the type hierarchy and the cause chain.

Words of `Outcome.error` that a worker writes (stable: they stand in the journal):

    tool_failed        the tool raised ToolFailure: its message is the content, verbatim
    exception          the tool raised something else: type and message
    unreachable        the same, where a connection, a time or a lock was to blame: another attempt makes sense
    timed_out          no result within the tool's time
    bad_arguments      the arguments do not fit the signature
    unknown_tool       this worker does not have the tool
    bad_result         the result is no JSON (NaN, an object that cannot be written)
    result_too_large   the result is over 256 KiB
    broken_tool        the tool's code cannot work as declared

`retryable` says that another attempt of the same call may succeed. `fatal` ends the run and is only ever a tool's own word.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sqlite3
from collections.abc import Iterator
from typing import Final, NamedTuple

from turnlog.core.events import Outcome
from turnlog.core.limits import ERROR_CHARS, cut

CAUSES_FOLLOWED: Final = 5


class ToolFailure(Exception):
    """Raise it in a tool to tell the model, in your words, that the call did not work.

    `message` becomes the result the model reads, exactly (at most 2,000 characters). `retryable`: the loop may ask for another
    attempt of the same call, with the same key. `fatal`: the run ends; the model never sees it.
    """

    def __init__(self, message: str, *, retryable: bool = False, fatal: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.fatal = fatal


class Verdict(NamedTuple):
    """What an exception means for the call."""

    error: str
    retryable: bool
    fatal: bool = False


_FAILED: Final = Verdict("exception", retryable=False)
_PASSING: Final = Verdict("unreachable", retryable=True)
_BROKEN: Final = Verdict("broken_tool", retryable=False)

_BY_TYPE: Final[dict[type[BaseException], Verdict | None]] = {
    # The world was not there for a moment.
    TimeoutError: _PASSING,  # socket's and, since 3.11, asyncio's and concurrent.futures' are the same class
    ConnectionError: _PASSING,
    InterruptedError: _PASSING,
    BlockingIOError: _PASSING,
    sqlite3.OperationalError: _PASSING,  # "database is locked"; a syntax error too, but another attempt does no harm
    asyncio.CancelledError: _PASSING,
    concurrent.futures.CancelledError: _PASSING,
    MemoryError: _PASSING,
    # The code cannot work, whatever the arguments.
    NotImplementedError: _BROKEN,
    ImportError: _BROKEN,
    NameError: _BROKEN,
    SyntaxError: _BROKEN,
    SystemExit: _BROKEN,
    KeyboardInterrupt: _BROKEN,
    GeneratorExit: _BROKEN,
    # Says nothing by itself: its cause may. (None: look further down the chain.)
    RuntimeError: None,
    Exception: None,
    BaseException: None,
}

_BY_NAME: Final[dict[str, Verdict]] = {
    # Libraries that tools use and this one does not import.
    "httpx.TransportError": _PASSING,
    "requests.exceptions.ConnectionError": _PASSING,
    "requests.exceptions.Timeout": _PASSING,
    "aiohttp.client_exceptions.ClientConnectionError": _PASSING,
    "urllib3.exceptions.HTTPError": _PASSING,
    "urllib.error.URLError": _PASSING,
    "psycopg.OperationalError": _PASSING,
    "psycopg2.OperationalError": _PASSING,
    "asyncpg.exceptions._base.InterfaceError": _PASSING,
    "redis.exceptions.ConnectionError": _PASSING,
    "sqlalchemy.exc.OperationalError": _PASSING,
    "urllib.error.HTTPError": _FAILED,
}


def classify(error: BaseException) -> Verdict:
    """The verdict of the nearest error in the cause chain (at most 5) that has one; `exception`, not retryable, if none has.

    The most special class that is listed decides. An unlisted class below Exception (ValueError, a tool's own) says nothing, so
    a `raise MyError from ConnectionResetError()` is retryable. Never raises.
    """
    for link in _chain(_alone(error)):
        if isinstance(link, ToolFailure):
            return Verdict("tool_failed", link.retryable, link.fatal)
        verdict = _own_verdict(type(link))
        if verdict is not None:
            return verdict
    return _FAILED


def _alone(error: BaseException) -> BaseException:
    """What a task group wrapped although it is a single error; groups of several stay as they are."""
    for _ in range(CAUSES_FOLLOWED):
        if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) != 1:
            break
        error = error.exceptions[0]
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(CAUSES_FOLLOWED):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _own_verdict(kind: type[BaseException]) -> Verdict | None:
    for base in kind.__mro__:
        if base in _BY_TYPE:
            return _BY_TYPE[base]
        named = _BY_NAME.get(f"{base.__module__}.{base.__qualname__}")
        if named is not None:
            return named
    return None


def failed(error: BaseException, worker: str = "") -> Outcome:
    """The outcome of an attempt that raised: no traceback in it (that belongs into the tool team's log)."""
    error = _alone(error)
    verdict = classify(error)
    text = str(error.message) if isinstance(error, ToolFailure) else f"{type(error).__name__}: {_message(error)}"
    return outcome_of(verdict, text, worker)


def _message(error: BaseException) -> str:
    try:
        return str(error) or "(no message)"
    except Exception:  # noqa: BLE001 - a tool's exception class may be broken too; the call still needs its answer
        return "(its message cannot be shown)"


def outcome_of(verdict: Verdict, text: str, worker: str = "") -> Outcome:
    """An error outcome with bounded text that UTF-8 can carry."""
    return Outcome("error", cut(sound(text), ERROR_CHARS), verdict.error, verdict.retryable, verdict.fatal, worker)


def timed_out(seconds: float, worker: str = "") -> Outcome:
    text = f"The tool gave no result within {seconds:.3g} s. It may still take effect."
    return outcome_of(Verdict("timed_out", retryable=True), text, worker)


def unknown_tool(tool: str, toolset: str, worker: str = "") -> Outcome:
    text = f"This worker of {toolset!r} does not have the tool {tool!r}."
    return outcome_of(Verdict("unknown_tool", retryable=True), text, worker)


def sound(text: str) -> str:
    """The text as UTF-8 can carry it: surrogate pairs joined, each lone surrogate replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
