"""The real loop on MemoryLog, by seeds (see loop_world). `TURNLOG_SIMULATION_SEEDS=0:20000` runs others and more."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.loop_world import Plan, World

CHUNK = 20
CHUNKS = 12
MET: Counter[str] = Counter()


def _seeds() -> range:
    first, _, end = os.environ.get("TURNLOG_SIMULATION_SEEDS", f"0:{CHUNK * CHUNKS}").partition(":")
    return range(int(first), int(end))


def _chunks() -> list[range]:
    seeds = _seeds()
    return [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]


@pytest.mark.parametrize("seeds", _chunks(), ids=lambda seeds: f"{seeds.start}-{seeds.stop}")
def test_every_invariant_holds_under_every_fault(seeds: range) -> None:
    """A failure carries seed, step and the command that repeats it as a note."""
    for seed in seeds:
        MET.update(World(seed).run().reference.counts)


def test_the_seeds_went_through_what_they_are_for() -> None:
    words = (
        "steps",
        "requests",
        "snapshots",
        "blobs",
        "fences",
        "void",
        "repeats",
        "letter unknown_call",
    )
    assert not MET or not [word for word in words if not MET[word]], f"the simulation is not rough enough: {MET}"


def test_without_faults_nothing_is_repeated() -> None:
    """Void is possible: what was under way when a partition moved may land behind the next owner's fence (one seed in ten)."""
    counts: Counter[str] = Counter()
    for seed in range(5):
        counts.update(World(seed, Plan(faults=False)).run().reference.counts)
    assert counts["steps"] > 100
    assert counts["repeats"] == 0


def test_equal_seeds_are_equal_histories() -> None:
    first, second = World(4242).run(), World(4242).run()
    assert first.dice.trace == second.dice.trace
    assert first.reference.counts == second.reference.counts
    assert {r: x.steps for r, x in first.reference.runs.items()} == {
        r: x.steps for r, x in second.reference.runs.items()
    }
