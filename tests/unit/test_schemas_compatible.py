"""No schema breaks with a released one; and the rules that say so catch each way to break it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import fastavro
import pytest

from tests.record_samples import examples
from turnlog.codec.compatible import breaks
from turnlog.codec.release import unnumbered
from turnlog.codec.schemas import FIRST_FILE_ID, TOP_LEVEL, Schema, published, released

VERSIONS = list(released().values())


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"{version.id:#x}")
def test_current_schema_is_compatible_with_every_released_one(version: Any) -> None:
    faults = breaks(version.schema, published(version.record))
    assert not faults, "\n".join([f"schemas/records/{version.record}.avsc breaks with {version.id:#x}:", *faults])


def test_current_schemas_have_a_number() -> None:
    assert unnumbered() == [], "run python -m turnlog.codec.release and commit the new files"


def test_numbers_are_without_gap() -> None:
    assert list(released()) == list(range(FIRST_FILE_ID, FIRST_FILE_ID + len(VERSIONS)))
    assert all(version.record in TOP_LEVEL and version.schema["name"] == version.record for version in VERSIONS)


Change = Callable[[Schema], object]


def field(schema: Schema, name: str) -> Any:
    return next(one for one in schema["fields"] if one["name"] == name)


def drop(name: str) -> Change:
    return lambda schema: schema["fields"].remove(field(schema, name))


def add(**new: Any) -> Change:
    return lambda schema: schema["fields"].append(new)


def set_in(name: str, /, **parts: Any) -> Change:
    return lambda schema: field(schema, name).update(parts)


def within(name: str, branch: int | str, change: Change) -> Change:
    return lambda schema: change(field(schema, name)["type"][branch])


@pytest.mark.parametrize(
    ("record", "change", "fault"),
    [
        ("ToolResult", drop("content"), "ToolResult.content is gone"),
        ("ToolResult", drop("error"), "ToolResult.error is gone"),
        ("ToolResult", add(name="host", type="string"), "ToolResult.host is new"),
        ("ToolResult", add(name="host", type="string", default=""), "ToolResult.host is new"),
        ("ToolResult", add(name="host", type=["null", "string"]), "ToolResult.host is new"),
        ("ToolResult", set_in("attempt", type="string"), "ToolResult.attempt was long and is string"),
        ("ToolResult", set_in("attempt", type=["null", "long"], default=None), "was long and is null or long"),
        ("ToolResult", set_in("content", name="text"), "ToolResult.content is gone"),
        ("ToolResult", lambda schema: field(schema, "error").pop("default"), "ToolResult.error lost its default"),
        ("ToolResult", lambda schema: schema.update(name="Result"), "ToolResult is called Result now"),
        ("Command", within("start", 1, drop("agent")), "StartRun.agent is gone"),
        ("JournalRecord", within("events", "items", set_in("kind", type="long")), "Event.kind was string and is long"),
        (
            "RunSummary",
            set_in("labels", type={"type": "map", "values": "long"}),
            "was map of string and is map of long",
        ),
        ("AgentSpec", set_in("tools", type="string"), "was array of string and is string"),
    ],
)
def test_a_break_is_named(record: str, change: Change, fault: str) -> None:
    changed = copy.deepcopy(published(record))
    change(changed)
    faults = breaks(published(record), changed)
    assert any(fault in one for one in faults), faults


@pytest.mark.parametrize(
    ("record", "change"),
    [
        ("ToolResult", add(name="host", type=["null", "string"], default=None)),
        ("Command", add(name="fork", type=["null", {"type": "record", "name": "Fork", "fields": []}], default=None)),
        ("Command", drop("resume")),
        ("JournalRecord", within("events", "items", add(name="new_fact", type=["null", "Usage"], default=None))),
        ("ToolResult", lambda schema: field(schema, "content").update(doc="said better")),
        ("ToolResult", lambda schema: schema["fields"].reverse()),
    ],
)
def test_what_breaks_nothing_is_allowed_and_avro_agrees(record: str, change: Change) -> None:
    """With Avro's own resolution, both ways, on the examples."""
    changed = copy.deepcopy(published(record))
    change(changed)
    assert breaks(published(record), changed) == []
    old, new = fastavro.parse_schema(published(record)), fastavro.parse_schema(changed)
    for example in examples():
        if example.kind.__name__ == record:
            _resolves_both_ways(example.golden[5:], old, new)


def _resolves_both_ways(body: bytes, old: Any, new: Any) -> None:
    """Old bytes under the new schema, written anew, under the old schema: whatever both versions have comes back."""
    original: Any = fastavro.schemaless_reader(io.BytesIO(body), old, None)
    as_new: Any = fastavro.schemaless_reader(io.BytesIO(body), old, new)
    rewritten = io.BytesIO()
    fastavro.schemaless_writer(rewritten, new, as_new)
    rewritten.seek(0)
    as_old: Any = fastavro.schemaless_reader(rewritten, new, old)
    assert {name: value for name, value in as_old.items() if name in as_new} == {
        name: value for name, value in original.items() if name in as_new
    }
