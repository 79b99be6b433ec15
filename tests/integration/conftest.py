"""Fixtures of the integration tests beside those that every test may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.registry_fixture import schema_registry


@pytest.fixture(scope="session")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A schema registry that speaks Confluent's API, shared by all tests: each uses subjects of its own."""
    with schema_registry(tmp_path_factory.mktemp("registry")) as url:
        yield url
