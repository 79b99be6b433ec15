"""Every Avro record stands one to one beside its NamedTuple: names, order, types, defaults. And every field says what it is."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from turnlog.codec.schemas import TOP_LEVEL, TYPES, Schema, bare, folder, published, records_of, released
from turnlog.core.events import KINDS, Event

PRIMITIVES = {str: "string", bool: "boolean", bytes: "bytes", int: "long"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MOMENTS = {"at", "due", "not_after"}
"""Fields that hold a moment; so do those that end in `_at`. All others in milliseconds are durations and end in `_ms`."""

ALWAYS_WRITTEN = {("AgentSpec", "model_settings")}
"""Python's default is the text `{}`, and Apicurio 3.3.3 refuses every schema with `"default": "{}"` as no Avro."""

DEFINITIONS = [(name, record) for name in TOP_LEVEL for record in records_of(published(name))]


def avro_of(hint: Any) -> Schema:
    """The Avro type that a Python annotation stands for."""
    if hint in PRIMITIVES:
        return PRIMITIVES[hint]
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (part for part in get_args(hint) if part is not type(None))
        return ["null", avro_of(inner)]
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if item == tuple[str, str]:
            return {"type": "map", "values": "string"}
        return {"type": "array", "items": avro_of(item)}
    return hint.__name__


def avro_fields(kind: type) -> dict[str, Schema]:
    """Names and types of the Avro fields of a NamedTuple, in order; an event's payload is one field for each kind."""
    hints = get_type_hints(kind)
    fields = {name: avro_of(hints[name]) for name in kind._fields if (kind, name) != (Event, "payload")}  # type: ignore[attr-defined]
    if kind is Event:
        fields |= {name: ["null", payload.__name__] for name, payload in KINDS.items()}
    return fields


def by_name(schema: Schema) -> Schema:
    """The schema with records by name alone."""
    if isinstance(schema, list):
        return [by_name(branch) for branch in schema]
    if isinstance(schema, dict):
        if schema["type"] == "record":
            return schema["name"]
        return {name: by_name(part) if name in ("items", "values") else part for name, part in schema.items()}
    return schema


@pytest.mark.parametrize(
    ("top", "record"), DEFINITIONS, ids=lambda part: part if isinstance(part, str) else part["name"]
)
class TestRecord:
    def test_names_order_and_types(self, top: str, record: Schema) -> None:
        fields = {field["name"]: by_name(bare(field["type"])) for field in record["fields"]}
        assert list(fields.items()) == list(avro_fields(TYPES[record["name"]]).items())

    def test_defaults(self, top: str, record: Schema) -> None:
        """What may be absent in Python may be absent on the wire, and means the same."""
        defaults = TYPES[record["name"]]._field_defaults  # type: ignore[attr-defined]
        for field in record["fields"]:
            name = field["name"]
            if isinstance(field["type"], list):
                assert field.get("default", "none") is None, f"{name} is nullable: its default is null"
            elif name in defaults and (record["name"], name) not in ALWAYS_WRITTEN:
                assert field["default"] == plain_default(field, defaults[name]), name
            else:
                assert "default" not in field, f"{name} has no default in Python"

    def test_moments_are_timestamps(self, top: str, record: Schema) -> None:
        for field in record["fields"]:
            kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
            is_moment = field["name"] in MOMENTS or field["name"].endswith("_at")
            assert (MILLIS in kinds) == is_moment, field["name"]

    def test_docs(self, top: str, record: Schema) -> None:
        for part in (record, *record["fields"]):
            assert part["doc"].endswith("."), f"{part['name']} needs a sentence"


def plain_default(field: Schema, value: Any) -> Any:
    if isinstance(field["type"], dict) and field["type"]["type"] == "map":
        return dict(value)
    if hasattr(value, "_asdict"):
        return value._asdict()
    return list(value) if isinstance(value, tuple) else value


def test_shared_records_are_the_same_everywhere() -> None:
    seen: dict[str, Schema] = {}
    for _, record in DEFINITIONS:
        same = {name: part for name, part in record.items() if name != "namespace"}
        assert seen.setdefault(record["name"], same) == same, record["name"]
    assert seen.keys() == TYPES.keys()


def test_every_file_is_a_record_of_ours() -> None:
    assert {path.name for path in (folder() / "records").iterdir()} == {f"{name}.avsc" for name in TOP_LEVEL}
    for name in TOP_LEVEL:
        assert published(name)["namespace"] == "turnlog"
        assert published(name)["name"] == name


def test_payloads_are_no_union() -> None:
    """Flink makes a union of several records opaque, and AvroDeserializer drops the branch (docs/journal.md)."""
    for _, record in DEFINITIONS:
        for field in record["fields"]:
            if isinstance(field["type"], list):
                assert len(field["type"]) == 2
                assert field["type"][0] == "null"


def test_no_fixed_and_no_enum() -> None:
    """Flink SQL derives `bytes` and `string` from its types, and Avro resolves neither fixed nor enum to them."""
    for version in released().values():
        assert '"fixed"' not in str(version.schema).replace("'", '"')
        assert '"enum"' not in str(version.schema).replace("'", '"')


def test_no_python_path_is_stored() -> None:
    for path in folder().rglob("*"):
        if path.suffix in {".avsc", ".json"}:
            text = path.read_text("utf-8")
            assert "turnlog.core" not in text, path
            assert "turnlog.codec" not in text, path
        if path.suffix == ".hex":
            assert b"turnlog.co" not in bytes.fromhex(path.read_text()).replace(b"turnlog.commands", b""), path
