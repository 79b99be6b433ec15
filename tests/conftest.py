"""Fixtures that every test may use: a shared broker, brokers of one's own, topic prefixes, kcat.

Tests that need Kafka are never skipped: failing to get a broker fails them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.broker_fixture import SharedBroker, shared_broker
from tests.registry_fixture import schema_registry
from turnlog.local.broker import EmbeddedBroker


class OwnBroker(Protocol):
    """What the `own_broker` fixture is: `EmbeddedBroker.start` with a directory and port of its own."""

    def __call__(self, **options: Any) -> EmbeddedBroker: ...


def pytest_configure() -> None:
    """A shell ignores Ctrl-C for what it starts in the background, and processes inherit that; those that tests interrupt must not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


KAFKA_SOURCE = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBroker]:
    """One broker for all tests. `.bootstrap` is what clients connect to."""
    with shared_broker(tmp_path_factory.mktemp("broker")) as shared:
        request.config.stash[KAFKA_SOURCE] = shared.source
        yield shared


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which Kafka the tests ran on: where Docker is expected, a silent second choice would go unnoticed."""
    if source := config.stash.get(KAFKA_SOURCE, None):
        terminalreporter.write_line(f"Kafka: {source}")


@pytest.fixture(scope="session")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A schema registry that speaks Confluent's API, shared by all tests: each uses subjects of its own."""
    with schema_registry(tmp_path_factory.mktemp("registry")) as url:
        yield url


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[OwnBroker]:
    """A factory of embedded brokers that a test may kill, pause or put a proxy before. Each costs about five seconds."""
    with ExitStack() as stack:
        started: list[EmbeddedBroker] = []

        def start(**options: Any) -> EmbeddedBroker:
            options = {"port": 0, "heap_mb": 512, **options}
            one = EmbeddedBroker.start(tmp_path / f"broker{len(started)}", **options)
            stack.callback(one.kill)
            started.append(one)
            return one

        yield start


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for topics and groups that no other test has, with the test's name for whoever looks at the broker."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40]
    return f"{name}-{uuid.uuid4().hex[:8]}."


@pytest.fixture
def kcat() -> str:
    """The path of kcat. Without it a test is reported as not run; under CI, which installs it, it fails."""
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is None:
        reason = "kcat is not installed (apt-get install kcat); Kafka was not read with a client that is not ours"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return found


@pytest.fixture(scope="session")
def repository() -> Callable[[str], Path]:
    """Paths inside the checkout: `repository("schemas/topics")`."""
    root = Path(__file__).parent.parent
    return lambda relative: root / relative
