"""J13 to J16, each rule by name: projections, retention, a log that is not what it was, time."""

from __future__ import annotations

import pytest

from services.loop.effects import letter_of
from services.loop.known_runs import KnownRuns, state_headers
from services.loop.service import STALL_S
from tests.simulation.loop_process import CODEC, GROUP, REQUESTS, TOPICS
from tests.simulation.loop_stage import COMMANDS, JOURNAL, RESULTS, STATES, Stage, answers, one_call, two_calls
from tests.simulation.test_rules_restore import takeover
from turnlog.core.events import ModelAnswer, RecordedCall
from turnlog.core.records import JournalRecord
from turnlog.kafka.adopt import apply, plan
from turnlog.kafka.fenced import FenceMark, PartitionFold, last_fence_at_or_below
from turnlog.kafka.opening import LogCut, look
from turnlog.kafka.port import NotAuthorised, OffsetGone, Partition, Received, Retryable
from turnlog.testing import MemoryCluster

DAY_S = 24 * 3_600


# ---------------------------------------------------------------- J13


def test_j13_effects_may_be_sent_twice_with_the_same_key_and_projections_carry_the_step() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.cluster.hold(REQUESTS)
    stage.run("r1")
    stage.spin(process, ms=200, rounds=6)
    process.crash()  # its request may still land
    stage.clock.advance(6_000 - 4_000)
    stage.cluster.release()
    second = stage.live()
    stage.spin(second, ms=100)
    for move in [m for m in stage.cluster.choices() if m.kind == "land"]:
        stage.cluster.do(move)
    keys = [record.key for record in stage.cluster.log(Partition(REQUESTS, 0))]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert all(dict(record.headers)["step"] for record in stage.cluster.log(STATES))


def test_j13_an_old_projection_over_a_new_one_is_written_over_byte_for_byte() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100, rounds=4)
    old = [record for record in stage.cluster.log(STATES) if record.key == b"r1"][-1]
    second = takeover(stage, process)
    stage.cancel("r1")
    stage.spin(second, ms=100, rounds=4)
    newest = [record for record in stage.cluster.log(STATES) if record.key == b"r1"][-1]
    assert newest.value != old.value
    stage.cluster.log(STATES).append(old.key, old.value, old.headers, stage.clock.ms)  # an owner that slept
    stage.spin(second, ms=100, rounds=6)
    last = [record for record in stage.cluster.log(STATES) if record.key == b"r1"][-1]
    assert (last.value, last.headers) == (newest.value, newest.headers)
    assert last.offset > newest.offset + 1
    assert second.shell.counters.repairs == 1


def test_j13_a_projection_is_repaired_also_when_the_owner_was_unsure_as_it_read_it() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1")
    stage.run("r2", agent="talk")
    stage.spin(process, ms=100, rounds=6)
    good = [record for record in stage.cluster.log(STATES) if record.key == b"r1"][-1]
    stage.cluster.hold(TOPICS.journal)
    stage.input("r2")
    stage.spin(process, ms=10)
    stage.append(b"void", stage.fences()[0].header._replace(kind="step", fence=b"z" * 16, step=0), b"x")
    stage.move("land")
    stage.move("ack")
    stage.spin(process, ms=10, jobs=False)
    assert stage.table(process)._ownership.unsure
    old = state_headers(0, None)
    stage.cluster.log(STATES).append(b"r1", good.value, tuple(old), stage.clock.ms)
    stage.spin(process, ms=200, jobs=False)
    count = len(list(stage.cluster.log(STATES)))
    stage.spin(process, ms=200, jobs=False)
    assert len(list(stage.cluster.log(STATES))) == count, "nothing is written while unsure"
    stage.cluster.release()
    stage.spin(process, ms=200, rounds=6)
    assert (
        dict([r for r in stage.cluster.log(STATES) if r.key == b"r1"][-1].headers)["step"] == dict(good.headers)["step"]
    )


def test_j13_a_tombstone_of_a_live_run_counts_as_older_and_one_of_an_ended_run_resets() -> None:
    known = KnownRuns(Partition("s", 0), start=0, until=0)
    assert known.take(Received("s", 0, 0, b"a", b"v", tuple(state_headers(5, None)), 0)) is None
    assert known.take(Received("s", 0, 1, b"a", None, (), 0)) == 0
    assert known.take(Received("s", 0, 2, b"a", b"v", tuple(state_headers(6, 99)), 0)) is None
    assert known.take(Received("s", 0, 3, b"a", None, (), 0)) is None
    assert known.take(Received("s", 0, 4, b"a", b"v", tuple(state_headers(0, None)), 0)) is None


def test_j13_an_old_projection_of_an_index_read_at_opening_is_repaired_too() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    good = [record for record in stage.cluster.log(STATES) if record.key == b"r1"][-1]
    process.crash()
    stage.cluster.log(STATES).append(b"r1", b"old", tuple(state_headers(0, None)), stage.clock.ms)
    stage.clock.advance(6_000)
    second = stage.live("loop-1")
    stage.spin(second, ms=100, rounds=4)
    assert [record for record in stage.cluster.log(STATES) if record.key == b"r1"][-1].value == good.value


def test_j13_a_request_that_kafka_refuses_for_good_becomes_an_event() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.cluster.refuse_appends(REQUESTS, NotAuthorised("no right to write", "TOPIC_AUTHORIZATION_FAILED"))
    stage.run("r1")
    stage.spin(process, ms=100, rounds=10)
    assert "request_refused" in stage.kinds("r1")
    assert stage.kinds("r1")[-1] == "run_succeeded"
    assert stage.pointer().effects == stage.pointer().end, "and holds the floor no more"  # type: ignore[union-attr]


def test_j13_a_refused_request_holds_the_floor_until_the_refusal_is_journaled() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.cluster.refuse_appends(REQUESTS, NotAuthorised("no right to write", "TOPIC_AUTHORIZATION_FAILED"))
    stage.run("r1")
    stage.spin(process, rounds=2)
    stage.cluster.hold(TOPICS.journal)
    stage.spin(process, ms=100, rounds=6)
    asked = next(e.offset for e in stage.journal("r1") if "call_requested" in [x.kind for x in e.record.events])
    assert "request_refused" not in stage.kinds("r1")
    assert stage.pointer().effects <= asked  # type: ignore[union-attr]


def test_j13_a_topic_that_does_not_exist_is_such_a_refusal() -> None:
    stage = Stage(
        lambda request: (
            ModelAnswer(None, (RecordedCall("c", "gone", '{"n":1}'),)) if request.turn == 0 else answers(request)
        )
    )
    process = stage.live()
    stage.run("r1", agent="strict")
    stage.spin(process, ms=100, rounds=10)
    assert stage.kinds("r1")[-3:] == ["request_refused", "call_settled", "run_failed"]


def test_j13_requests_carry_the_end_of_their_time() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process)
    assert stage.requests()[0].not_after == stage.clock.ms + 3_000


def test_j13_a_process_that_ends_publishes_what_its_summaries_lack() -> None:
    stage = Stage(one_call, publish_every_ms=60_000)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, rounds=6)
    assert stage.summary("r1") is None, "its turn has not come"
    process.drain()
    found = stage.summary("r1")
    assert found is not None
    assert (found.step, found.waits_for) == (stage.journal("r1")[-1].record.step, "tools")
    assert stage.pointer().effects == stage.pointer().end, "nothing is left to be sent again"  # type: ignore[union-attr]


def test_j13_a_process_that_ends_publishes_nothing_of_a_step_that_may_not_count() -> None:
    stage = Stage(one_call, publish_every_ms=60_000)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, rounds=6)
    stage.cluster.hold(TOPICS.journal)
    stage.cancel("r1")
    stage.spin(process)
    process.drain()
    assert stage.summary("r1") is None


@pytest.mark.parametrize("deaf", [True, False])
def test_j13_a_process_that_slept_before_its_end_publishes_nothing(deaf: bool) -> None:
    stage = Stage(one_call, publish_every_ms=60_000)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, rounds=6)
    process.freeze()
    stage.clock.advance(6_000)
    second = stage.live("loop-1")
    stage.cancel("r1")
    stage.until(second, lambda: stage.kinds("r1")[-1] == "run_cancelled")
    stage.spin(second)
    before = [record.offset for record in stage.cluster.log(STATES)]
    process.thaw(deaf=deaf)
    process.drain()
    assert [record.offset for record in stage.cluster.log(STATES)] == before


def test_a_process_that_ends_may_lose_its_partitions_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(one_call, partitions=2)
    process = stage.live()

    def commit(*_: object, **__: object) -> None:
        process.service.lost([0, 1])
        raise Retryable("no answer", "_TIMED_OUT")

    monkeypatch.setattr(process.consumer, "commit", commit)
    process.drain()
    assert process.service.owners == {}


def test_a_dead_letter_of_anything_fits_into_a_record() -> None:
    huge = Received("commands", 0, 7, b"k" * 900_000, b"v" * 900_000, (("h", b"x" * 900_000),), 0)
    letter = letter_of(huge, "reason", "detail " * 1_000, "loop", 0)
    assert len(CODEC.encode(letter)) + len(letter.key or b"") < 1_000_000
    assert letter.size == 900_000


# ---------------------------------------------------------------- J14


def test_j14_the_log_is_cut_at_a_fence_and_no_later() -> None:
    fences = [FenceMark(0, 10, b"a"), FenceMark(5, 20, b"b"), FenceMark(9, 30, b"c")]
    assert last_fence_at_or_below(fences, 8, 100) == 5
    assert last_fence_at_or_below(fences, 5, 100) == 5
    assert last_fence_at_or_below(fences, 100, 25) == 5
    assert last_fence_at_or_below(fences, 100, 5) is None


def test_j14_the_owner_deletes_what_no_restore_needs_and_the_log_begins_with_a_fence() -> None:
    stage = Stage(answers, reopen_every_ms=1_000, journal_keep_ms=2_000, trim_every_ms=500)
    process = stage.live()
    stage.run("open", agent="talk")
    stage.spin(process, ms=100)
    for n in range(30):
        stage.run(f"r{n}")
        stage.spin(process, ms=100, rounds=3)
    base = stage.journal("open")[0].offset
    log = stage.cluster.log(JOURNAL)
    assert log.first <= base, "an open run needs its base"
    stage.cancel("open")
    for n in range(30, 60):
        stage.run(f"r{n}")
        stage.spin(process, ms=100, rounds=3)
    assert log.first > base
    first = next(iter(log))
    assert first.offset == log.first
    assert dict(first.headers)["kind"] == b"fence"
    assert log.first <= stage.pointer().floor  # type: ignore[union-attr]
    assert max(e.raw.timestamp_ms for e in stage.journal() if e.offset < log.first + 1) <= stage.clock.ms - 2_000
    second = takeover(stage, process)
    assert stage.stage_of(second) == "live"


def test_j14_the_pointer_before_last_can_still_be_read_from() -> None:
    """Whoever looked at the pointer before the last commit must find its floor."""
    stage = Stage(answers, reopen_every_ms=300, journal_keep_ms=1, trim_every_ms=100, commit_every_ms=300)
    process = stage.live()
    before = stage.pointer()
    for n in range(40):
        stage.run(f"r{n}")
        stage.spin(process, ms=100, rounds=2)
        now = stage.pointer()
        if now != before and before is not None:
            assert stage.cluster.log(JOURNAL).first <= before.floor
            before = now
    assert stage.cluster.log(JOURNAL).first > 10


def test_j14_waiting_runs_end_as_expired() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100)
    stage.spin(process, ms=250_000, rounds=31 * DAY_S // 250)
    summary = stage.summary("r1")
    assert summary is not None
    assert (summary.status, summary.reason) == ("cancelled", "expired")


# ---------------------------------------------------------------- J15


def closed_stage() -> Stage:
    """A run, some commits, and the loop is down."""
    stage = Stage(answers)
    process = stage.live()
    for n in range(5):
        stage.run(f"r{n}", agent="talk")
    stage.spin(process, ms=100, rounds=8)
    process.crash()
    stage.clock.advance(6_000)
    return stage


def refuses(stage: Stage, word: str) -> None:
    """A loop that starts now appends nothing and says why."""
    records = len(list(stage.cluster.log(JOURNAL)))
    process = stage.start("loop-1")
    stage.spin(process, rounds=12, ms=1_000)
    assert len(list(stage.cluster.log(JOURNAL))) == records
    assert stage.stage_of(process) in ("closed", "opening")
    assert word in (process.service.unready or "")
    process.drain()


def test_j15_a_journal_that_was_cut_is_not_appended_to() -> None:
    stage = closed_stage()
    stage.cluster.truncate(JOURNAL, 3)
    refuses(stage, "ended at")


@pytest.mark.parametrize("topic", [TOPICS.journal, TOPICS.commands, TOPICS.results])
def test_j15_a_topic_made_anew_stops_the_partition(topic: str) -> None:
    stage = closed_stage()
    if topic == TOPICS.journal:
        fences = list(stage.cluster.log(JOURNAL))
        stage.make_anew(topic)
        for record in fences:
            stage.cluster.log(JOURNAL).append(record.key, record.value, record.headers, 0)
    else:
        stage.make_anew(topic)
        for _ in range(9):
            stage.producer.produce(topic, b"x", partition=0)
    refuses(stage, "made anew")


def test_j15_a_topic_made_anew_is_noticed_also_when_its_offsets_went_with_it() -> None:
    stage = closed_stage()
    stage.make_anew(TOPICS.commands)
    stage.cluster.forget(GROUP)  # Kafka drops the offsets of a deleted topic
    refuses(stage, "made anew")


def test_j15_an_inbound_topic_that_ends_below_its_committed_offset_stops_the_partition() -> None:
    stage = closed_stage()
    stage.cluster.truncate(COMMANDS, 2)
    refuses(stage, "below")


def test_j15_a_lower_offset_at_run_time_ends_the_ownership_and_it_stays_closed() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100, rounds=6)
    for n in range(2, 8):
        stage.run(f"r{n}")
    stage.spin(process, rounds=6)  # valid, and the pointer does not know of them yet
    stage.cluster.truncate(JOURNAL, stage.pointer().end)  # type: ignore[union-attr]
    stage.input("r1")
    stage.spin(process, rounds=3)
    assert process.shell.counters.ownership_ends == {"cut": 1}
    records = len(list(stage.cluster.log(JOURNAL)))
    stage.spin(process, ms=1_000, rounds=40)
    assert stage.stage_of(process) in ("closed", "opening")
    assert len(list(stage.cluster.log(JOURNAL))) == records
    process.crash()
    stage.clock.advance(6_000)
    refuses(stage, "ended at")  # no restart forgets it


def test_j15_a_consumer_whose_position_is_gone_ends_the_ownership() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.spin(process, ms=100, rounds=6)
    stage.make_anew(TOPICS.results)
    process.inner._cursor.positions[RESULTS] = 7
    with pytest.raises(OffsetGone):
        stage.cluster.log(RESULTS).check(7)
    stage.spin(process, ms=100, rounds=4)
    assert process.shell.counters.ownership_ends == {"cut": 1}
    assert "made anew" in (process.service.unready or "") or "outside" in (process.service.unready or "")


def test_j15_adopting_opens_a_new_input_epoch_in_which_old_offsets_mean_nothing() -> None:
    stage = Stage(answers)
    process = stage.live()
    for n in range(5):
        stage.run(f"r{n}", agent="talk")
    stage.spin(process, ms=100, rounds=8)
    process.drain()
    stage.make_anew(TOPICS.commands)
    admin = stage.cluster.admin()
    adoption = plan(admin, GROUP, TOPICS.places, 1)
    apply(admin, adoption)
    told = stage.input("r1")  # offset 0 of the new topic, far below what r1 has seen
    second = stage.live("loop-1")
    stage.spin(second, ms=100, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["accepted"]
    assert stage.fences()[-1].record.input_epoch == 1
    assert stage.pointer().epoch == 1  # type: ignore[union-attr]
    second.crash()
    stage.cluster.forget(GROUP)
    stage.clock.advance(6_000)
    third = stage.live("loop-2")
    stage.spin(third, ms=100, rounds=4)
    assert [f.record.input_epoch for f in stage.fences()[-2:]] == [1, 1], (
        "repeated by every later fence, also without a pointer"
    )


def test_j15_looking_names_topics_that_do_not_exist() -> None:
    stage = Stage()
    process = stage.live()
    del stage.cluster.topics[TOPICS.results]
    with pytest.raises(Exception, match="tool-results"):
        look(process.shell.clients, TOPICS.places, 0, lambda record: None)


def test_j15_a_known_end_is_a_least_end() -> None:
    stage = Stage()
    process = stage.live()
    with pytest.raises(LogCut):
        look(process.shell.clients, TOPICS.places, 0, lambda record: None, least_end=99)


# ---------------------------------------------------------------- J16


def test_j16_a_message_has_the_time_of_its_record() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    arrived = stage.clock.ms
    stage.clock.advance(700)
    stage.spin(process, ms=100)
    assert stage.journal("r1")[0].record.events[0].at == arrived


def test_j16_what_arrived_before_a_deadline_counts_although_it_was_read_after() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    process.crash()
    for n in range(1_200):  # more than two polls bring
        stage.producer.produce(TOPICS.results, b"noise", key=b"%d" % n, partition=0)
    stage.answer(stage.requests()[0])
    stage.clock.advance(60_000)  # the deadline was 3 s
    second = stage.live("loop-1")
    stage.spin(second, ms=100, rounds=6)
    assert "timer_fired" not in stage.kinds("r1")
    assert stage.kinds("r1")[-1] == "run_succeeded"


def test_j16_timers_wait_for_the_backlog_after_an_opening() -> None:
    stage = Stage(two_calls)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    process.crash()
    stage.clock.advance(60_000)
    second = stage.start("loop-1")
    for request in stage.requests():
        stage.answer(request)  # too late: the timer comes first in the rules, but what is there is read first
    reader = second.shell.clients.reader
    real, reader.poll = reader.poll, lambda *_: []  # type: ignore[method-assign]
    stage.until(second, lambda: bool(second.service.owners) and second.service.owners[0].stage in ("backlog", "live"))
    stage.spin(second, ms=100, rounds=5)
    assert "timer_fired" not in stage.kinds("r1")
    reader.poll = real  # type: ignore[method-assign]


def test_j16_a_process_that_slept_reads_before_its_timers_fire() -> None:
    stage = Stage(two_calls)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    process.freeze()
    for n in range(600):  # more than one poll brings
        stage.producer.produce(TOPICS.results, b"noise", key=b"%d" % n, partition=0)
    for request in stage.requests():
        stage.answer(request)
    stage.clock.advance(4_000)  # the deadline was 3 s, the session lasts 5
    assert STALL_S < 4.0
    process.thaw(deaf=False)
    stage.spin(process, ms=1, rounds=2)
    assert "timer_fired" not in stage.kinds("r1")
    stage.spin(process, ms=100, rounds=6)
    assert "timer_fired" not in stage.kinds("r1")
    assert stage.kinds("r1")[-1] == "run_succeeded"


def test_j16_timers_of_a_sleep_without_news_fire_after_it() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    process.freeze()
    stage.clock.advance(4_000)
    process.thaw(deaf=False)
    stage.spin(process, ms=100, rounds=6)
    assert "timer_fired" in stage.kinds("r1")


def test_j16_time_never_goes_backwards_within_a_run() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    stage.clock.ms -= 50  # the broker's clock and the owner's differ
    stage.answer(stage.requests()[0])
    stage.spin(process, rounds=6)
    times = [event.at for entry in stage.journal("r1") for event in entry.record.events]
    assert times == sorted(times)


def test_a_timer_that_comes_due_while_a_snapshot_is_under_way_fires() -> None:
    stage = Stage(one_call, snapshot_bytes=10)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=10)
    slot = stage.table(process).slots["r1"]
    stage.cluster.hold(TOPICS.journal)
    stage.table(process).memory.snapshot(slot)
    assert slot.in_flight
    stage.spin(process, ms=900, rounds=5)  # the deadline passes
    stage.cluster.release()
    stage.spin(process, ms=100, rounds=6)
    assert "timer_fired" in stage.kinds("r1")


def test_the_daily_fence_goes_on_under_a_new_token_and_keeps_the_runs() -> None:
    stage = Stage(answers, reopen_every_ms=1_000)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100, rounds=4)
    slot = stage.table(process).slots["r1"]
    stage.spin(process, ms=300, rounds=5)
    assert len(stage.fences()) == 2
    stage.input("r1")
    stage.spin(process, ms=100, rounds=5)
    assert stage.table(process).slots["r1"] is slot
    assert stage.journal("r1")[-1].header.fence == stage.fences()[1].header.fence
    fold = PartitionFold()
    verdicts = {fold.take(record).name for record in stage.cluster.log(JOURNAL)}
    assert verdicts == {"FENCE", "STEP"}
    stage.spin(process, ms=100, rounds=4)
    assert stage.pointer() is not None
    assert stage.committed(COMMANDS) == 2, "commits go on after it"


def test_a_daily_fence_that_did_not_land_right_behind_is_an_end() -> None:
    stage = Stage(answers, reopen_every_ms=1_000)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100, rounds=4)
    stage.foreign_fence()
    stage.spin(process, ms=300, rounds=5)
    assert process.shell.counters.ownership_ends == {"foreign_fence": 1}
    stage.input("r1")
    stage.until(process, lambda: stage.stage_of(process) == "live")
    stage.spin(process, ms=100, rounds=4)
    assert stage.kinds("r1")[-1] == "input_awaited"


def test_an_idle_partition_writes_no_daily_fences() -> None:
    stage = Stage(answers, reopen_every_ms=1_000)
    process = stage.live()
    stage.spin(process, ms=500, rounds=20)
    assert len(stage.fences()) == 1


def test_journal_records_of_a_run_are_found_by_everyone() -> None:
    """What stands in the journal decodes as what it is, with its inputs."""
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1")
    stage.spin(process)
    first = CODEC.decode(stage.journal("r1")[0].raw.value, JournalRecord)
    assert [(ref.topic, ref.offset) for ref in first.inputs] == [(TOPICS.commands, 0)]
    assert isinstance(stage.cluster, MemoryCluster)
