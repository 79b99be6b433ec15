"""`world`: every contract test runs on MemoryLog and on a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.worlds import KafkaWorld, MemoryWorld, World

# What MemoryLog leaves out, by the name of the test. Strict: a test that begins to pass must leave this list.
NOT_IN_MEMORY = {
    "test_configuration_shows_defaults_too": "MemoryLog knows only what a topic was created with",
    "test_an_unknown_topic_property_is_refused": "MemoryLog takes any configuration",
}


@pytest.fixture(params=["memory", "kafka"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A place with the port's clients in it."""
    if request.param == "memory":
        if reason := NOT_IN_MEMORY.get(request.function.__name__):
            request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
        yield MemoryWorld()
        return
    kafka = KafkaWorld(request.getfixturevalue("broker").bootstrap)
    yield kafka
    kafka.close()
