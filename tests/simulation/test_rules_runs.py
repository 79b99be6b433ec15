"""J10 to J12, each rule by name: parking, inputs, known runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from services.loop import memory, projections, table
from services.loop.known_runs import KnownRuns, state_headers
from tests.simulation.loop_process import TOPICS
from tests.simulation.loop_stage import COMMANDS, JOURNAL, RESULTS, STATES, Stage, answers, one_call
from tests.simulation.test_rules_restore import takeover
from turnlog.codec import RegistryUnavailable
from turnlog.core.state import RunState
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import Partition, Reader, Received

NAMES = [f"r{number}" for number in range(20)]


def home(run_id: str) -> int:
    """Of two partitions, which is the run's."""
    return partition_of(run_id.encode(), 2)


# ---------------------------------------------------------------- J10


def test_j10_an_idle_run_leaves_memory_and_comes_back() -> None:
    stage = Stage(answers, park_after_ms=600)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100)
    assert stage.state(process, "r1") is not None
    stage.spin(process, ms=200, rounds=8)
    assert stage.state(process, "r1") is None
    before = len(list(stage.cluster.log(Partition(TOPICS.outcomes, 0))))
    stage.input("r1")
    stage.spin(process, ms=10, rounds=6)
    assert stage.kinds("r1")[-1] == "input_awaited"
    assert len(list(stage.cluster.log(Partition(TOPICS.outcomes, 0)))) == before + 1, "loading sends nothing again"
    assert process.shell.counters.loads == 1


def test_j10_a_run_with_effects_under_way_is_not_parked() -> None:
    stage = Stage(one_call, park_after_ms=600)
    process = stage.live()
    stage.cluster.hold("tool-requests.work")
    stage.run("r1")
    stage.spin(process, ms=200, rounds=8)
    assert stage.state(process, "r1") is not None
    stage.cluster.release()
    stage.spin(process, ms=200, rounds=8)
    assert stage.state(process, "r1") is None


def test_j10_timers_of_parked_runs_fire() -> None:
    stage = Stage(one_call, park_after_ms=600)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=200, rounds=8)
    assert stage.state(process, "r1") is None
    stage.spin(process, ms=200, rounds=15)  # the call's deadline is 3 s
    assert "timer_fired" in stage.kinds("r1")


def test_j10_many_parked_runs_come_back_by_few_reads() -> None:
    stage = Stage(answers, park_after_ms=600)
    process = stage.live()
    names = [f"r{n}" for n in range(50)]
    for name in names:
        stage.run(name, agent="talk")
    stage.spin(process, ms=200, rounds=10)
    assert all(stage.state(process, name) is None for name in names)
    reads = CountedReads(process.shell.clients.reader)
    process.shell.clients.reader.read_at = reads  # type: ignore[method-assign]
    for name in names:
        stage.input(name)
    stage.spin(process, ms=10, rounds=8)
    assert all(stage.kinds(name)[-1] == "input_awaited" for name in names)
    assert process.shell.counters.loads == len(names)
    assert reads.count <= 3, "one each would take a seek each, and gap reads would wait behind them"


class CountedReads:
    """`Reader.read_at`, counted."""

    def __init__(self, reader: Reader) -> None:
        self._read_at = reader.read_at
        self.count = 0

    def __call__(self, partition: Partition, offsets: Sequence[int], *, timeout_s: float = 30.0) -> list[Received]:
        self.count += 1
        return self._read_at(partition, offsets, timeout_s=timeout_s)


def test_j10_loading_checks_the_hashes_of_the_chain() -> None:
    stage = Stage(answers, park_after_ms=600)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=200, rounds=8)
    log = stage.cluster.log(JOURNAL)
    at = stage.journal("r1")[0].offset
    tampered = [r._replace(value=(r.value or b"").replace(b"hello", b"hallo")) if r.offset == at else r for r in log]
    log._keep(tampered)
    told = stage.input("r1")
    stage.spin(process, ms=10, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["refused"]
    assert "hash" in stage.outcomes(told)[0].reason


# ---------------------------------------------------------------- J11


def test_j11_what_retention_took_before_it_was_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(answers)
    first = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(first, ms=600, rounds=4)
    first.crash()
    stage.run("r2", agent="talk")
    stage.clock.advance(6_000)
    first.shell.clients.admin.delete_records({COMMANDS: 2})
    with caplog.at_level("ERROR"):
        second = stage.live("loop-1")
    assert "offsets 1 to 1 were deleted before they were read" in caplog.text
    stage.input("r1")
    stage.spin(second, ms=10, rounds=6)
    assert stage.kinds("r1")[-1] == "input_awaited"


def test_j11_the_committed_offset_is_the_lowest_message_not_dealt_with() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.cluster.hold(TOPICS.dead_letters)
    stage.producer.produce(TOPICS.commands, b"garbage", key=b"x", partition=0)
    stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    assert stage.kinds("r1")[-1] == "run_succeeded"
    assert stage.committed(COMMANDS) == 0, "the dead letter is not acknowledged"
    stage.cluster.release()
    stage.spin(process, ms=100, rounds=6)
    assert stage.committed(COMMANDS) == 2


def test_j11_what_stands_in_the_runs_steps_is_ignored_when_it_comes_again() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.cluster.hold(TOPICS.dead_letters)
    stage.producer.produce(TOPICS.commands, b"garbage", key=b"x", partition=0)
    told = [stage.run("r1", agent="talk"), stage.input("r1")]
    stage.spin(process, ms=100, rounds=6)
    kinds = stage.kinds("r1")
    second = takeover(stage, process)  # everything is read again from offset 0
    stage.cluster.release()
    stage.spin(second, ms=100, rounds=6)
    assert stage.kinds("r1") == kinds
    assert stage.committed(COMMANDS) == 3
    assert {o.outcome for command_id in told for o in stage.outcomes(command_id)} == {"accepted"}


def test_j11_the_word_about_a_repetition_survives_its_owner() -> None:
    """A repetition makes no event, but its outcome may be lost with the owner that decided a later message of the run."""
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100, rounds=6)
    stage.cluster.hold(TOPICS.outcomes)
    again, later = stage.run("r1", agent="talk"), stage.input("r1")
    stage.spin(process, ms=100, rounds=6)
    process.crash()
    for move in [m for m in stage.cluster.choices(faults=True) if m.kind == "vanish"]:
        while move in stage.cluster.choices(faults=True):
            stage.cluster.do(move)
    stage.cluster.release()
    stage.clock.advance(6_000)
    second = stage.live("loop-1")
    stage.spin(second, ms=100, rounds=6)
    assert [o.outcome for o in stage.outcomes(again)] == ["duplicate"]
    assert {o.outcome for o in stage.outcomes(later)} == {"accepted"}


def test_j11_a_command_id_already_seen_is_a_duplicate() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1", agent="talk")
    told = stage.input("r1")
    stage.spin(process, ms=100, rounds=4)
    stage.input("r1", command_id=told)
    stage.spin(process, ms=100, rounds=4)
    assert [o.outcome for o in stage.outcomes(told)] == ["accepted", "duplicate"]
    assert stage.kinds("r1").count("input_received") == 1


def test_j11_a_result_already_noted_makes_nothing_happen() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100)
    for _ in range(3):
        stage.answer(stage.requests()[0])
        stage.spin(process, ms=100)
    assert stage.kinds("r1").count("outcome_received") == 1
    assert "late_outcome_noted" not in stage.kinds("r1")
    assert process.shell.counters.repeats == 2
    assert stage.committed(RESULTS) == 3
    assert not stage.letters()


# ---------------------------------------------------------------- J12


def test_j12_a_start_for_a_run_that_exists_or_ended_makes_nothing_happen_but_an_outcome() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1")
    stage.run("r2", agent="talk")
    stage.spin(process, ms=100)
    told = [stage.run("r1"), stage.run("r2")]
    stage.spin(process, ms=100)
    second = takeover(stage, process)
    told += [stage.run("r1"), stage.run("r2")]
    stage.spin(second, ms=100, rounds=6)
    assert [o.outcome for command_id in told for o in stage.outcomes(command_id)] == ["duplicate"] * 4
    assert stage.kinds("r1").count("run_started") == stage.kinds("r2").count("run_started") == 1


def test_j12_a_run_is_known_from_its_end_on_although_its_summary_was_not_read_back_yet() -> None:
    stage = Stage(answers)
    process = stage.live()
    known = process.service.owners[0].known
    assert known is not None
    stage.run("r1")
    stage.spin(process, rounds=6)  # no time passes: nothing of run-state is read
    assert "r1" not in stage.table(process).slots
    told = stage.run("r1")
    stage.spin(process, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["duplicate"]
    assert stage.kinds("r1").count("run_started") == 1


def test_j12_until_known_runs_are_streamed_everything_of_unknown_runs_waits_in_order() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("old")
    stage.spin(process, ms=100, rounds=6)
    process.crash()
    stage.clock.advance(6_000)
    stage.run("old")
    stage.run("new", agent="talk")
    stage.input("new")
    second = stage.start("loop-1")
    reader = second.shell.clients.reader
    real, reader.poll = reader.poll, lambda *_: []  # type: ignore[method-assign]
    stage.spin(second, ms=100, rounds=20)
    assert stage.stage_of(second) == "backlog"
    assert set(stage.table(second).waiting) == {"old", "new"}
    assert not stage.journal("new")
    reader.poll = real  # type: ignore[method-assign]
    stage.spin(second, ms=100, rounds=8)
    assert stage.kinds("new")[:1] == ["run_started"]
    assert "input_received" in stage.kinds("new")
    assert stage.kinds("old").count("run_started") == 1


def test_j12_late_results_are_noted_until_no_call_can_be_answered_then_dead_letters() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    stage.cancel("r1")
    stage.spin(process, ms=100)
    request = stage.requests()[0]
    assert "r1" in stage.table(process).slots, "a call is outstanding: the run stays open for the record"
    stage.answer(request)
    stage.spin(process, ms=100)
    assert stage.kinds("r1")[-1] == "late_outcome_noted"
    assert "r1" not in stage.table(process).slots
    stage.answer(request, content="once more")
    stage.spin(process, ms=100)
    assert [letter.reason for letter in stage.letters()] == ["late"]
    assert stage.committed(RESULTS) == 2


def test_j12_a_run_is_let_go_when_its_last_call_can_be_answered_no_more() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    stage.cancel("r1")
    stage.spin(process, ms=100)
    second = takeover(stage, process)
    assert "r1" in stage.table(second).slots
    stage.spin(second, ms=1_000, rounds=70)
    assert "r1" not in stage.table(second).slots
    assert stage.pointer().floor == stage.pointer().end  # type: ignore[union-attr]


def test_j12_an_id_is_free_again_after_run_id_keep_and_its_summary_gone() -> None:
    stage = Stage(answers, journal_keep_ms=10_000, trim_every_ms=60_000)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    week = 7 * 24 * 3_600_000
    stage.spin(process, ms=200_000, rounds=week // 200_000 + 5)
    assert [r.value for r in stage.cluster.log(STATES)][-1] is None
    told = stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["accepted"]


def test_j12_an_id_is_not_free_while_the_journal_holds_a_step_of_it() -> None:
    """A conversation that goes on for longer holds what lies behind its base; a step 0 behind an old step would be a broken chain."""
    stage = Stage(answers, journal_keep_ms=10_000, trim_every_ms=60_000)
    process = stage.live()
    stage.run("talk", agent="talk")
    stage.spin(process, ms=100, rounds=6)
    stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    week = 7 * 24 * 3_600_000
    stage.spin(process, ms=200_000, rounds=week // 200_000 + 5)
    assert stage.journal("r1")
    told = stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["duplicate"]
    stage.cancel("talk")
    for run in ("r2", "r3"):  # a fence a day, if anything was written
        stage.run(run)
        stage.spin(process, ms=200_000, rounds=1_000)
    assert not stage.journal("r1")
    told = stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["accepted"]


def test_j12_a_command_for_nobody_is_refused_and_a_result_for_nobody_a_dead_letter() -> None:
    stage = Stage(answers)
    process = stage.live()
    told = stage.input("nobody")
    stage.spin(process, ms=100)
    assert [o.outcome for o in stage.outcomes(told)] == ["refused"]
    assert stage.committed(COMMANDS) == 1


def test_j12_known_runs_are_those_with_a_record_and_those_just_let_go() -> None:
    known = KnownRuns(STATES, start=0, until=2)
    before = known.streamed
    known.take(Received("run-state", 0, 0, b"a", b"v", tuple(state_headers(3, 9)), 0))
    known.take(Received("run-state", 0, 1, b"b", b"v", tuple(state_headers(1, None)), 0))
    known.ended(b"c")
    assert (before, known.streamed) == (False, True)
    assert all(run in known for run in ("a", "b", "c"))
    known.take(Received("run-state", 0, 2, b"a", None, (), 0))
    assert "a" not in known


# ---------------------------------------------------------------- a run that the rules fail on


FAULTS = {
    "a copy of its state": (RunState, "copy"),
    "a rule": (table, "advance"),
    "its next timer": (table, "next_wake"),
    "its end": (table, "open_until"),
    "whether a model is due": (table, "model_due"),
    "the request to its model": (table, "model_request"),
    "its timers": (table, "due_timers"),
    "its summary": (projections, "summary"),
    "a tool request": (projections, "tool_request"),
    "its ledger": (projections, "ledger_entries"),
    "its state as a snapshot": (memory, "to_json"),
}
"""Every question about a run's state that the shell asks, by what it is about."""


@pytest.mark.parametrize("about", FAULTS)
def test_whatever_the_rules_raise_stops_one_run_until_a_build_that_does_not(
    about: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name = FAULTS[about]
    sound: Callable[..., Any] = getattr(where, name)

    def fails_on_one(subject: RunState | str, *rest: Any) -> Any:
        if "bad" in (subject, getattr(subject, "run_id", "")):
            raise ZeroDivisionError("a fault of this build")
        return sound(subject, *rest)

    stage = Stage(one_call, snapshot_bytes=1)
    process = stage.live()
    monkeypatch.setattr(where, name, fails_on_one)
    for run_id in ("bad", "good"):
        stage.run(run_id)
    stage.spin(process, ms=200, rounds=6)
    for request in stage.requests():
        stage.answer(request)
    stage.spin(process, ms=400, rounds=10)  # the calls' deadline is 3 s
    assert stage.summary("good").status == "succeeded"  # type: ignore[union-attr]

    monkeypatch.undo()
    mended = takeover(stage, process)
    if not stage.journal("bad"):  # its start was refused
        stage.run("bad")
    stage.spin(mended, ms=200, rounds=6)
    for request in stage.requests():
        stage.answer(request)
    stage.spin(mended, ms=400, rounds=10)
    assert "run_succeeded" in stage.kinds("bad")
    assert stage.summary("bad").status == "succeeded"  # type: ignore[union-attr]
    (key,) = {request.call_key for request in stage.requests() if request.run_id == "bad"}
    ledger = [record.key for record in stage.cluster.log(Partition(TOPICS.ledger, 0))]
    assert key.encode() in ledger


# ---------------------------------------------------------------- a registry that does not answer


def test_a_record_that_only_the_registry_can_read_holds_its_partition_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(answers, partitions=2)
    process = stage.live()
    odd, sound = next(n for n in NAMES if home(n) == 0), next(n for n in NAMES if home(n) == 1)
    read = process.shell.reception.command

    def unanswered(record: Received) -> Any:
        if record.partition == 0:
            raise RegistryUnavailable("it is down")
        return read(record)

    with monkeypatch.context() as down:
        down.setattr(process.shell.reception, "command", unanswered)
        stage.run(odd)
        stage.run(sound)
        stage.spin(process, ms=100, rounds=10)
        assert "it is down" in (process.service.unready or "")
        assert stage.journal(sound, 1)[-1].record.events[-1].kind == "run_succeeded"
        assert not stage.letters()
    stage.until(process, lambda: process.service.unready is None)
    stage.spin(process, ms=100, rounds=4)
    assert stage.journal(odd)[-1].record.events[-1].kind == "run_succeeded"


def test_a_run_that_only_the_registry_can_read_is_loaded_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(answers, park_after_ms=600)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=200, rounds=10)

    def unanswered(*_: Any) -> Any:
        raise RegistryUnavailable("it is down")

    with monkeypatch.context() as down:
        down.setattr(memory, "load", unanswered)
        told = stage.input("r1")
        stage.spin(process, ms=100, rounds=10)
        assert not stage.outcomes(told)
    stage.spin(process, ms=100, rounds=10)
    assert [outcome.outcome for outcome in stage.outcomes(told)] == ["accepted"]
