"""Every expected problem as one line with its remedy and an exit code. The only place where errors become words for a terminal.

0    done
1    done, and the answer is bad: a run failed, a check found something
2    the command line, a file or a setting is wrong
3    there is no such run, step, agent, topic or dead letter
4    the loop refused the command
5    the cluster cannot be reached, is not set up, or denies a right
6    the time is over; what was asked for may still come
130  stopped by Ctrl-C
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from turnlog.client import BadCommand, ClientError, CommandRefused, NotAcknowledged, NotConnected, RunUnknown, TimedOut
from turnlog.codec import CodecError, RegistryRefused, RegistryUnavailable
from turnlog.core.errors import BadHistory
from turnlog.journal.history import NotInJournal
from turnlog.kafka.port import LogError, NotAuthorised, NotOwner, Refused, Retryable, UnknownTopic
from turnlog.kafka.properties import setting_problem
from turnlog.local.errors import LocalError
from turnlog.settings import BadSettings


class Exit(IntEnum):
    """Exit codes, as the module's docstring explains them."""

    DONE = 0
    BAD = 1
    USAGE = 2
    UNKNOWN = 3
    REFUSED = 4
    UNREACHABLE = 5
    TIMED_OUT = 6
    INTERRUPTED = 130


class CliError(Exception):
    """An expected problem, found by the command line itself."""

    def __init__(self, message: str, remedy: str = "", code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.code = code


class Problem(NamedTuple):
    """What is printed, and how the program ends."""

    message: str
    remedy: str
    code: Exit


EXPECTED = (
    CliError,
    ClientError,
    LogError,
    CodecError,
    LocalError,
    BadHistory,
    NotInJournal,
    BadSettings,
)

_RULES: tuple[tuple[type[Exception], str, Exit], ...] = (
    (BadSettings, "turnlog settings lists every setting", Exit.USAGE),
    (BadCommand, "", Exit.USAGE),
    (RunUnknown, "list what there is: turnlog runs list", Exit.UNKNOWN),
    (NotConnected, "", Exit.UNREACHABLE),
    (NotAcknowledged, "is the cluster up? turnlog topics check", Exit.TIMED_OUT),
    (TimedOut, "", Exit.TIMED_OUT),
    (NotInJournal, "see its steps: turnlog runs show RUN --journal", Exit.UNKNOWN),
    (
        BadHistory,
        "a newer build may have written it: compare `turnlog --version` with the build named by turnlog runs show --json",
        Exit.BAD,
    ),
    (UnknownTopic, "create what is missing: turnlog topics create; or check TURNLOG_TOPIC_PREFIX", Exit.UNREACHABLE),
    (NotAuthorised, "the rights each service needs: turnlog topics acls", Exit.UNREACHABLE),
    (NotOwner, "stop the members of the group first", Exit.REFUSED),
    (Refused, "", Exit.REFUSED),
    (
        Retryable,
        "is the cluster up? TURNLOG_KAFKA__BOOTSTRAP_SERVERS names it; turnlog up starts one",
        Exit.UNREACHABLE,
    ),
    (LogError, "", Exit.UNREACHABLE),
    (RegistryUnavailable, "is the schema registry up? TURNLOG_REGISTRY_URL names it", Exit.UNREACHABLE),
    (RegistryRefused, "compare what the registry holds with schemas/records", Exit.REFUSED),
    (CodecError, "a newer build may have written it", Exit.BAD),
)


def explain(error: Exception) -> Problem:
    """The words and the exit code for an expected error."""
    if isinstance(error, CliError):
        return Problem(str(error), error.remedy, error.code)
    if isinstance(error, LocalError):
        said = "".join(f"\n    {line}" for line in error.detail.splitlines())
        return Problem(error.message + (f"\n  its last words:{said}" if said else ""), error.remedy, Exit.UNREACHABLE)
    if isinstance(error, LogError) and (wrong := setting_problem(error)) is not None:
        return Problem(wrong, "a property is set by TURNLOG_KAFKA__<PROPERTY>, with _ for each dot", Exit.USAGE)
    if isinstance(error, CommandRefused):
        about_run = (
            ""
            if error.outcome.kind == "start"
            else f"see what the run is doing: turnlog runs explain {error.outcome.run_id}"
        )
        return Problem(str(error), about_run, Exit.REFUSED)
    for kind, remedy, code in _RULES:
        if isinstance(error, kind):
            return Problem(str(error), remedy, code)
    raise error
