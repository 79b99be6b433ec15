"""The generated code against fastavro: the same bytes, the same values, for any record."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.record_samples import records
from turnlog.codec import Codec, from_plain
from turnlog.codec.schemas import TOP_LEVEL, Schema, bare, published, records_of, shape
from turnlog.codec.straight import compiled, zigzag

EACH = pytest.mark.parametrize("name", TOP_LEVEL)
CODEC = Codec()


def hinted(schema: Schema, value: Any, named: dict[str, Schema]) -> Any:
    """A record as fastavro takes it, with every union's branch named."""
    match shape(schema):
        case "union":
            return None if value is None else (branch_name(schema[1]), hinted(schema[1], value, named))
        case "array":
            return [hinted(schema["items"], item, named) for item in value]
        case "map":
            return dict(value)
        case name if name in named:
            values = value._asdict()
            if name == "Event":
                values[value.kind] = values.pop("payload")
            return {
                field["name"]: hinted(field["type"], values.get(field["name"]), named)
                for field in named[name]["fields"]
            }
    return value


def branch_name(schema: Schema) -> str:
    name = shape(schema)
    return name if name in ("string", "long", "boolean", "bytes", "array", "map") else f"turnlog.{name}"


@EACH
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_same_bytes_and_values_as_fastavro(name: str, data: st.DataObject) -> None:
    record = data.draw(records(name))
    schema = bare(published(name))
    parsed: Any = fastavro.parse_schema(schema)
    named = {one["name"]: one for one in records_of(schema)}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, parsed, hinted(schema, record, named))
    encoded = CODEC.encode(record)
    assert encoded[5:] == body.getvalue()
    assert CODEC.decode(encoded, type(record)) == record
    body.seek(0)
    plain: Any = fastavro.schemaless_reader(body, parsed, None)
    assert from_plain(type(record), plain) == record


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_as_fastavro_writes_them(number: int) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema("long"), number)
    assert zigzag(number) == out.getvalue()


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**30])
def test_numbers_outside_64_bits(number: int) -> None:
    with pytest.raises(OverflowError):
        zigzag(number)


def test_arrays_in_blocks_with_sizes_are_read() -> None:
    """Some writers cut an array into blocks that begin with a negative count and a size."""
    read = compiled(bare(published("AgentSpec"))).read
    whole = CODEC.encode(from_plain(TOP_LEVEL["AgentSpec"], {**LEAST, "tools": ["a", "b"]}))[5:]
    one_block = b"\x04\x02a\x02b\x00"
    in_blocks = b"\x01\x04\x02a" + b"\x02\x02b" + b"\x00"
    assert whole.count(one_block) == 1
    record, end = read(whole.replace(one_block, in_blocks), 0)
    assert record.tools == ("a", "b")
    assert end == len(whole) + 2


LEAST = {"name": "n", "version": "v", "instructions": "i", "model": "m"}
