"""The state of one run: what the fold of its events knows. Nothing in here comes from anywhere else.

A state is changed in place by `evolve` only; whoever decides works on a copy (`RunState.copy`, one a step).
"""

from __future__ import annotations

from typing import NamedTuple

from turnlog.core.agents import AgentSpec, MenuEntry, Usage
from turnlog.core.events import Input, Outcome
from turnlog.core.ids import EMPTY_DIGEST
from turnlog.core.limits import RULES
from turnlog.core.transcript import TranscriptMessage, UserMessage, message_digest

NO_AGENT = AgentSpec("", "", "", "")

WAITING, REQUESTED, RETRYING, SETTLED = "waiting", "requested", "retrying", "settled"


class Call(NamedTuple):
    """A call of the current turn. `deadline` is 0 until it was first requested; `retry_at` is 0 unless a retry is set."""

    position: int
    key: str
    tool: str
    provider_id: str
    arguments: str
    stage: str = WAITING
    attempt: int = 0
    deadline: int = 0
    retry_at: int = 0
    settlement: str = ""
    content: str = ""


class OpenCall(NamedTuple):
    """A call that was requested and has no result yet, settled or not (a timed out call stays here until it answers)."""

    turn: int
    position: int
    tool: str
    not_after: int


class RunState:
    """What is known of a run.

    phase: `new` (no step yet), `model` (an answer is awaited), `calls` (results are awaited), `input`, `stopped`, `ended`.
    status: running, waiting, stopped, succeeded, failed, cancelled. All times in milliseconds since the epoch; 0 is "none".
    """

    __slots__ = (
        "run_id", "rules", "agent", "menu", "withheld", "labels", "traceparent", "status", "phase", "reason", "answer", "error",
        "turn", "turn_end", "turn_limit", "tool_call_budget", "deadline", "model_attempt", "model_retry_at", "request_digest",
        "transcript", "digest", "base", "calls", "open_calls", "attempts_seen", "inputs", "commands", "usage", "tool_calls",
        "started_at", "at", "ended_at", "idle_at", "arrived",
    )  # fmt: skip

    def __init__(self, run_id: str, rules: int = RULES) -> None:
        self.run_id = run_id
        self.rules = rules
        self.agent: AgentSpec = NO_AGENT
        self.menu: dict[str, MenuEntry] = {}
        self.withheld: frozenset[str] = frozenset()
        self.labels: tuple[tuple[str, str], ...] = ()
        self.traceparent: str | None = None
        self.status = "running"
        self.phase = "new"
        self.reason = ""
        self.answer: str | None = None
        self.error: str | None = None
        self.turn = -1
        self.turn_end = 0
        self.turn_limit = 0
        self.tool_call_budget = 0
        self.deadline = 0
        self.model_attempt = 0
        self.model_retry_at = 0
        self.request_digest = ""
        self.transcript: list[TranscriptMessage] = []
        self.digest = EMPTY_DIGEST
        self.base = EMPTY_DIGEST
        self.calls: list[Call] = []
        self.open_calls: dict[str, OpenCall] = {}
        self.attempts_seen: dict[str, int] = {}
        self.inputs: list[Input] = []
        self.commands: dict[str, None] = {}
        self.usage = Usage()
        self.tool_calls = 0
        self.started_at = 0
        self.at = 0
        self.ended_at = 0
        self.idle_at = 0
        self.arrived: Outcome | None = None

    def copy(self) -> RunState:
        """An independent copy; immutable parts are shared. Costs about 3 µs plus 8 bytes per transcript message."""
        new = RunState.__new__(RunState)
        for name in _SHARED:
            setattr(new, name, getattr(self, name))
        new.transcript = self.transcript.copy()
        new.calls = self.calls.copy()
        new.open_calls = self.open_calls.copy()
        new.attempts_seen = self.attempts_seen.copy()
        new.inputs = self.inputs.copy()
        new.commands = self.commands.copy()
        return new

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunState):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FACTS)

    __hash__ = None  # type: ignore[assignment]

    @property
    def ended(self) -> bool:
        """After a terminal event: only late outcomes may follow."""
        return self.phase == "ended"

    def add_message(self, message: TranscriptMessage) -> None:
        """Append to the transcript and to its running digest."""
        self.transcript.append(message)
        self.digest = message_digest(self.digest, message)

    def digest_with_inputs(self) -> tuple[int, str]:
        """Length and running digest of the transcript once the queued inputs have been added."""
        digest = self.digest
        for item in self.inputs:
            digest = message_digest(digest, UserMessage(item.text))
        return len(self.transcript) + len(self.inputs), digest

    def add_inputs(self) -> None:
        """Move the queued inputs into the transcript."""
        for item in self.inputs:
            self.add_message(UserMessage(item.text))
        self.inputs.clear()

    @property
    def final_input(self) -> bool:
        """A final input waits for the next boundary."""
        return any(item.final for item in self.inputs)


_FACTS = tuple(name for name in RunState.__slots__ if name != "arrived")
"""What a state is: `arrived` only carries an outcome to its settlement inside one group of events."""
_COPIED = frozenset({"transcript", "calls", "open_calls", "attempts_seen", "inputs", "commands"})
_SHARED = tuple(name for name in RunState.__slots__ if name not in _COPIED)
