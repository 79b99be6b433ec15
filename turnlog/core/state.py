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

    # Built directly: `_replace` costs three times as much, and a call changes at least twice.

    def requested(self, attempt: int, deadline: int) -> Call:
        """An attempt is under way."""
        return Call(*self[:5], REQUESTED, attempt, deadline)

    def retrying(self, retry_at: int) -> Call:
        """The last attempt failed; the next one is due at `retry_at`."""
        return Call(*self[:5], RETRYING, self.attempt, self.deadline, retry_at)

    def settled(self, settlement: str, content: str) -> Call:
        """The call has its one result."""
        return Call(*self[:5], SETTLED, self.attempt, self.deadline, 0, settlement, content)


class OpenCall(NamedTuple):
    """A call whose last requested attempt has no answer yet. The call itself may be settled all the same: timed out, cancelled,
    or by an earlier attempt."""

    turn: int
    position: int
    tool: str
    not_after: int
    attempt: int = 1


def outcome_bit(attempt: int, ok: bool) -> int:
    """The place of an outcome in `attempts_seen`: every attempt has one for its failure and one for its success.

    Two, because both may come: a request that was delivered twice can fail on one worker while the other one succeeds.
    """
    return 1 << (2 * attempt + ok)


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
        """By call key, the outcomes that arrived, as `outcome_bit`s: what is in here is a repetition when it comes again."""
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
        """An independent copy; immutable parts are shared. About 1 µs, and 8 bytes per transcript message.

        Spelt out because a loop over the names costs three times as much, once a step; a test holds that none is missing.
        """
        new = RunState.__new__(RunState)
        new.run_id, new.rules, new.agent, new.menu = self.run_id, self.rules, self.agent, self.menu
        new.withheld, new.labels, new.traceparent = self.withheld, self.labels, self.traceparent
        new.status, new.phase, new.reason = self.status, self.phase, self.reason
        new.answer, new.error, new.usage = self.answer, self.error, self.usage
        new.turn, new.turn_end, new.turn_limit = self.turn, self.turn_end, self.turn_limit
        new.tool_call_budget, new.tool_calls = self.tool_call_budget, self.tool_calls
        new.model_attempt, new.model_retry_at = self.model_attempt, self.model_retry_at
        new.request_digest, new.digest, new.base = self.request_digest, self.digest, self.base
        new.deadline, new.idle_at, new.at = self.deadline, self.idle_at, self.at
        new.started_at, new.ended_at, new.arrived = self.started_at, self.ended_at, self.arrived
        new.transcript, new.calls, new.inputs = self.transcript.copy(), self.calls.copy(), self.inputs.copy()
        new.open_calls, new.attempts_seen = self.open_calls.copy(), self.attempts_seen.copy()
        new.commands = self.commands.copy()
        return new

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunState):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in FACTS)

    __hash__ = None  # type: ignore[assignment]

    @property
    def ended(self) -> bool:
        """After a terminal event: only late outcomes may follow."""
        return self.phase == "ended"

    @property
    def final_input(self) -> bool:
        """A final input waits for the next boundary."""
        return any(item.final for item in self.inputs) if self.inputs else False

    def unsettled(self, key: str) -> Call | None:
        """The call of the current turn with this key, if it was requested or waits, and has no result yet."""
        for call in self.calls:
            if call.key == key:
                return call if call.stage != SETTLED else None
        return None

    def attempts_of(self, key: str) -> int:
        """How many attempts of a call were requested; below 1 for a call this run never requested."""
        open_call = self.open_calls.get(key)
        if open_call is not None:
            return open_call.attempt
        return (self.attempts_seen.get(key, 0).bit_length() - 1) // 2

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


FACTS = tuple(name for name in RunState.__slots__ if name != "arrived")
"""What a state is: `arrived` only carries an outcome to its settlement inside one group of events."""
