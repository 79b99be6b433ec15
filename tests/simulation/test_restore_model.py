"""A restore from the floor equals a fold of everything, over random histories; and each rule that makes it so is needed.

A failure prints the seed and the history's number: `first_difference(number + 1, seed)` repeats it.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.restore_model import World, first_difference
from turnlog.kafka.fenced import SNAPSHOT, STEP, PartitionFold, RecordHeader, Verdict
from turnlog.kafka.port import Received

SEED = int(os.environ.get("TURNLOG_TEST_SEED", "1"))


def test_a_restore_equals_a_fold_of_everything() -> None:
    assert first_difference(500, SEED) == ""


@pytest.mark.slow
def test_a_restore_equals_a_fold_of_everything_in_many_histories() -> None:
    assert first_difference(5_000, SEED + 1) == ""


class CountsVoidSnapshots(PartitionFold):
    """(J1) taken out for snapshots: those of a zombie count."""

    __slots__ = ()

    def _judge(self, record: Received, header: RecordHeader) -> Verdict:
        if header.kind == SNAPSHOT:
            header = header._replace(fence=self.token or b"")
        return super()._judge(record, header)


class CountsVoidSteps(PartitionFold):
    """(J1) taken out for steps."""

    __slots__ = ()

    def _judge(self, record: Received, header: RecordHeader) -> Verdict:
        if header.kind == STEP:
            header = header._replace(fence=self.token or b"")
        return super()._judge(record, header)


class KeepsOldBases(PartitionFold):
    """(J8) taken out: a snapshot makes no new base, but the steps before it are forgotten."""

    __slots__ = ()

    def _snapshot(self, key: str, offset: int, size: int, header: RecordHeader) -> Verdict:
        trail = self.trails.get(key)
        base = trail.base if trail is not None else offset
        verdict = super()._snapshot(key, offset, size, header)
        self.trails[key].base = base
        return verdict


MUTANTS = {
    "J1: snapshots of zombies count": World(fold=CountsVoidSnapshots),
    "J1: steps of zombies count": World(fold=CountsVoidSteps),
    "J8: the floor ignores the oldest base": World(floor_is_least_base=False),
    "J8: a snapshot is no base": World(fold=KeepsOldBases),
    "J9: the token at the floor is not remembered": World(pointer_has_token=False),
    "J14: the log is cut anywhere": World(cut_at_fence=False),
    "J14: the cut ignores bases and pointers": World(cut_keeps_bases=False, cut_keeps_pointers=False),
}
"""Bases and pointers each bound the cut on their own (a pointer's floor lies at or below every base): the journal needs one, and
has both."""


@pytest.mark.parametrize("name", MUTANTS)
def test_every_rule_is_needed(name: str) -> None:
    difference = first_difference(2_000, SEED, MUTANTS[name])
    assert difference, "no history shows a difference"
    print(f"{name}: {difference}")
