"""Ids from a real schema registry."""

from __future__ import annotations

import copy

import httpx
import pytest

from tests.record_samples import examples
from turnlog.codec import Codec, Registry, RegistryRefused, RegistryUnavailable, Unreadable
from turnlog.codec.schemas import FIRST_FILE_ID, TOP_LEVEL, bare, published
from turnlog.core.records import Command, ToolRequest, ToolResult


@pytest.fixture
def registry(registry_url: str) -> Registry:
    return Registry(registry_url)


def id_in(data: bytes) -> int:
    return int.from_bytes(data[1:5], "big")


COMMAND = Command("c", "r", "start")


def test_every_schema_is_taken_and_given_back(registry: Registry, topic_prefix: str) -> None:
    for name in TOP_LEVEL:
        schema_id = registry.id_of(f"{topic_prefix}{name}", published(name))
        assert bare(registry.schema(schema_id)) == bare(published(name))


def test_full_transitive_is_accepted_for_every_subject(
    registry: Registry, registry_url: str, topic_prefix: str
) -> None:
    """With the strictest check switched on, a nullable field may come, and a field without default may not."""
    registry.id_of(f"{topic_prefix}results", published("ToolResult"))
    config = f"{registry_url}/config/{topic_prefix}results-value"
    httpx.put(config, json={"compatibility": "FULL_TRANSITIVE"}).raise_for_status()
    newer = copy.deepcopy(published("ToolResult"))
    newer["fields"].append({"name": "host", "type": ["null", "string"], "default": None})
    assert registry.id_of(f"{topic_prefix}results", newer) != registry.id_of(
        f"{topic_prefix}results", published("ToolResult")
    )
    newer["fields"].append({"name": "broken", "type": "string"})
    with pytest.raises(RegistryRefused, match="409"):
        registry.id_of(f"{topic_prefix}results", newer)


def test_records_round_trip_between_two_processes_with_registry_ids(registry: Registry, topic_prefix: str) -> None:
    topics = {f"{topic_prefix}{name}": kind for name, kind in TOP_LEVEL.items()}
    writer, reader = Codec(registry, topics), Codec(registry)
    for example in examples():
        data = writer.encode(example.record)
        assert id_in(data) < FIRST_FILE_ID
        assert data[5:] == example.golden[5:]
        assert reader.decode(data, example.kind) == example.record


def test_file_ids_stay_readable_beside_registry_ids(registry: Registry, topic_prefix: str) -> None:
    codec = Codec(registry, {f"{topic_prefix}{name}": kind for name, kind in TOP_LEVEL.items()})
    for example in examples():
        assert codec.decode(example.golden, example.kind) == example.record


def test_registering_again_gives_the_same_id_also_under_another_subject(registry: Registry, topic_prefix: str) -> None:
    codec = Codec(registry, {f"{topic_prefix}requests.a": ToolRequest})
    again = Codec(registry, {f"{topic_prefix}requests.b": ToolRequest, f"{topic_prefix}requests.a": ToolRequest})
    request = next(example.record for example in examples() if example.kind is ToolRequest)
    assert codec.encode(request) == again.encode(request)


def test_look_up_only(registry: Registry, registry_url: str, topic_prefix: str) -> None:
    looks_up = Registry(registry_url, register=False)
    with pytest.raises(RegistryRefused, match="register schemas/records"):
        Codec(looks_up, {f"{topic_prefix}commands": Command})
    registered = Codec(registry, {f"{topic_prefix}commands": Command})
    assert Codec(looks_up, {f"{topic_prefix}commands": Command}).encode(COMMAND) == registered.encode(COMMAND)


def test_id_that_the_registry_does_not_know(registry: Registry) -> None:
    with pytest.raises(Unreadable) as caught:
        Codec(registry).decode(b"\0" + (0x3FFFFFF0).to_bytes(4, "big"), ToolResult)
    assert caught.value.reason == "unknown_schema_id"
    assert "the registry does not know it" in caught.value.detail


def test_another_schema_of_the_registry_is_no_record_of_ours(registry: Registry, topic_prefix: str) -> None:
    foreign = registry.id_of(f"{topic_prefix}foreign", {"type": "record", "name": "Foreign", "fields": []})
    with pytest.raises(Unreadable) as caught:
        Codec(registry).decode(b"\0" + foreign.to_bytes(4, "big"), ToolResult)
    assert caught.value.reason == "wrong_record"


def test_registry_that_does_not_answer() -> None:
    nobody = Registry("http://127.0.0.1:9/apis/ccompat/v7", timeout_s=2)
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        Codec(nobody, {"commands": Command})
    with pytest.raises(RegistryUnavailable):
        Codec(nobody).decode(b"\0\0\0\0\1", Command)


def test_a_url_that_is_no_registry(registry_url: str) -> None:
    wrong = Registry(registry_url.replace("/apis/", "/nothing/"))
    with pytest.raises(RegistryUnavailable):
        wrong.schema(1)
