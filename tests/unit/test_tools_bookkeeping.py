"""Positions, the gate and known results: small states that must never be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.events import Outcome
from turnlog.tools.execution import FIRST_PROOF, QUICK_S, SLOW_S, TOO_SLOW_S, Pace
from turnlog.tools.gate import Gate
from turnlog.tools.known import Known, KnownResults
from turnlog.tools.offsets import OffsetTracker

gaps = st.lists(st.integers(1, 3), min_size=1, max_size=60)


@given(gaps, st.integers(0, 100), st.randoms())
def test_what_may_be_committed_is_the_lowest_offset_not_settled(gaps: list[int], start: int, random: Any) -> None:
    tracker = OffsetTracker(0, start)
    offsets: list[int] = []
    waiting: list[int] = []
    settled: set[int] = set()
    offset = start - 1
    for gap in gaps:
        offset += gap
        assert tracker.take(offset)
        offsets.append(offset)
        waiting.append(offset)
        before = tracker.position
        while waiting and random.random() < 0.6:
            done = waiting.pop(random.randrange(len(waiting)))
            tracker.settle(done)
            settled.add(done)
            open_ = [o for o in offsets if o not in settled]
            assert tracker.position == (open_[0] if open_ else offset + 1)
            assert tracker.under_way == len(open_)
        assert tracker.position >= before
        assert not tracker.take(offset), "one record is taken once"
    for done in waiting:
        tracker.settle(done)
    assert tracker.position == offset + 1
    assert tracker.under_way == 0


def test_dropped_records_hold_the_position_but_are_not_under_way() -> None:
    tracker = OffsetTracker(0, 5)
    for offset in (5, 6, 7):
        tracker.take(offset)
    tracker.dropped = 1  # 6 was given up
    tracker.settle(5)
    tracker.settle(7)
    assert tracker.under_way == 0
    assert tracker.position == 6


@given(
    st.integers(1, 50),
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1000)), max_size=100),
)
def test_the_gate_closes_at_a_bound_and_opens_at_half(most: int, size: int, loads: list[tuple[int, int]]) -> None:
    gate = Gate(most, size)
    for count, bytes_ in loads:
        was = gate.closed
        change = gate.update(count, bytes_)
        full = count >= most or bytes_ >= size
        low = count <= most // 2 and bytes_ <= size // 2
        assert change == ("pause" if not was and full else "resume" if was and low else None)
        assert gate.closed == (full if not was else not low)
        assert gate.room(count) >= 1


def test_a_gate_needs_bounds() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Gate(0, 1)


def known(content: str = "x", attempt: int = 1, status: str = "ok") -> Known:
    return Known(attempt, Outcome(status, content))


def test_known_results_are_bounded_by_count_and_bytes_oldest_use_first() -> None:
    results = KnownResults(most=2, most_bytes=10_000)
    results.put("a", known())
    results.put("b", known())
    assert results.get("a") == known()
    results.put("c", known())
    assert results.get("b") is None
    assert "a" in results
    results.put("d", known("y" * 9_500))
    assert len(results) == 1
    results.put("e", known("y" * 20_000))
    assert len(results) == 0
    assert results.size == 0


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3000), st.booleans()), max_size=40))
def test_the_size_of_known_results_is_the_sum_of_what_is_held(puts: list[tuple[str, int, bool]]) -> None:
    results = KnownResults(most=3, most_bytes=5_000)
    for key, size, ok in puts:
        results.put(key, known("x" * size, status="ok" if ok else "error"))
        assert len(results) <= 3
        assert 0 <= results.size <= 5_000
        assert (results.size == 0) == (len(results) == 0)


def test_a_success_answers_every_attempt_and_is_not_replaced_by_an_error() -> None:
    results = KnownResults(10, 10_000)
    results.put("a", known("good"))
    results.put("a", known("bad", attempt=2, status="error"))
    found = results.get("a")
    assert found is not None
    assert found.outcome.content == "good"
    assert found.answers(7)
    assert not known(status="error").answers(2)
    assert known(status="error").answers(1)


def inline(pace: Pace) -> bool:
    return pace.inline


def test_a_tool_runs_inline_after_a_proof_and_not_after_a_relapse() -> None:
    pace = Pace()
    for _ in range(FIRST_PROOF):
        assert not inline(pace)
        pace.elsewhere(QUICK_S)
    assert inline(pace)
    for when in (0.0, 100.0, 110.0):
        pace.slow(SLOW_S, when)
        assert inline(pace), "once or twice a minute is no reason"
    pace.calls = 10_000
    pace.slow(SLOW_S, 120.0)
    assert inline(pace), "three of many are none either: the machine was busy"
    pace.calls = 100
    pace.slow(SLOW_S, 130.0)
    assert not inline(pace)
    for _ in range(FIRST_PROOF * 10 - 1):
        pace.elsewhere(QUICK_S)
    assert not inline(pace)
    pace.elsewhere(QUICK_S * 2)
    for _ in range(FIRST_PROOF * 10):
        pace.elsewhere(QUICK_S)
    assert inline(pace)
    pace.slow(TOO_SLOW_S, 1000.0)
    assert not inline(pace), "one such call is enough"
