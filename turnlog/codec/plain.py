"""Records as plain JSON values, and back: examples, histories, `--json`, and whatever fastavro read.

The form follows the Avro schema: a record is an object, labels are an object, bytes are hex text, an event carries its payload
under the name of its kind. Fields that are null are left out; a field that is absent has its default.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from turnlog.codec.errors import Unreadable
from turnlog.codec.schemas import TOP_LEVEL, TYPES, Schema, bare, published, records_of, shape
from turnlog.core.events import KINDS

T = TypeVar("T")
_ABSENT: Any = object()


@cache
def _definitions() -> dict[str, Schema]:
    """The bare schema of each record by name."""
    return {record["name"]: record for name in TOP_LEVEL for record in records_of(bare(published(name)))}


def to_plain(record: Any) -> dict[str, Any]:
    """The JSON form of a record."""
    plain: dict[str, Any] = _out(type(record).__name__, record)
    return plain


def from_plain(kind: type[T], plain: dict[str, Any]) -> T:
    """The record of a JSON form; bytes may be bytes already, absent fields take their defaults, unknown ones are ignored.
    Raises TypeError for a missing field without default, Unreadable (unknown_event_kind) for an event without its payload."""
    record: T = _in(kind.__name__, plain)
    return record


def _out(schema: Schema, value: Any) -> Any:
    match shape(schema):
        case "string" | "long" | "boolean":
            return value
        case "bytes":
            return value.hex()
        case "union":
            return _out(schema[1], value)
        case "array":
            return [_out(schema["items"], item) for item in value]
        case "map":
            return {name: _out(schema["values"], item) for name, item in value}
        case name:
            return _record_out(_definitions()[name], value)


def _record_out(definition: Schema, record: Any) -> dict[str, Any]:
    values = record._asdict()
    if definition["name"] == "Event":
        values[record.kind] = values.pop("payload")
    fields = definition["fields"]
    return {
        name: _out(field["type"], values[name]) for field in fields if values.get(name := field["name"]) is not None
    }


def _in(schema: Schema, plain: Any) -> Any:
    match shape(schema):
        case "string" | "long" | "boolean":
            return plain
        case "bytes":
            return plain if isinstance(plain, bytes) else bytes.fromhex(plain)
        case "union":
            return None if plain is None else _in(schema[1], plain)
        case "array":
            return tuple(_in(schema["items"], item) for item in plain)
        case "map":
            return tuple(sorted((name, _in(schema["values"], item)) for name, item in plain.items()))
        case name:
            return _record_in(_definitions()[name], plain)


def _record_in(definition: Schema, plain: dict[str, Any]) -> Any:
    given = {field["name"]: plain.get(field["name"], field.get("default", _ABSENT)) for field in definition["fields"]}
    types = {field["name"]: field["type"] for field in definition["fields"]}
    values = {name: _in(types[name], value) for name, value in given.items() if value is not _ABSENT}
    if definition["name"] == "Event":
        payloads = {name: values.pop(name) for name in KINDS}
        values["payload"] = _payload(values.get("kind", ""), payloads)
    return TYPES[definition["name"]](**values)


def _payload(kind: str, payloads: dict[str, Any]) -> Any:
    """The one payload that is set. Raises Unreadable where it is not the one of the event's kind."""
    chosen = [name for name, payload in payloads.items() if payload is not None]
    if kind not in KINDS:
        raise Unreadable("unknown_event_kind", f"this build knows no event of kind {kind[:100]!r}")
    if chosen != [kind]:
        raise Unreadable("unknown_event_kind", f"an event of kind {kind!r} has the payloads {chosen}")
    return payloads[kind]
