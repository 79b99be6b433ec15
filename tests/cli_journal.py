"""A journal written by hand for tests of its readers: the real core decides, the real codec writes, and faults are made on purpose."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from itertools import count

from turnlog.codec import Codec
from turnlog.core.agents import AgentSpec, MenuEntry, Usage
from turnlog.core.decide import advance
from turnlog.core.events import (
    Body,
    Event,
    Input,
    Message,
    ModelAnswer,
    ModelFailure,
    Outcome,
    RecordedCall,
    Start,
)
from turnlog.core.limits import RULES
from turnlog.core.pending import next_wake
from turnlog.core.records import Fence, InputRef, JournalRecord, RunSummary, Snapshot
from turnlog.core.snapshot import to_json
from turnlog.core.state import RunState
from turnlog.kafka.fenced import RecordHeader, headers_of
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import Headers
from turnlog.schema_check import check_arguments

Append = Callable[[int, bytes | None, bytes, Headers], None]
"""(partition, key, value, headers)"""

AGENT = AgentSpec("clerk", "1", "Be brief.", "scripted/test", tools=("office/*",), parallel_calls=2)
LOOKUP = MenuEntry(
    "lookup", "office", "1", "tool-requests.office", "Looks up a name.",
    '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}',
)  # fmt: skip


class Chain:
    """A run in the making."""

    def __init__(self, run_id: str) -> None:
        self.state = RunState(run_id)
        self.step = -1
        self.prev: bytes | None = None
        self.value = b""
        self.headers: Headers = ()


class JournalWriter:
    """Writes valid records, one ownership at a time per partition. Time goes on by a second with each message."""

    def __init__(self, codec: Codec, partitions: int, append: Append) -> None:
        self.codec = codec
        self.partitions = partitions
        self._append = append
        self._tokens: dict[int, bytes] = {}
        self._numbers = count(1)
        self.clock = 1_800_000_000_000
        self.chains: dict[str, Chain] = {}

    def partition(self, run_id: str) -> int:
        return partition_of(run_id.encode(), self.partitions)

    def fence(self, partition: int, owner: str = "host/loop-0") -> bytes:
        """Open an ownership; returns its token."""
        token = next(self._numbers).to_bytes(16, "big")
        opening = Fence(owner, (), 0, (InputRef("commands", partition, 0),))
        record = JournalRecord("fence", token, "", -1, None, self.clock, "test", 0, 0, (), (), opening)
        self._append(
            partition, None, self.codec.encode(record), headers_of(RecordHeader("fence", token, -1, None, 0, -1))
        )
        self._tokens[partition] = token
        return token

    def fence_all(self, owner: str = "host/loop-0") -> None:
        for partition in range(self.partitions):
            self.fence(partition, owner)

    def say(self, run_id: str, body: Body, **place: int | str) -> tuple[Event, ...]:
        """One message, decided and written as a step."""
        self.clock += 1000
        chain = self.chains.setdefault(run_id, Chain(run_id))
        message = Message(self.clock, body, **place)  # type: ignore[arg-type]
        events = advance(chain.state, message, check_arguments)
        assert events, f"{body} makes nothing"
        self.write(run_id, events)
        return events

    def write(self, run_id: str, events: tuple[Event, ...]) -> None:
        """A step with these events, whatever they are."""
        chain = self.chains.setdefault(run_id, Chain(run_id))
        chain.step += 1
        token = self._tokens[self.partition(run_id)]
        record = JournalRecord("step", token, run_id, chain.step, chain.prev, self.clock, "test", RULES, 0, (), events)
        end = 0 if chain.state.ended and not chain.state.open_calls else -1
        header = RecordHeader("step", token, chain.step, chain.prev, next_wake(chain.state), end)
        self.put(run_id, self.codec.encode(record), headers_of(header))

    def put(self, run_id: str, value: bytes, headers: Headers) -> None:
        """These bytes as the run's next record; its chain goes on from them."""
        chain = self.chains[run_id]
        chain.value, chain.headers, chain.prev = value, headers, sha256(value).digest()
        self._append(self.partition(run_id), run_id.encode(), value, headers)

    def repeat(self, run_id: str) -> None:
        """The run's last record once more (J2)."""
        chain = self.chains[run_id]
        self._append(self.partition(run_id), run_id.encode(), chain.value, chain.headers)

    def snapshot(self, run_id: str, state: str | None = None) -> None:
        chain = self.chains[run_id]
        token = self._tokens[self.partition(run_id)]
        text = to_json(chain.state) if state is None else state
        held = Snapshot(text, None, len(text))
        record = JournalRecord(
            "snapshot", token, run_id, chain.step, chain.prev, self.clock, "test", RULES, 0, (), (), None, held
        )
        header = RecordHeader("snapshot", token, chain.step, chain.prev, next_wake(chain.state), -1)
        self._append(self.partition(run_id), run_id.encode(), self.codec.encode(record), headers_of(header))

    def void(self, run_id: str) -> None:
        """A step of an owner whose fence was never in force."""
        chain = self.chains[run_id]
        token = b"\xff" * 16
        record = JournalRecord("step", token, run_id, chain.step + 1, chain.prev, self.clock, "test", RULES, 0, (), ())
        header = RecordHeader("step", token, chain.step + 1, chain.prev, 0, -1)
        self._append(self.partition(run_id), run_id.encode(), self.codec.encode(record), headers_of(header))

    # --- a run in a few words

    def start(self, run_id: str, text: str | None = "Who is Ada?", agent: AgentSpec = AGENT) -> None:
        self.say(run_id, Start(f"start:{run_id}", agent, (LOOKUP,), (), text, (("tenant", "acme"),)))

    def ask_tool(self, run_id: str, *names: str) -> list[str]:
        """The model asks for a look-up of each name; returns the call keys."""
        state = self.chains[run_id].state
        calls = tuple(RecordedCall(f"p{i}", "lookup", f'{{"name":"{name}"}}') for i, name in enumerate(names))
        self.say(run_id, ModelAnswer(None, calls, "tool_calls", "m", "", Usage(10, 2)), turn=state.turn, attempt=1)
        return [call.key for call in self.chains[run_id].state.calls]

    def tool_says(self, run_id: str, key: str, content: str = "a mathematician") -> None:
        self.say(run_id, Outcome("ok", content, worker="w"), call_key=key, attempt=1)

    def answer(self, run_id: str, text: str = "Ada was a mathematician.") -> None:
        state = self.chains[run_id].state
        self.say(
            run_id, ModelAnswer(text, (), "stop", "m", "", Usage(12, 5)), turn=state.turn, attempt=state.model_attempt
        )

    def fail_model(self, run_id: str) -> None:
        state = self.chains[run_id].state
        self.say(run_id, ModelFailure("overloaded", "try later", True), turn=state.turn, attempt=state.model_attempt)

    def input(self, run_id: str, text: str) -> None:
        self.say(run_id, Input(f"c{next(self._numbers)}", text))

    def whole(self, run_id: str) -> None:
        """A run of two turns and two calls that succeeds."""
        self.start(run_id)
        for key in self.ask_tool(run_id, "Ada", "Grace"):
            self.tool_says(run_id, key)
        self.answer(run_id)

    def summary(self, run_id: str) -> RunSummary:
        """What `run-state` would say of it."""
        chain = self.chains[run_id]
        state = chain.state
        waits = {"model": "model", "calls": "tools", "input": "input"}.get(state.phase, "")
        return RunSummary(
            run_id, state.agent.name, state.agent.version, state.labels, state.status, state.reason, waits, state.turn,
            state.tool_calls, state.usage, state.answer, state.error, chain.step, chain.prev or b"", state.started_at, state.at,
            state.ended_at or None,
        )  # fmt: skip


def respelt(value: bytes, old: str, new: str) -> bytes:
    """The bytes with one word replaced by another of its length."""
    assert len(old) == len(new)
    assert old.encode() in value
    return value.replace(old.encode(), new.encode())
