"""The schema files of the repository: what is published, and the numbers by which bytes name it.

`schemas/records/<Record>.avsc` is the current schema of each top-level record. `schemas/released/<number>.<Record>.avsc`
are all versions there ever were; the numbers, from FIRST_FILE_ID, are the schema ids of an installation without a registry
and stay readable for ever. A current schema is the same as one of its numbered versions, docs aside (a test holds it).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from turnlog.core import agents, events, records

Schema = Any
"""An Avro schema as JSON gives it: a name, a list (union) or a dict."""

FIRST_FILE_ID: Final = 0x40000000

TOP_LEVEL: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        records.JournalRecord,
        records.Command,
        records.CommandOutcome,
        records.ToolRequest,
        records.ToolResult,
        records.RunSummary,
        records.LedgerEntry,
        records.ToolManifest,
        agents.AgentSpec,
        records.DeadLetter,
    )
}
"""Records that stand in a topic by themselves, by their Avro name."""

NESTED: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        agents.MenuEntry,
        agents.Usage,
        events.Event,
        events.RecordedCall,
        *events.KINDS.values(),
        records.InputRef,
        records.Fence,
        records.FencePlace,
        records.Snapshot,
        records.StartRun,
        records.SendInput,
        records.CancelRun,
        records.ResumeRun,
        records.Header,
    )
}
TYPES: Final[dict[str, type]] = {**TOP_LEVEL, **NESTED}
"""The NamedTuple of each Avro record, by its name without namespace. Bytes name records so, never by a Python path."""


class Released(NamedTuple):
    """One numbered version of a record's schema."""

    id: int
    record: str
    schema: Schema


def folder() -> Path:
    """The folder `schemas`: inside the installed package, else at the root of the checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "schemas"
    return inside if inside.is_dir() else package.parent / "schemas"


@cache
def published(record: str) -> Schema:
    """The current schema of a top-level record with its docs, as a registry is given it."""
    return json.loads((folder() / "records" / f"{record}.avsc").read_text("utf-8"))


@cache
def released() -> dict[int, Released]:
    """All numbered versions by id, ascending."""
    return {version.id: version for version in map(_read, sorted((folder() / "released").glob("0x*.avsc")))}


def _read(path: Path) -> Released:
    number, record, _ = path.name.split(".")
    return Released(int(number, 16), record, json.loads(path.read_text("utf-8")))


def bare(schema: Schema) -> Schema:
    """The schema without what does not show in the bytes: docs and logical types. Two schemas that are equal bare have the
    same bytes; and fastavro leaves times as integers, not datetimes, where the logical type is gone."""
    if isinstance(schema, dict):
        kept = {name: bare(part) for name, part in schema.items() if name not in ("doc", "logicalType")}
        return kept["type"] if set(kept) == {"type"} else kept
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    return schema


def file_id(record: str) -> int:
    """The number of a record's current schema. Raises LookupError, with the remedy, where it has none."""
    current = bare(published(record))
    for version in reversed(released().values()):
        if version.record == record and bare(version.schema) == current:
            return version.id
    raise LookupError(f"schemas/records/{record}.avsc has no number yet: run python -m turnlog.codec.release")


def records_of(schema: Schema) -> Iterator[Schema]:
    """Every record defined in a schema, each after those it is made of."""
    if isinstance(schema, list):
        for branch in schema:
            yield from records_of(branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            yield from records_of(field["type"])
        yield from records_of(schema.get("items", schema.get("values")))
        if schema["type"] == "record":
            yield schema


def shape(schema: Schema) -> str:
    """What a type is called: a primitive, `union`, `array`, `map`, or the name of a record without its namespace."""
    if isinstance(schema, list):
        return "union"
    name = schema["name"] if isinstance(schema, dict) and schema["type"] == "record" else schema
    if isinstance(name, dict):
        return shape(name["type"])
    return str(name).rpartition(".")[2]
