"""The fence holds in every interleaving up to a bound, and each of its rules is needed: taken out, the search finds a counter-example.

The slow cases look at some hundred thousand states more; `explore` takes any bounds, at about 50 µs and 1.5 KB a state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.fence_model import Bounds, Step, World, explore
from turnlog.kafka.fenced import PartitionFold, RecordHeader, Verdict
from turnlog.kafka.ownership import Ownership
from turnlog.kafka.port import Delivered, Received

QUICK = [Bounds(owners=2, runs=2, log=4), Bounds(owners=3, runs=1, log=5)]
LONG = [Bounds(owners=2, runs=2, log=5), Bounds(owners=3, runs=2, log=4)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """An ownership warns of every gap; the model has millions."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "bounds", [*QUICK, *[pytest.param(bounds, marks=pytest.mark.slow) for bounds in LONG]], ids=str
)
def test_the_rules_hold_in_every_interleaving(bounds: Bounds) -> None:
    found = explore(bounds)
    assert not found.problem, (found.problem, found.log)
    assert found.states > 10_000, "the bounds cut off what should be looked at"
    print(f"{found.states} states")


# ---------------------------------------------------------------- mutants


class ForgetsTokens(PartitionFold):
    """(J1) taken out: what names another fence is not void."""

    __slots__ = ()

    def _judge(self, record: Received, header: RecordHeader) -> Verdict:
        if header.kind != "fence":
            header = header._replace(fence=self.token or b"")
        return super()._judge(record, header)


class KnowsNoRepeats(PartitionFold):
    """(J1, J2) taken out: the same step with the same bytes is not skipped."""

    __slots__ = ()

    def _step(self, key: str, offset: int, value: bytes, header: RecordHeader) -> Verdict:
        verdict = super()._step(key, offset, value, header)
        return Verdict.BROKEN if verdict is Verdict.REPEAT else verdict


class ReleasesInGaps(Ownership[Step]):
    """(J6) taken out: what is acknowledged while a gap is read is released at once if it is contiguous."""

    __slots__ = ()

    def acknowledged(self, ticket: Step, report: Delivered) -> None:
        contiguous = report.offset == self.expected
        super().acknowledged(ticket, report)
        if contiguous and self._held and self.ended is None:
            self._owner.valid(*self._held.pop())


class IgnoresGaps(Ownership[Step]):
    """(J6) taken out: a higher offset than expected is taken as a good one."""

    __slots__ = ()

    def _missing(self, start: int, end: int) -> None:
        return None


MUTANTS = {
    "J1: tokens are not looked at": World(fold=ForgetsTokens),
    "J2: repeats are not skipped": World(fold=KnowsNoRepeats),
    "J5: two unacknowledged steps of one run": World(per_run=2),
    "J6: released before the acknowledgement": World(released_at_once=True),
    "J6: gaps are not read": World(gaps_are_read=False),
    "J6: gaps are not noticed": World(ownership=IgnoresGaps),
    "J6: released while a gap is read": World(ownership=ReleasesInGaps),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_rule_is_needed(name: str) -> None:
    found = explore(Bounds(owners=2, runs=2, log=5), MUTANTS[name])
    assert found.problem, f"nothing was found in {found.states} states"
    print(f"{name}: {found.problem} after {found.states} states: {found.log}")
