"""What a journal says of runs of the standard work after something was killed: which are lost, what happened twice.

The journal is judged by the rule of its readers (`turnlog.kafka.fenced`); the runs by what the standard work must have led to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bench._figures import Figures
from turnlog.codec import Codec
from turnlog.core.events import TERMINAL
from turnlog.core.records import JournalRecord
from turnlog.kafka.fenced import STEP, PartitionFold, Verdict
from turnlog.kafka.port import Partition, Reader
from turnlog.kafka.topics import topic_name

TURNS, CALLS = 5, 8


def valid_steps(reader: Reader, codec: Codec, prefix: str, partitions: int, start: str) -> Iterator[JournalRecord]:
    """The steps that count of all runs whose id begins with `start`."""
    journal = topic_name(prefix, "journal")
    for index in range(partitions):
        partition = Partition(journal, index)
        fold = PartitionFold(keep_ended_from=0)
        first, end = reader.bounds(partition)
        for batch in reader.read(partition, first, end, timeout_s=300.0):
            for record in batch:
                counts = fold.take(record) is Verdict.STEP
                if counts and (record.key or b"").decode().startswith(start):
                    yield codec.decode(record.value, JournalRecord)


class _History:
    """What happened in one run, counted."""

    def __init__(self) -> None:
        self.steps: Counter[int] = Counter()
        self.settled: Counter[str] = Counter()
        self.answered: Counter[int] = Counter()
        self.ends: Counter[str] = Counter()

    def take(self, step: JournalRecord) -> None:
        self.steps[step.step] += 1
        for event in step.events:
            if event.kind == "call_settled":
                self.settled[event.call_key or ""] += 1
            elif event.kind == "model_answered":
                self.answered[event.turn or 0] += 1
            elif event.kind in TERMINAL:
                self.ends[event.kind] += 1

    @property
    def complete(self) -> bool:
        gapless = set(self.steps) == set(range(len(self.steps)))
        whole = len(self.settled) == CALLS and len(self.answered) == TURNS
        return gapless and whole and self.ends["run_succeeded"] > 0

    @property
    def doubled(self) -> int:
        counts = (self.steps, self.settled, self.answered)
        return sum(count - 1 for each in counts for count in each.values()) + max(0, self.ends.total() - 1)


def audit(run_ids: Iterable[str], steps: Iterable[JournalRecord]) -> Figures:
    """`lost`: runs without their whole history and end; `doubled`: steps, settled calls, answers and ends beyond the first."""
    histories = {run_id: _History() for run_id in run_ids}
    for step in steps:
        if step.kind == STEP and step.run_id in histories:
            histories[step.run_id].take(step)
    return {
        "runs": len(histories),
        "lost": sum(not each.complete for each in histories.values()),
        "doubled": sum(each.doubled for each in histories.values()),
        "steps_per_run": round(sum(each.steps.total() for each in histories.values()) / max(1, len(histories)), 2),
    }
