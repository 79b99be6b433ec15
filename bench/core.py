"""What the pure core costs in Python: one step of the standard work, and what restores and audits pay for.

The standard work is 5 turns and 8 calls: turns 0 to 3 ask for two parallel calls each, turn 4 answers; 14 messages, each one
step (copy the state, decide, fold). Nothing of Kafka or Avro is in here. Usage: `python -m bench.core [--json] [--rounds N]`.
Figures are processor time; that of a step is a median, the others are the best of many short rounds.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from turnlog.core.agents import AgentSpec, MenuEntry, Usage
from turnlog.core.decide import advance
from turnlog.core.events import Event, Message, ModelAnswer, Outcome, RecordedCall, Start, message_of
from turnlog.core.evolve import evolve
from turnlog.core.pending import next_wake, pending
from turnlog.core.replay import verify
from turnlog.core.snapshot import from_json, to_json
from turnlog.core.state import RunState

TURNS, CALLS = 5, 2
SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"},"text":{"type":"string"}},"required":["n"]}'
MENU = tuple(MenuEntry(f"bench_{name}", "bench", "1", "tool-requests.bench", "Adds.", SCHEMA) for name in "ab")
AGENT = AgentSpec(
    "bench", "1", "Do the work, then answer.", "scripted/standard_work", tools=("bench/*",), parallel_calls=CALLS
)

_fresh = itertools.count()
"""No two calls have the same arguments, or a cache would make them look cheap."""

Steps = list[tuple[Event, ...]]


def accept(entry: MenuEntry, value: Any) -> str | None:
    """A validator that costs nothing: jsonschema-rs adds 0.7 µs a call."""
    return None


def standard_work(run_id: str) -> Steps:
    """One run from its start to its end, each message a step of its own."""
    steps: Steps = []
    state = RunState(run_id)

    def step(message: Message) -> None:
        steps.append(advance(state, message, accept))

    labels = (("tenant", "bench"),)
    step(Message(1_000, Start("start", AGENT, MENU, input="Please do the standard work.", labels=labels), input=0))
    for turn in range(TURNS - 1):
        answer = ModelAnswer(None, _two_calls(turn), "tool_calls", "standard_work", f"r{turn}", Usage(100, 20))
        step(Message(2_000 + turn, answer, turn=turn, attempt=1))
        for key in [call.key for call in state.calls]:
            step(Message(3_000 + turn, Outcome("ok", f"result of {key}"), call_key=key, attempt=1, input=0))
    last = ModelAnswer("done", (), "stop", "standard_work", "r4", Usage(100, 5))
    step(Message(9_000, last, turn=TURNS - 1, attempt=1))
    return steps


def _two_calls(turn: int) -> tuple[RecordedCall, ...]:
    return tuple(
        RecordedCall(f"call_{turn}_{i}", f"bench_{'ab'[i]}", f'{{"n": {next(_fresh)}, "text": "x"}}')
        for i in range(CALLS)
    )


def steps_us(runs: int) -> float:
    """Processor time of one step, copy, decide and fold: the median of many runs, so neither luck nor other work counts."""
    messages = [[message_of(step[0]) for step in standard_work("bench-run")] for _ in range(runs)]
    return statistics.median(_play(each) for each in messages) / len(messages[0]) * 1e6


def _play(messages: list[Message]) -> float:
    state = RunState("bench-run")
    started = time.process_time()
    for message in messages:
        draft = state.copy()
        advance(draft, message, accept)
        state = draft
    return time.process_time() - started


def best_us(work: Callable[[], object], rounds: int, per: int = 1, batch: int = 2) -> float:
    """Microseconds of processor time per unit, the best of `rounds` batches."""
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(batch):
            work()
        best = min(best, time.process_time() - started)
    return best / batch / per * 1e6


def long_conversation(turns: int) -> RunState:
    """A run in the middle of its work, with a long history behind it."""
    agent = AGENT._replace(turn_limit=0)
    state = RunState("long")
    advance(state, Message(1, Start("start", agent, MENU, input="go")), accept)
    for turn in range(turns):
        answer = ModelAnswer(None, (RecordedCall(f"c{turn}", "bench_a", f'{{"n":{turn}}}'),))
        advance(state, Message(2, answer, turn=turn, attempt=1), accept)
        advance(state, Message(3, Outcome("ok", "result"), call_key=state.calls[0].key, attempt=1), accept)
    return state


def figures(rounds: int) -> dict[str, float]:
    """Every figure, by name; microseconds but where the name says otherwise."""
    steps = standard_work("bench-run")
    events = [event for step in steps for event in step]
    long = long_conversation(1_000)
    text = to_json(long)
    middle = RunState("bench-run")
    for step in steps[:3]:
        for event in step:
            evolve(middle, event)

    def refold() -> None:
        folded = RunState("bench-run")
        for event in events:
            evolve(folded, event)

    return {
        "step (copy, decide, fold)": steps_us(rounds),
        "copy": best_us(middle.copy, rounds, batch=100),
        "copy after 1,000 turns": best_us(long.copy, rounds, batch=20),
        "fold one event": best_us(refold, rounds, len(events)),
        "next_wake": best_us(lambda: next_wake(middle), rounds, batch=100),
        "pending": best_us(lambda: pending(middle), rounds, batch=100),
        "verify one step": best_us(lambda: verify("bench-run", enumerate(steps), accept), rounds, len(steps)),
        "snapshot of 1,000 turns": best_us(lambda: to_json(long), max(1, rounds // 10), batch=1),
        "load that snapshot": best_us(lambda: from_json(text), max(1, rounds // 10), batch=1),
        "events of the standard work (count)": float(len(events)),
        "that snapshot (KiB)": len(text) / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    gc.freeze()
    found = figures(options.rounds)
    if options.json:
        print(json.dumps({name: round(value, 2) for name, value in found.items()}))
        return
    for name, value in found.items():
        print(f"{name:38} {value:10.2f}")


if __name__ == "__main__":
    main()
