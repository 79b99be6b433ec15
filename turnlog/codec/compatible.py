"""What FULL_TRANSITIVE means for our schemas: every version reads what every other wrote.

Avro resolves records by the names of fields. So a version may only add fields that are nullable with default null, and drop
such fields; names and types of what stays never change. (Avro alone would also allow other defaults. Null is the one value
that says "the writer did not know of this field".)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnlog.codec.schemas import Schema, bare, records_of, shape


def breaks(old: Schema, new: Schema) -> list[str]:
    """What in `new` breaks readers or writers of `old`: a sentence for each. Empty: both read what the other wrote."""
    before, after = _by_name(old), _by_name(new)
    found = (
        [] if shape(old) == shape(new) else [f"the record {shape(old)} is called {shape(new)} now: names never change"]
    )
    for name in before.keys() & after.keys():
        found += _record(name, before[name], after[name])
    return sorted(found)


def _by_name(schema: Schema) -> dict[str, dict[str, Any]]:
    """Fields by name, of each record by name."""
    return {record["name"]: {field["name"]: field for field in record["fields"]} for record in records_of(bare(schema))}


def _record(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for field in old.keys() - new.keys():
        if not _absent_is_null(old[field]):
            yield f"{name}.{field} is gone: readers of the old version need it, for it has no default null there"
    for field in new.keys() - old.keys():
        if not _absent_is_null(new[field]):
            yield f'{name}.{field} is new: give it a type ["null", ...] and "default": null, or old records cannot be read'
    for field in old.keys() & new.keys():
        yield from _field(f"{name}.{field}", old[field], new[field])


def _absent_is_null(field: Schema) -> bool:
    return isinstance(field["type"], list) and field["type"][0] == "null" and field.get("default", "") is None


def _field(path: str, old: Schema, new: Schema) -> Iterator[str]:
    was, now = _signature(old["type"]), _signature(new["type"])
    if was != now:
        yield f"{path} was {was} and is {now}: the type of a field never changes, add another field"
    if "default" in old and "default" not in new:
        yield f"{path} lost its default: a record written without it cannot be read"


def _signature(schema: Schema) -> str:
    """The type as text, records by name alone: what they are made of is compared by itself."""
    match shape(schema):
        case "union":
            return " or ".join(_signature(branch) for branch in schema)
        case "array":
            return f"array of {_signature(schema['items'])}"
        case "map":
            return f"map of {_signature(schema['values'])}"
        case name:
            return name
