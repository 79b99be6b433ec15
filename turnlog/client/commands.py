"""Building commands, and refusing what could never be taken before anything is sent. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from turnlog.client.errors import BadCommand, NotConnected
from turnlog.codec.errors import RegistryRefused, RegistryUnavailable, Unencodable
from turnlog.core.ids import run_id_problem
from turnlog.core.limits import VALUE_BYTES, utf8_size
from turnlog.core.records import CancelRun, Command, ResumeRun, SendInput, StartRun

COMMAND_BYTES = 1024 * 1024 - 1024
"""A command's value: a record may have 1 MiB with its key, headers and framing."""
COMMAND_ID_CHARS = 256
RANDOM_RUN_ID_PREFIX = "run-"


class Encoder(Protocol):
    """What is needed of a codec here. Raises `Unencodable`."""

    def encode(self, record: Any, /) -> bytes: ...


class StartRequest(NamedTuple):
    """A run to start. Without `run_id` a random one is made, and then sending it twice starts two runs.

    Bounds that are None are the agent's own; `deadline_s` counts from the recorded start.
    """

    agent: str
    input: str | None = None
    run_id: str | None = None
    labels: Mapping[str, str] = {}  # never changed in here
    agent_version: str | None = None
    turn_limit: int | None = None
    tool_call_budget: int | None = None
    deadline_s: float | None = None
    command_id: str | None = None


def start_command_id(run_id: str) -> str:
    """The id of a run's start command unless the caller chose one: a function of the run id, so that a start can be repeated."""
    return f"start:{run_id}"


def new_command_id() -> str:
    return f"c-{uuid.uuid4()}"


def start(request: StartRequest) -> Command:
    """Raises BadCommand."""
    run_id = request.run_id if request.run_id is not None else f"{RANDOM_RUN_ID_PREFIX}{uuid.uuid4()}"
    if not request.agent:
        raise BadCommand("agent is empty: name one of `turnlog agents list`")
    for name in ("turn_limit", "tool_call_budget"):
        _whole_number(name, getattr(request, name))
    body = StartRun(
        request.agent, request.agent_version, request.input, tuple(sorted(request.labels.items())),
        request.turn_limit, request.tool_call_budget, _milliseconds("deadline_s", request.deadline_s),
    )  # fmt: skip
    command_id = start_command_id(run_id) if request.command_id is None else request.command_id
    return _checked(Command(command_id, run_id, "start", start=body))


def send_input(run_id: str, text: str, final: bool, command_id: str | None) -> Command:
    """Raises BadCommand."""
    if text == "":
        raise BadCommand("input is empty: say something (the model would be asked with no words of the user)")
    return _checked(Command(command_id or new_command_id(), run_id, "input", input=SendInput(text, final)))


def cancel(run_id: str, reason: str, command_id: str | None) -> Command:
    """Raises BadCommand."""
    return _checked(Command(command_id or new_command_id(), run_id, "cancel", cancel=CancelRun(reason)))


def resume(run_id: str, turns: int, command_id: str | None) -> Command:
    """Raises BadCommand."""
    _whole_number("turns", turns)
    return _checked(Command(command_id or new_command_id(), run_id, "resume", resume=ResumeRun(turns)))


def encoded(command: Command, codec: Encoder) -> bytes:
    """The command's bytes. Raises BadCommand for what does not fit a record, NotConnected without the schema registry's word."""
    try:
        value = codec.encode(command)
    except Unencodable as problem:
        raise BadCommand(f"the command cannot be written: {problem}") from problem
    except (RegistryUnavailable, RegistryRefused) as problem:
        raise NotConnected(str(problem)) from problem
    if len(value) > COMMAND_BYTES:
        raise BadCommand(f"the command has {len(value)} bytes, at most {COMMAND_BYTES} are allowed")
    return value


def _checked(command: Command) -> Command:
    problem = run_id_problem(command.run_id)
    if problem is not None:
        raise BadCommand(problem)
    if not 0 < len(command.command_id) <= COMMAND_ID_CHARS:
        raise BadCommand(f"command_id has {len(command.command_id)} characters: 1 to {COMMAND_ID_CHARS} are allowed")
    for name, text in _texts(command):
        _sound_text(name, text)
    return command


def _texts(command: Command) -> Iterator[tuple[str, object]]:
    yield "command_id", command.command_id
    if command.start is not None:
        yield "agent", command.start.agent
        for name, value in command.start.labels:
            yield "label name", name
            yield f"label {name!r}", value
        if command.start.agent_version is not None:
            yield "agent_version", command.start.agent_version
        if command.start.input is not None:
            yield "input", command.start.input
    if command.input is not None:
        yield "input", command.input.text
    if command.cancel is not None:
        yield "reason", command.cancel.reason


def _sound_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise BadCommand(f"{name} is {type(text).__name__}, not text")
    if utf8_size(text) > VALUE_BYTES:
        raise BadCommand(f"{name} has {utf8_size(text)} bytes, at most {VALUE_BYTES} are allowed")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as problem:
        code = ord(text[problem.start])
        raise BadCommand(
            f"{name} has a lone surrogate (U+{code:04X}) at character {problem.start}: that is no Unicode text"
        ) from None


def _whole_number(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value < 2**31:
        raise BadCommand(f"{name} is {value}: give 0 (none) or a positive number")


def _milliseconds(name: str, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 0 <= seconds < 1e9:  # also refuses NaN
        raise BadCommand(f"{name} is {seconds}: give 0 (none) or a positive number of seconds")
    return round(seconds * 1000)
