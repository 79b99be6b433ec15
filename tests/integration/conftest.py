"""Fixtures of the integration tests beside those that every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.broker_fixture import SharedBroker
from tests.integration.loop_stage import Stage


@pytest.fixture
def stage(broker: SharedBroker, tmp_path: Path) -> Iterator[Stage]:
    """An installation of four partitions, for loops that a test starts."""
    with closing(Stage(broker.bootstrap, tmp_path)) as made:
        yield made
