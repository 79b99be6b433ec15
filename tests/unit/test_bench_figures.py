"""The benchmarks' figures are computed right: percentiles, processor time, medians of rounds, what a journal says after a kill."""

from __future__ import annotations

import os
import time

import pytest

from bench import _figures
from bench._audit import audit
from bench._client import Flow
from bench._figures import Meter, cpu_seconds, latencies, middle, peak_mb, percentile, ratio, recoveries, table
from bench.restore import Cut, floor_figures
from turnlog.core.agents import Usage
from turnlog.core.events import Event, RunSucceeded
from turnlog.core.records import JournalRecord, RunSummary


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([1.0], 0.5, 1.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        (list(range(1, 101)), 0.95, 95),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 11)), 0.99, 10),
    ],
)
def test_percentiles_are_values_that_were_measured(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 0.5)


def test_latencies_are_milliseconds() -> None:
    assert latencies([0.003, 0.001, 0.002]) == {"p50_ms": 2.0, "p95_ms": 3.0, "p99_ms": 3.0}


def test_processor_time_is_read_behind_a_name_with_spaces_and_brackets() -> None:
    fields = ["S", *["0"] * 10, str(3 * _figures.TICKS_PER_S), str(2 * _figures.TICKS_PER_S), "0"]
    assert cpu_seconds(f"42 (a (bad) name) {' '.join(fields)}") == 5.0


def test_peak_memory_is_the_high_water_mark() -> None:
    assert peak_mb("Name:\tx\nVmPeak:\t9999 kB\nVmHWM:\t2048 kB\nVmRSS:\t1024 kB\n") == 2.0
    assert peak_mb("Name:\tx\nState:\tZ (zombie)\n") == 0.0


def test_a_meter_charges_what_was_used_since_it_was_made() -> None:
    meter = Meter({"us": os.getpid()})
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    found = meter.read(10)
    assert 0.015 <= found["cpu_s_per_run"] <= 0.04
    assert found["cpu_ms_per_run_by_process"]["us"] == pytest.approx(found["cpu_s_per_run"] * 1000, rel=0.01)
    assert found["peak_mb"] > 5


def test_rounds_become_their_medians_nested_ones_too() -> None:
    rounds = [{"a": a, "in": {"b": b}, "fsync": False, "name": "x"} for a, b in ((1, 5.0), (9, 7.0), (2, 6.0))]
    assert middle(rounds) == {"a": 2, "in": {"b": 6.0}, "fsync": False, "name": "x"}


def test_a_ratio_is_taken_within_each_round() -> None:
    # The second round was ten times slower for both: it says nothing else than the others.
    assert ratio([2.0, 20.0, 3.0], [1.0, 10.0, 2.0]) == 2.0


def test_tables_indent_what_is_nested() -> None:
    lines = table({"seq": {"p50_ms": 1.5}})
    assert lines[0].strip() == "seq"
    assert lines[1].split() == ["p50_ms", "1.5"]


# ------------------------------------------------------------ what a journal says


def _step(run_id: str, step: int, *events: Event) -> JournalRecord:
    return JournalRecord("step", b"f" * 16, run_id, step, None, 0, "test", 1, 0, (), events)


def _standard_run(run_id: str) -> list[JournalRecord]:
    """Five answers and eight settled calls, a step each."""
    events = []
    for turn in range(4):
        events.append(Event("model_answered", 0, turn))
        events += [Event("call_settled", 0, turn, place, f"{run_id}:t{turn}:c{place}") for place in (0, 1)]
    steps = [_step(run_id, number, event) for number, event in enumerate(events)]
    last = (Event("model_answered", 0, 4), Event("run_succeeded", 0, payload=RunSucceeded("answered", "done")))
    return [*steps, _step(run_id, len(steps), *last)]


def test_a_whole_run_is_neither_lost_nor_doubled() -> None:
    found = audit(["r"], _standard_run("r"))
    assert (found["runs"], found["lost"], found["doubled"], found["steps_per_run"]) == (1, 0, 0, 13)


def test_a_run_nobody_heard_of_is_lost() -> None:
    assert audit(["r", "gone"], _standard_run("r"))["lost"] == 1


@pytest.mark.parametrize("missing", [0, 5, 12])
def test_a_run_without_one_of_its_steps_is_lost(missing: int) -> None:
    steps = [step for step in _standard_run("r") if step.step != missing]
    assert audit(["r"], steps)["lost"] == 1


def test_what_happened_twice_is_counted() -> None:
    again = _step("r", 13, Event("call_settled", 0, 0, 0, "r:t0:c0"))
    assert audit(["r"], [*_standard_run("r"), again])["doubled"] == 1
    same_step = _step("r", 12, Event("model_answered", 0, 4), Event("run_succeeded", 0))
    assert audit(["r"], [*_standard_run("r"), same_step])["doubled"] == 3  # the step, the answer, the end


def test_runs_that_nobody_asked_about_do_not_count() -> None:
    assert audit(["r"], [*_standard_run("r"), *_standard_run("other")])["runs"] == 1


def test_the_floor_is_described_by_how_often_it_moved_and_how_far_behind_it_was() -> None:
    samples = [Cut(floor, end, None) for floor, end in ((1, 10), (1, 50), (40, 60), (70, 80))]
    found = floor_figures(samples)
    assert (found["moves"], found["first"], found["last"], found["farthest_behind_records"]) == (2, 1, 70, 49)


# ------------------------------------------------------------ the client's flow of runs


def _ended(run_id: str, status: str = "succeeded") -> RunSummary:
    return RunSummary(run_id, "bench", "1", (), status, "", "", 4, 8, Usage(), "done", None, 9, b"", 0, 0, 0)


def test_each_end_starts_the_next_run() -> None:
    sent: list[str] = []
    flow = Flow(sent.append, "f")
    flow.begin(3, 2)
    assert sent == ["f-0", "f-1"]
    flow.take(_ended("f-1"))
    flow.take(_ended("f-1"))  # the same summary again
    flow.take(_ended("f-0", "running"))
    assert sent == ["f-0", "f-1", "f-2"]
    flow.take(_ended("f-0"))
    assert not flow.wait(0.0)
    flow.take(_ended("f-2", "failed"))
    assert flow.wait(0.0)
    assert len(flow.seconds) == 3
    assert len(flow.bad) == 1


def test_a_flow_that_is_stopped_starts_no_more_and_knows_what_is_under_way() -> None:
    sent: list[str] = []
    flow = Flow(sent.append, "f")
    flow.begin(100, 5)
    flow.take(_ended("f-0"))
    assert flow.stop() == 5
    flow.take(_ended("f-1"))
    assert sent == flow.started == [f"f-{number}" for number in range(6)]


def test_of_several_kills_the_time_is_the_median_and_losses_add_up() -> None:
    rounds = [
        {"seconds": seconds, "runs": 10, "lost": lost, "doubled": 0} for seconds, lost in [(3.0, 0), (9.0, 1), (4.0, 2)]
    ]
    assert recoveries(rounds) == {"seconds": 4.0, "seconds_each": [3.0, 9.0, 4.0], "runs": 10, "lost": 3, "doubled": 0}
    assert recoveries([*rounds, {**rounds[0], "seconds": None}])["seconds"] is None
