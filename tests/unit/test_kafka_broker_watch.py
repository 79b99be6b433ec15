"""A client whose statistics name no broker three times in a row is lost, and the group member hears of it."""

from __future__ import annotations

from turnlog.kafka.broker_watch import NO_BROKER_KNOWN, BrokerWatch
from turnlog.kafka.port import Fatal

BLIND = '{"brokers":{"GroupCoordinator":{"nodeid":-1,"source":"logical","state":"INIT"}}}'
LEARNED = BLIND.replace("logical", "learned")
BEGINNING = BLIND.replace("logical", "configured")


def told(*statistics: str) -> list[Fatal]:
    watch = BrokerWatch()
    found: list[Fatal] = []
    watch.tell(found.append)
    properties = watch.client("journal")
    take = properties["stats_cb"]
    assert callable(take)
    for each in statistics:
        take(each)
    return found


def test_a_client_without_any_broker_is_told_once() -> None:
    (problem,) = told(LEARNED, BLIND, BLIND, BLIND, BLIND, BLIND)
    assert problem.code == NO_BROKER_KNOWN
    assert "client journal knows no broker any more" in str(problem)


def test_a_broker_that_is_down_or_not_reached_yet_is_known() -> None:
    assert told(BLIND, BLIND, LEARNED, BLIND, BLIND, BEGINNING, BLIND, BLIND) == []
