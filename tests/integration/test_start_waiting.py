"""Services that are started while what they need is away: they say so soon, go on by themselves, and stop when told to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.loop.__main__ import EXIT_LOG, EXIT_MISCONFIGURED
from tests.broker_fixture import SharedBroker
from tests.integration.loop_stage import LoopProcess, Stage
from tests.integration.test_worker_process import Shop, until
from turnlog.testing.proxy import KafkaProxy

PROMPT_S = 5.0
"""A stop that waited for a question under way would take longer; most of this is for a machine that is busy."""


@pytest.fixture
def proxy() -> Iterator[KafkaProxy]:
    """A cluster's address where nobody answers yet."""
    with closing(KafkaProxy()) as made:
        yield made


@pytest.fixture
def shop(broker: SharedBroker, topic_prefix: str, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(broker.bootstrap, topic_prefix, tmp_path)
    yield made
    made.close()


def away(proxy: KafkaProxy) -> dict[str, str]:
    return {"TURNLOG_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{proxy.port}"}


def stops_at_once(loop: LoopProcess) -> None:
    begun = time.monotonic()
    loop.stop()
    assert time.monotonic() - begun < PROMPT_S


def test_a_loop_waits_for_its_cluster_and_goes_on_when_it_comes(
    stage: Stage, broker: SharedBroker, proxy: KafkaProxy
) -> None:
    loop = stage.loop(env=away(proxy))
    why = loop.until_it_says("does not answer")
    assert f"the cluster at 127.0.0.1:{proxy.port} does not answer; it is tried again" in why
    assert loop.everything_said.count("does not answer; it is tried again") == 1
    assert "WARNING" in next(line for line in loop.everything_said.splitlines() if "tried again" in line)
    proxy.forward_to(int(broker.bootstrap.rpartition(":")[2]))
    loop.until_ready().until_it_serves(4)
    loop.stop()


def test_a_loop_that_waits_for_its_cluster_stops_when_told_to(stage: Stage, proxy: KafkaProxy) -> None:
    loop = stage.loop(env=away(proxy))
    loop.until_it_says("does not answer")
    time.sleep(1.5)  # into the second question, which may take ten seconds
    stops_at_once(loop)


def test_a_loop_waits_for_its_schema_registry(stage: Stage) -> None:
    loop = stage.loop(env={"TURNLOG_REGISTRY_URL": "http://ann:wine@127.0.0.1:1/"})
    assert "the schema registry at 127.0.0.1:1 does not answer" in loop.until_it_says("registry")
    stops_at_once(loop)


def test_wrong_settings_end_a_loop_though_its_cluster_is_away(stage: Stage, proxy: KafkaProxy) -> None:
    loop = stage.loop(env={**away(proxy), "TURNLOG_SECRET": "short"})
    assert loop.ended() == EXIT_MISCONFIGURED


def test_a_loop_that_the_cluster_turns_away_ends(stage: Stage) -> None:
    wrong = {
        "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SASL_MECHANISM": "PLAIN",
        "SASL_USERNAME": "a",
        "SASL_PASSWORD": "b",
    }
    loop = stage.loop(env={f"TURNLOG_KAFKA__{name}": value for name, value in wrong.items()})
    assert loop.ended() == EXIT_LOG
    assert "SASL" in loop.said()


def test_missing_topics_end_a_loop_with_the_remedy(stage: Stage) -> None:
    loop = stage.loop(env={"TURNLOG_TOPIC_PREFIX": "nothing-here."})
    assert loop.ended() == EXIT_MISCONFIGURED
    assert "turnlog topics create" in loop.said()


def test_a_worker_waits_for_its_cluster_and_goes_on_when_it_comes(
    shop: Shop, broker: SharedBroker, proxy: KafkaProxy
) -> None:
    worker = shop.start(**away(proxy))
    text = f"the cluster at 127.0.0.1:{proxy.port} does not answer; it is tried again"
    until(lambda: worker.health().get("reasons", {}).get("prepared shop") == text, "it says so")
    proxy.forward_to(int(broker.bootstrap.rpartition(":")[2]))
    worker.until_ready()
