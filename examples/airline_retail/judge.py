"""What a play came to: the journal, the world and the model's request log, compared with the truth.

Results are read from the journal, the only truth of Turnlog, and not from what the tools or the client say.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from examples.airline_retail.recording import Recording, TrueCall, Truth
from examples.airline_retail.world import World, double_effects, mutating_calls, repeated_executions
from turnlog.core.events import CallSettled, Event, Outcome
from turnlog.journal.entries import Entry
from turnlog.journal.reading import JournalReader
from turnlog.kafka.fenced import Verdict

Place = tuple[str, int, int]
"""Run, turn, position of a call."""
Turn = tuple[str, int]
SHOWN = 200


@dataclass(frozen=True)
class Settled:
    """The one result of a call, as the journal has it."""

    tool: str
    content: str
    error: bool


@dataclass
class Recorded:
    """What the journal says of the runs of a play. `answered` is when a turn's answer became a valid step (ms, broker's time)."""

    results: dict[Place, Settled] = field(default_factory=dict)
    answered: dict[Turn, int] = field(default_factory=dict)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    broken: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Asked:
    """How often the model answered. `repeated`: asked although the answer was a valid step already; `lost`: asked again
    because the answer never became one, as it must be."""

    requests: int
    answers: int
    repeated: int
    lost: int
    refused: int


@dataclass
class Verdicts:
    """The comparison. `problems` says what is wrong, run by run, in words."""

    results_compared: int = 0
    results_equal: int = 0
    databases_equal: int = 0
    problems: list[str] = field(default_factory=list)


def read_journal(journal: JournalReader, play_id: str) -> Recorded:
    """Reads every partition once, from its start to its end of this moment."""
    recorded = Recorded()
    for partition in journal.all_partitions():
        for entry in journal.entries(partition):
            if entry.run_id.startswith(f"{play_id}."):
                _take(recorded, entry)
    return recorded


def _take(recorded: Recorded, entry: Entry) -> None:
    recorded.verdicts[entry.verdict] += 1
    if entry.verdict is Verdict.BROKEN:
        recorded.broken.add(entry.run_id)
    if entry.verdict is Verdict.STEP and entry.record is not None:
        _take_step(recorded, entry, entry.record.events)


def _take_step(recorded: Recorded, entry: Entry, events: Iterable[Event]) -> None:
    arrived = ""
    for event in events:
        if event.kind == "model_answered":
            recorded.answered[entry.run_id, event.turn or 0] = entry.timestamp_ms
        if isinstance(event.payload, Outcome):
            arrived = event.payload.content
        elif isinstance(event.payload, CallSettled):
            content = arrived if event.payload.content is None else event.payload.content
            place = (entry.run_id, event.turn or 0, event.position or 0)
            recorded.results[place] = Settled(event.tool or "", content, event.payload.status != "ok")


def compare(
    world: World, recorded: Recorded, recordings: Iterable[Recording], truths: Mapping[str, Truth], play_id: str
) -> Verdicts:
    """Every result and every database against the truth. A result that is missing, or that nobody asked for, is unequal."""
    verdicts = Verdicts()
    expected: set[Place] = set()
    for recording in recordings:
        run_id, truth = f"{play_id}.{recording.id}", truths[recording.id]
        for (turn, position, _), wanted in zip(recording.calls(), truth.calls, strict=True):
            expected.add((run_id, turn, position))
            _compare_result(verdicts, (run_id, turn, position), wanted, recorded.results)
        _compare_database(verdicts, world, recording, run_id, truth)
    verdicts.problems += [f"{run_id}: its chain is broken" for run_id in sorted(recorded.broken)]
    verdicts.problems += [
        f"{_place(place)}: was never recorded" for place in sorted(recorded.results.keys() - expected)
    ]
    return verdicts


def _compare_result(verdicts: Verdicts, place: Place, wanted: TrueCall, results: Mapping[Place, Settled]) -> None:
    verdicts.results_compared += 1
    got = results.get(place)
    if got == Settled(wanted.name, wanted.output, wanted.error):
        verdicts.results_equal += 1
    elif got is None:
        verdicts.problems.append(f"{_place(place)}: no result")
    else:
        pair = f"wanted {_shown(wanted.output)} (error: {wanted.error}), got {_shown(got.content)} (error: {got.error})"
        verdicts.problems.append(f"{_place(place)}, {wanted.name}: {pair}")


def _compare_database(verdicts: Verdicts, world: World, recording: Recording, run_id: str, truth: Truth) -> None:
    effects = world.effects(run_id)
    mutated = sum(call.mutated for call in truth.calls)
    if world.final_hashes(run_id, recording.domain) != truth.final:
        verdicts.problems.append(f"{run_id}: its database is not the true one")
    elif (found := len({effect.key for effect in effects if effect.mutated})) != mutated:
        verdicts.problems.append(f"{run_id}: {found} calls changed its database, not {mutated}")
    else:
        verdicts.databases_equal += 1


def count_requests(log: Path, play_id: str, recorded: Recorded) -> Asked:
    """The model's request log against the journal: which answers were asked for again, and whether rightly.

    Both clocks are this machine's: the broker stamps the journal (LogAppendTime), the model its requests.
    """
    answers: dict[Turn, list[int]] = {}
    requests = refused = 0
    for line in log.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if not entry["run"].startswith(f"{play_id}."):
            continue
        requests += 1
        refused += entry["status"] == 422
        if entry["status"] == 200:
            answers.setdefault((entry["run"], entry["turn"]), []).append(int(entry["at"] * 1000))
    repeated = sum(at > recorded.answered.get(turn, at) for turn, times in answers.items() for at in times)
    given = sum(map(len, answers.values()))
    return Asked(requests, given, repeated, given - repeated - len(answers.keys() & recorded.answered.keys()), refused)


def effect_counts(path: Path, play_id: str) -> dict[str, int]:
    """The world's own numbers for a play."""
    return {
        "mutating_calls": mutating_calls(path, play_id),
        "double_effects": double_effects(path, play_id),
        "repeated_executions": repeated_executions(path, play_id),
    }


def _place(place: Place) -> str:
    return f"{place[0]}, turn {place[1]}, call {place[2]}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
