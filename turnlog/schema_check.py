"""Arguments against a tool's JSON Schema, with texts of our own wording.

jsonschema-rs does the checking (0.7 µs a call where jsonschema takes 67); its messages are not used, because what the model reads
is recorded and decided again by `turnlog verify`: only the path, the broken keyword and what the schema wants
go into the text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jsonschema_rs

from turnlog.core.agents import MenuEntry
from turnlog.core.ids import canonical_json, parse_json
from turnlog.schema_work import SchemaWork


def _nothing_else(uri: str) -> Any:
    """A schema that refers to another document: it is in nobody's hands here, and fetching it would be a tool team's way into our network
    and files, from the thread that serves every run."""
    raise ValueError(f"{uri} is not part of the schema")


class _Checker(NamedTuple):
    validator: Any
    work: SchemaWork


CHECKED = 5_000_000
"""Checks that a value may cost (some 50 ns each); what might cost more is not checked here."""
TOLD = 30_000
"""Checks up to which breaches are looked for one by one (some 40 µs each)."""


@lru_cache(maxsize=4_096)
def _checker(schema: str) -> _Checker | None:
    """The compiled schema, or None for one that cannot be compiled or might cost any time (then nothing is checked here; the worker checks
    again)."""
    try:
        parsed = parse_json(schema)
        return _Checker(jsonschema_rs.validator_for(parsed, retriever=_nothing_else), SchemaWork(parsed))
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return None


def check_arguments(entry: MenuEntry, value: Any) -> str | None:
    """Why these arguments break the tool's schema: the first breach by path, `where: keyword`; None if they fit."""
    checker = _checker(entry.parameters)
    if checker is None:
        return None
    most = checker.work.most(value)
    if most > CHECKED:
        return None
    try:
        if checker.validator.is_valid(value):
            return None
        if most > TOLD:
            return "arguments: they are too large or too deeply nested to say where"
        breaches = sorted((_where(error), _what(error)) for error in checker.validator.iter_errors(value))
    except ValueError:  # the library takes names as UTF-8 only
        return "arguments: a name in them is no text (it has half of a surrogate pair)"
    return "; ".join(f"{where}: {what}" for where, what in breaches[:3])


def _where(error: Any) -> str:
    path = "/".join(str(part) for part in error.instance_path)
    return path or "arguments"


def _what(error: Any) -> str:
    keyword = str(error.schema_path[-1]) if error.schema_path else "schema"
    wanted = getattr(error.kind, "value", None)
    match keyword:
        case "required":
            return f"{wanted!r} is missing"
        case "additionalProperties":
            return "has names it does not take: " + ", ".join(repr(name) for name in sorted(wanted or [])[:5])
        case "type":
            return "must be of type " + " or ".join(sorted(wanted or []))
    return f"breaks {keyword!r}: {_short(wanted)}"


def _short(value: Any) -> str:
    try:
        text = canonical_json(value)
    except (TypeError, ValueError):
        return "see the schema"
    return text if len(text) <= 120 else text[:117] + "..."
