"""Records for tests: the examples of schemas/examples, and hypothesis strategies for every record type."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from turnlog.codec import from_plain
from turnlog.codec.schemas import TOP_LEVEL, TYPES, Schema, bare, folder, published, records_of, shape
from turnlog.core.events import KINDS, Event


class Example(NamedTuple):
    """One example: its file name without suffix, its type and record, its JSON form and its golden bytes."""

    name: str
    kind: type
    record: Any
    plain: dict[str, Any]
    golden: bytes


@cache
def examples() -> tuple[Example, ...]:
    return tuple(_example(path) for path in sorted((folder() / "examples").glob("*.json")))


def _example(path: Path) -> Example:
    plain = json.loads(path.read_text("utf-8"))
    kind = TOP_LEVEL[path.name.split(".")[0]]
    golden = bytes.fromhex(path.with_suffix(".hex").read_text("ascii"))
    return Example(path.stem, kind, from_plain(kind, plain), plain, golden)


_LONGS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 300)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@cache
def records(name: str) -> st.SearchStrategy[Any]:
    """Any record of this name, also nonsense that the core would never make."""
    definition = _definitions()[name]
    kind = TYPES[name]
    fields = {field["name"]: _values(field["type"]) for field in definition["fields"]}
    if kind is not Event:
        return st.builds(kind, **fields)
    columns = {column: values for column, values in fields.items() if column not in KINDS and column != "kind"}
    one_kind = [
        st.builds(Event, kind=st.just(kind), payload=records(payload.__name__), **columns)
        for kind, payload in KINDS.items()
    ]
    return st.one_of(one_kind)


@cache
def _definitions() -> dict[str, Schema]:
    return {record["name"]: record for name in TOP_LEVEL for record in records_of(bare(published(name)))}


def _values(schema: Schema) -> st.SearchStrategy[Any]:
    match shape(schema):
        case "string":
            return _TEXTS
        case "long":
            return _LONGS
        case "boolean":
            return st.booleans()
        case "bytes":
            return st.binary(max_size=40)
        case "union":
            return st.none() | _values(schema[1])
        case "array":
            return st.lists(_values(schema["items"]), max_size=3).map(tuple)
        case "map":
            labels = st.dictionaries(_TEXTS, _TEXTS, max_size=3)
            return labels.map(lambda pairs: tuple(sorted(pairs.items())))
        case name:
            return records(name)
