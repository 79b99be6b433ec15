"""Scenes of the loop beside the journal's rules: what is too large, misrouted, refused, stopped, or ends while others crash."""

from __future__ import annotations

import logging

import pytest

from tests.simulation.loop_process import CODEC, TOPICS
from tests.simulation.loop_stage import COMMANDS, JOURNAL, STATES, Stage, answers, one_call
from tests.simulation.test_rules_restore import takeover
from turnlog.core.events import Input, ModelAnswer
from turnlog.core.records import Command, StartRun
from turnlog.kafka.fenced import FENCE
from turnlog.kafka.partitioner import partition_of


def test_a_step_too_large_is_split_and_keeps_its_order() -> None:
    stage = Stage(answers, step_bytes=1_500, latency_ms=1_000.0)
    process = stage.live()
    stage.cluster.hold(TOPICS.journal)
    stage.run("r1", agent="talk")
    stage.spin(process)
    given = [stage.input("r1", f"{n} " + "y" * 500) for n in range(7)]
    stage.cluster.release()
    stage.spin(process, rounds=12)
    steps = [
        [e.payload.command_id for e in entry.record.events if isinstance(e.payload, Input)]
        for entry in stage.journal("r1")
    ]
    assert [each for step in steps for each in step] == given
    assert len([step for step in steps if step]) >= 3
    assert all(len(entry.raw.value or b"") <= 1_500 for entry in stage.journal("r1"))


def test_a_journal_that_takes_too_small_records_is_left_alone_until_an_operator_mends_it() -> None:
    """The fate of what was in flight is known as little as after any other error; but the next attempt would end as this one."""
    stage = Stage(answers)
    process = stage.live()
    journal = stage.cluster.topic(TOPICS.journal)
    journal.config = {"max.message.bytes": "2000"}
    stage.command("large", "start", start=StartRun("work", input="x" * 5000))
    fences = len(stage.journal()) - len(stage.journal("large"))
    stage.spin(process, rounds=300, ms=100)
    assert 1 <= process.shell.counters.ownership_ends["too_large"] <= 4, "within 30 s"
    stage.until(process, lambda: "raise its max.message.bytes" in str(process.service.unready))
    stage.run("small")
    journal.config = {}
    stage.until(
        process,
        lambda: all(stage.journal(run) and stage.journal(run)[-1].header.end >= 0 for run in ("large", "small")),
    )
    assert len([entry for entry in stage.journal() if entry.header.kind == FENCE]) <= fences + 6


def test_an_answer_that_fits_in_no_step_fails_the_run_and_nothing_is_cut() -> None:
    stage = Stage(lambda request: ModelAnswer("x" * 5_000, (), "stop"), step_bytes=3_000)
    process = stage.live()
    stage.run("r1")
    stage.spin(process)
    assert stage.kinds("r1")[-2:] == ["model_failed", "run_failed"]


def test_a_refused_start_leaves_no_run_behind() -> None:
    stage = Stage(answers)
    process = stage.live()
    told = stage.command(
        "r1",
        "start",
        start=StartRun("work", input="x" * 200_000, labels=tuple((f"l{n}", "é" * 7_000) for n in range(1))),
    )
    stage.spin(process, ms=100)
    assert stage.outcomes(told)
    unknown = stage.run("r2", agent="nobody")
    stage.spin(process, ms=100, rounds=8)
    assert [o.outcome for o in stage.outcomes(unknown)] == ["refused"]
    again = stage.run("r2")
    stage.spin(process, ms=100, rounds=8)
    assert [o.outcome for o in stage.outcomes(again)] == ["accepted"]


def test_a_misrouted_command_is_sent_on_once() -> None:
    stage = Stage(answers, partitions=2)
    process = stage.live()
    run_id = next(f"r{n}" for n in range(50) if partition_of(f"r{n}".encode(), 2) == 1)
    stage.run(run_id, index=0)
    stage.spin(process, ms=100, rounds=8)
    assert stage.journal(run_id, index=1)
    assert not stage.journal(run_id, index=0)
    assert process.shell.counters.rerouted == 1
    command = CODEC.encode(Command("c99", run_id, "start", start=StartRun("work")))
    stage.producer.produce(TOPICS.commands, command, key=run_id.encode(), partition=0, headers=[("rerouted", b"1")])
    stage.spin(process, ms=100, rounds=8)
    assert [letter.reason for letter in stage.letters()] == ["misrouted"]


def test_an_ended_run_whose_projections_were_never_acknowledged_survives_a_crash() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    stage.cluster.hold(TOPICS.run_state, TOPICS.ledger, TOPICS.outcomes)
    stage.answer(stage.requests()[0])
    stage.spin(process, ms=100, rounds=6)
    assert stage.kinds("r1")[-1] == "run_succeeded"
    assert "r1" in stage.table(process).slots, "not let go while its summary is not in the log"
    process.crash()
    for move in [m for m in stage.cluster.choices(faults=True) if m.kind == "vanish"]:
        while move in stage.cluster.choices(faults=True):
            stage.cluster.do(move)
    stage.cluster.release()
    stage.clock.advance(6_000)
    second = stage.live("loop-1")
    stage.spin(second, ms=100, rounds=6)
    summary = stage.summary("r1")
    assert summary is not None
    assert summary.status == "succeeded"
    assert len(list(stage.cluster.log(stage.partition(TOPICS.ledger)))) == 1
    assert "r1" not in stage.table(second).slots
    assert [o.outcome for o in stage.outcomes(stage.run("r1"))] == []
    stage.spin(second, ms=100)
    assert [o.outcome for o in stage.outcomes()][-1] == "duplicate"


def test_a_start_that_comes_as_the_last_summary_leaves_is_a_duplicate() -> None:
    """The run's dirty summary and its last one are acknowledged in one poll: it must be held or known in between."""
    stage = Stage(answers, publish_every_ms=60_000)
    process = stage.live()
    stage.run("r1")
    stage.run("r1")
    stage.spin(process)
    stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    assert stage.kinds("r1").count("run_started") == 1
    assert sorted(o.outcome for o in stage.outcomes()) == ["accepted", "duplicate", "duplicate"]


def test_two_members_share_the_partitions_and_one_that_stops_hands_over_at_once() -> None:
    stage = Stage(answers, partitions=2)
    first = stage.live("loop-0")
    second = stage.start("loop-1")
    for _ in range(30):
        stage.spin(first, second, rounds=1, ms=100)
    assert sorted([*first.service.owners, *second.service.owners]) == [0, 1]
    began = stage.clock.ms
    first.drain()
    stage.until(second, lambda: len(second.service.owners) == 2 and second.service.unready is None)
    assert stage.clock.ms - began < 5_000, "without waiting for the session's end"


def test_a_drain_commits_what_is_dealt_with() -> None:
    stage = Stage(answers, commit_every_ms=600_000)
    process = stage.live()
    stage.run("r1")
    stage.spin(process)
    process.drain()
    assert stage.committed(COMMANDS) == 1
    pointer = stage.pointer()
    assert pointer is not None
    assert pointer.floor == pointer.end


def test_a_run_that_this_build_decides_otherwise_is_parked_and_its_facts_still_leave(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.cluster.hold(TOPICS.outcomes)
    started = stage.run("r1")
    stage.spin(process, ms=100)
    process.crash()
    for move in [m for m in stage.cluster.choices(faults=True) if m.kind == "vanish"]:
        stage.cluster.do(move)
    stage.cluster.release()
    stage.clock.advance(6_000)
    with caplog.at_level(logging.CRITICAL):
        second = stage.live("loop-1", validate=lambda entry, value: "these arguments are forbidden now")
        stage.spin(second, ms=100, rounds=6)
    assert "diverges" in stage.table(second).slots["r1"].problem
    assert [o.outcome for o in stage.outcomes(started)] == ["accepted"]
    told = stage.cancel("r1")
    stage.spin(second, ms=100, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["refused"]
    third = takeover(stage, second, "loop-2")  # the right build again
    stage.cancel("r1")
    stage.spin(third, ms=100, rounds=6)
    assert stage.kinds("r1")[-1] == "run_cancelled"


def test_summaries_of_working_runs_do_not_leave_while_a_gap_is_read() -> None:
    stage = Stage(one_call, publish_every_ms=300)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=10)
    stage.cluster.hold(TOPICS.journal)
    stage.run("r2")
    stage.spin(process, ms=10, rounds=2)
    stage.append(b"void", stage.fences()[0].header._replace(kind="step", fence=b"z" * 16, step=0), b"x")
    stage.move("land")
    stage.move("ack")
    before = len(list(stage.cluster.log(STATES)))
    stage.spin(process, ms=200, rounds=8, jobs=False)
    assert stage.table(process)._ownership.unsure
    assert len(list(stage.cluster.log(STATES))) == before
    stage.cluster.release()
    stage.spin(process, ms=200, rounds=8)
    assert len(list(stage.cluster.log(STATES))) > before


def test_a_model_reply_of_an_ownership_that_is_over_reaches_nobody() -> None:
    stage = Stage(answers, latency_ms=500.0)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, rounds=3)
    assert process.shell.asks == 1
    stage.foreign_fence()
    stage.run("r2")
    stage.spin(process, rounds=4)
    assert process.shell.counters.ownership_ends == {"foreign_fence": 1}
    assert process.shell.asks == 0
    stage.until(process, lambda: stage.kinds("r1")[-1:] == ["run_succeeded"])
    assert stage.kinds("r1").count("model_answered") == 1
    assert [entry.header.kind for entry in stage.journal()].count("fence") == 3
    assert stage.cluster.log(JOURNAL).first == 0
