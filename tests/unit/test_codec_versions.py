"""Bytes of other builds: an older one that lacks fields, a newer one that has more, a foreign one that shuffles them."""

from __future__ import annotations

import copy
import io
from typing import Any, cast

import fastavro
import pytest

from tests.record_samples import examples
from turnlog.codec import Codec, Registry, Unreadable
from turnlog.codec.schemas import Schema, published
from turnlog.core.records import JournalRecord, ToolResult

OTHER = 9
PLAIN = {"run_id": "r", "call_key": "k", "attempt": 2, "reply_token": b"t", "status": "ok", "content": "x"}


class OneSchema:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def schema(self, schema_id: int) -> Schema | None:
        return self._schema if schema_id == OTHER else None


def codec_knowing(schema: Schema) -> Codec:
    return Codec(cast(Registry, OneSchema(schema)))


def written_with(schema: Schema, plain: Any) -> bytes:
    out = io.BytesIO(b"\0" + OTHER.to_bytes(4, "big"))
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), plain)
    return out.getvalue()


def test_older_writer_without_our_newer_fields() -> None:
    schema = copy.deepcopy(published("ToolResult"))
    schema["fields"] = schema["fields"][:6]
    read = codec_knowing(schema).decode(written_with(schema, PLAIN), ToolResult)
    assert read == ToolResult("r", "k", 2, b"t", "ok", "x")


def test_newer_writer_with_fields_that_we_do_not_know() -> None:
    schema = copy.deepcopy(published("ToolResult"))
    schema["fields"].insert(1, {"name": "host", "type": ["null", "string"], "default": None})
    read = codec_knowing(schema).decode(written_with(schema, {**PLAIN, "host": "h"}), ToolResult)
    assert read == ToolResult("r", "k", 2, b"t", "ok", "x")


def test_foreign_writer_with_another_order_and_narrower_numbers() -> None:
    schema = copy.deepcopy(published("ToolResult"))
    schema["fields"].reverse()
    next(field for field in schema["fields"] if field["name"] == "attempt")["type"] = "int"
    read = codec_knowing(schema).decode(written_with(schema, PLAIN), ToolResult)
    assert read == ToolResult("r", "k", 2, b"t", "ok", "x")


def test_same_schema_with_other_docs_takes_the_fast_way() -> None:
    schema = copy.deepcopy(published("ToolResult"))
    schema["doc"] = "said better"
    codec = codec_knowing(schema)
    assert codec.decode(written_with(schema, PLAIN), ToolResult).attempt == 2


def newer_journal() -> Schema:
    schema = copy.deepcopy(published("JournalRecord"))
    events = next(field for field in schema["fields"] if field["name"] == "events")
    claimed = {"type": "record", "name": "CallClaimed", "fields": [{"name": "claim", "type": "string"}]}
    events["type"]["items"]["fields"].append({"name": "call_claimed", "type": ["null", claimed], "default": None})
    return schema


def journal_of(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    example = next(example for example in examples() if example.name == "JournalRecord.fence")
    plain = {**example.plain, "fence": b"f", "opening": None}
    return {**plain, "events": [{"kind": kind, "at": 1, kind: payload}]}


def test_newer_event_kind_is_no_damage_but_unknown() -> None:
    schema = newer_journal()
    data = written_with(schema, journal_of("call_claimed", {"claim": "x"}))
    with pytest.raises(Unreadable) as caught:
        codec_knowing(schema).decode(data, JournalRecord)
    assert caught.value.reason == "unknown_event_kind"
    assert "call_claimed" in caught.value.detail


def test_known_event_kinds_of_a_newer_writer_are_read() -> None:
    schema = newer_journal()
    data = written_with(schema, journal_of("run_cancelled", {"reason": "x"}))
    assert codec_knowing(schema).decode(data, JournalRecord).events[0].kind == "run_cancelled"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: data[:5] + b"\x01" + data[6:]]
)
def test_damage_under_another_schema(damage: Any) -> None:
    schema = copy.deepcopy(published("ToolResult"))
    schema["fields"].reverse()
    with pytest.raises(Unreadable) as caught:
        codec_knowing(schema).decode(damage(written_with(schema, PLAIN)), ToolResult)
    assert caught.value.reason == "bad_bytes"
