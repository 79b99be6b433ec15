"""Loops behind a broker that is killed, stopped, or whose answers get lost: a proxy stands before it (docs/journal.md, J2, J6, J7).

One broker serves all tests of this file. It forgets idle producers after 4 s, so that repeats can be brought about.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.loop.__main__ import EXIT_LOG
from tests.conftest import OwnBroker
from tests.integration.loop_stage import Stage, until
from turnlog.local.broker import EmbeddedBroker
from turnlog.testing.proxy import METADATA, PRODUCE, Action, KafkaProxy

SESSION_S = 60
SESSION = {"TURNLOG_SESSION_TIMEOUT_MS": str(SESSION_S * 1000)}
FORGETS_PRODUCERS_S = 4
JOURNAL, EFFECTS = "journal", "effects"
"""Client ids of the loop's two producers."""
FENCE = b"kind\x0afence"
"""The header of a fence as it stands in a request: length and text of its value behind its name."""


class Faulty:
    """A broker behind a proxy."""

    def __init__(self, folder: Path) -> None:
        self.proxy = KafkaProxy()
        overrides = {
            "producer.id.expiration.ms": str(FORGETS_PRODUCERS_S * 1000),
            "producer.id.expiration.check.interval.ms": "500",
        }
        self.broker = EmbeddedBroker.start(
            folder, port=0, heap_mb=384, advertised_port=self.proxy.port, overrides=overrides
        )
        self.proxy.forward_to(self.broker.port)

    def kill_and_restart(self) -> None:
        """As seen from clients: every connection breaks, and for some seconds nobody listens."""
        self.proxy.disconnect()
        self.broker.kill()
        self.broker.restart()
        self.proxy.forward_to(self.broker.port)

    def close(self) -> None:
        self.broker.kill()
        self.proxy.close()


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    with closing(Faulty(tmp_path_factory.mktemp("faulty"))) as made:
        yield made


@pytest.fixture
def stage(faulty: Faulty, tmp_path: Path) -> Iterator[Stage]:
    with closing(Stage(faulty.proxy.bootstrap, tmp_path, partitions=2)) as made:
        yield made


@pytest.fixture
def narrow(faulty: Faulty, tmp_path: Path) -> Iterator[Stage]:
    """An installation of one partition."""
    with closing(Stage(faulty.proxy.bootstrap, tmp_path, partitions=1)) as made:
        yield made


def half_way(stage: Stage, runs: int, word: str) -> list[str]:
    """Runs of the standard work, of which about a quarter of the calls has been asked for."""
    before = len(stage.hands.requests)
    started = stage.submit_work(runs, word)
    until(lambda: len(stage.hands.requests) >= before + 2 * runs, "a quarter of the calls")
    return started


def waiting_call(stage: Stage, run_id: str) -> str:
    """A run that waits for its call, whose answer is held back."""
    stage.hands.hold()
    stage.client.submit("tools", 'call bench_a {"n":1}', run_id)
    until(lambda: stage.hands.of(run_id), "its call")
    return run_id


# ---------------------------------------------------------------- the broker


@pytest.mark.slow
def test_a_broker_that_is_killed_under_load(faulty: Faulty, stage: Stage) -> None:
    loop = stage.loop(env=SESSION).until_ready()
    runs = half_way(stage, 60, "first")
    faulty.kill_and_restart()
    runs += half_way(stage, 40, "second")
    faulty.kill_and_restart()
    stage.until_succeeded(runs, 180)
    assert loop.child.alive, loop.said()
    stage.check(runs)


@pytest.mark.slow
def test_a_broker_that_stands_still_for_longer_than_a_session(own_broker: OwnBroker, tmp_path: Path) -> None:
    """The loop's session, not the broker's own with its controller: what comes of that is the next test's."""
    broker = own_broker(overrides={"broker.session.timeout.ms": "60000"})
    stage = Stage(broker.bootstrap, tmp_path, partitions=2)
    try:
        loop = stage.loop(env={"TURNLOG_SESSION_TIMEOUT_MS": "6000"}).until_ready()
        runs = half_way(stage, 40, "run")
        broker.pause()
        time.sleep(8)  # nothing can be seen of a broker that stands still
        broker.resume()
        stage.until_succeeded(runs, 180)
        until(lambda: loop.reasons() is None, lambda: f"ready again: {loop.reasons()}")
        stage.check(runs)
    finally:
        broker.resume()
        stage.close()


def test_a_loop_whose_client_forgot_every_broker_gives_the_process_up(faulty: Faulty, stage: Stage) -> None:
    """librdkafka 5301: metadata without brokers, as of a broker that is fenced for a moment, can blind a client for good."""
    often = {"TURNLOG_KAFKA__TOPIC_METADATA_REFRESH_INTERVAL_MS": "200"}
    loop = stage.loop("blind", env={**SESSION, **often}).until_ready()
    member = f"{stage.prefix}loop-blind-0"
    fenced = faulty.proxy.on(METADATA, Action.NO_BROKERS, client_id=member)
    assert loop.ended() == EXIT_LOG, loop.said()
    fenced.release()
    assert f"client {member} knows no broker any more" in loop.everything_said
    stage.loop("blind", env=SESSION).until_ready()
    stage.good_run(0)
    stage.good_run(1)


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("client_id", [JOURNAL, EFFECTS])
@pytest.mark.parametrize("action", [Action.LOSE_ANSWER, Action.LOSE_REQUEST])
def test_appends_whose_answers_or_requests_are_lost(
    faulty: Faulty, stage: Stage, client_id: str, action: Action
) -> None:
    loop = stage.loop(env=SESSION).until_ready()
    lost = faulty.proxy.on(PRODUCE, action, client_id=client_id, containing=stage.prefix.encode(), times=25)
    runs = stage.submit_work(40, "run")
    stage.until_succeeded(runs, 180)
    lost.release()
    assert lost.hits > 0
    assert loop.metric("ownership_ends_total") == 0, loop.said()
    audit = stage.check(runs)
    assert audit.fences == 2


@pytest.mark.slow
def test_a_step_that_lands_twice_counts_once(faulty: Faulty, narrow: Stage) -> None:
    """J2: an append is persisted, its answer does not come, and before the retry the broker has forgotten the producer."""
    loop = narrow.loop(env=SESSION).until_ready()
    run_id = waiting_call(narrow, "twice")
    held = faulty.proxy.on(PRODUCE, Action.HOLD_ANSWER, client_id=JOURNAL, containing=b"twice", times=1)
    narrow.hands.release()
    until(lambda: held.answers == 1, "the append is persisted")
    faulty.proxy.disconnect()
    time.sleep(FORGETS_PRODUCERS_S + 3)  # nothing can be seen of what a broker forgets
    held.release()
    faulty.proxy.forward_to(faulty.broker.port)
    narrow.until_succeeded([run_id])
    audit = narrow.check([run_id])
    assert audit.counts.repeats == 1
    assert "1 of them repeats of our own" in loop.everything_said
    assert loop.metric("ownership_ends_total") == 0
    narrow.good_run(0)


def test_nothing_leaves_before_a_step_is_acknowledged(faulty: Faulty, narrow: Stage) -> None:
    """J6: while the answer to an append is held, its tool request is not seen."""
    narrow.loop(env=SESSION).until_ready()
    held = faulty.proxy.on(PRODUCE, Action.HOLD_ANSWER, client_id=JOURNAL, containing=b"model_answered", times=1)
    narrow.client.submit("tools", 'call bench_a {"n":1}', "held")
    until(lambda: held.answers == 1, "the append is persisted")
    recorded = narrow.audit().runs["held"]
    assert recorded.count("call_requested") == 1
    assert not narrow.hands.of("held")
    held.release()
    narrow.until_succeeded(["held"])
    narrow.check(["held"])


def test_effects_that_never_left_are_sent_by_the_next_owner(faulty: Faulty, narrow: Stage) -> None:
    """J9: killed between the step, which is valid, and its request, which is still on the way; it arrives after all, later."""
    loop = narrow.loop(env=SESSION).until_ready()
    held = faulty.proxy.on(PRODUCE, Action.HOLD_REQUEST, client_id=EFFECTS, containing=b"caught:t0:c0", times=1)
    narrow.client.submit("tools", 'call bench_a {"n":1}', "caught")
    until(lambda: held.hits == 1, "the request is on the way")
    assert narrow.audit().runs["caught"].count("call_requested") == 1
    loop.child.kill()
    assert not narrow.hands.of("caught")
    narrow.loop(env=SESSION).until_ready()
    narrow.until_succeeded(["caught"])
    assert len(narrow.hands.of("caught")) == 1
    held.release()
    until(lambda: len(narrow.hands.of("caught")) == 2, "the first request has arrived as well")
    first, second = narrow.hands.of("caught")
    assert first == second
    narrow.good_run(0)
    narrow.check(["caught"])


# ---------------------------------------------------------------- fences


@pytest.mark.parametrize("successor", ["same", "other"])
def test_a_fence_that_lands_after_its_sender_died(faulty: Faulty, narrow: Stage, successor: str) -> None:
    """The next owner meets a foreign fence that nobody stands behind, and opens again (J7)."""
    held = faulty.proxy.on(PRODUCE, Action.HOLD_REQUEST, client_id=JOURNAL, containing=FENCE, times=1)
    short = {"TURNLOG_SESSION_TIMEOUT_MS": "3000"}
    dead = narrow.loop("same", env=short)
    until(lambda: held.hits == 1, lambda: f"its fence is on the way: {dead.said()}")
    dead.child.kill()
    loop = narrow.loop(successor, env=short).until_ready()
    runs = [waiting_call(narrow, f"before-{n}") for n in range(5)]
    assert len(narrow.audit().owners[0]) == 1
    held.release()
    until(lambda: len(narrow.audit().owners[0]) == 2, "the late fence has landed")
    narrow.hands.release()  # what follows is appended under a fence that is no longer in force
    narrow.until_succeeded(runs)
    runs += narrow.submit_work(10, "after")
    narrow.until_succeeded(runs)
    assert loop.metric("ownership_ends_total") == 1, loop.said()
    audit = narrow.check(runs)
    assert len(audit.owners[0]) == 3
    assert audit.counts.void > 0
