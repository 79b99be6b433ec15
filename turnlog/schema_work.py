"""How many checks a JSON Schema may cost, before it is asked: an upper bound from the schema and the size of what it is asked about.

A schema may apply several of its parts to the same place of a value, and each of those again: a union whose branches lead back to the
union costs twice as much with each level (a filter of `and` and `or`, wrong 14 levels down, took half a minute). What checks is one call
into a library that nothing can interrupt, on the thread that serves every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

CAP: Final = 10**9
"""Counts stop here."""
PLACES: Final = 20_000
"""A schema with more parts is not looked at."""

_HERE: Final = ("not", "if", "then", "else")
_HERE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_HERE_MAPS: Final = ("dependentSchemas", "dependencies")
_BELOW: Final = ("contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
_BELOW_ONE_OF: Final = ("items", "additionalItems", "additionalProperties")
_ELSEWHERE: Final = ("$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor")
"""Names of places that only a resolver knows, as a `$id` below the root."""


class _Part(NamedTuple):
    """What one part of a schema leads to, by number: for the same place of a value, for each place below it, and of which only one is
    for a place below."""

    here: list[int]
    below: list[int]
    one_of: list[int]


class TooIntricate(ValueError):
    """No bound can be given."""


class SchemaWork:
    """The bound for one schema. Raises TooIntricate for one that is too large, refers to itself without end, or by other than pointers."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._numbers: dict[int, int] = {}
        self._found: list[Any] = []
        self._parts: list[_Part] = []
        self._number(schema)
        while len(self._parts) < len(self._found):
            self._parts.append(self._part(self._found[len(self._parts)]))
        try:
            order = TopologicalSorter({number: part.here for number, part in enumerate(self._parts)}).static_order()
            self._order = list(order)
        except CycleError:
            raise TooIntricate("it refers to itself without end") from None
        self._last = [0] * len(self._parts)
        self._by_depth: list[int] = []

    def most(self, value: Any) -> int:
        """How many checks this value can cost at most, up to CAP."""
        found = depth = 0
        level = [value]
        while level:
            if depth == len(self._by_depth):
                self._deeper()
            found += len(level) * self._by_depth[depth]
            depth += 1
            level = [each for one in level if isinstance(one, dict | list) for each in _inside(one)]
        return min(CAP, found)

    def _deeper(self) -> None:
        """One level more: how often each part comes to check one place that lies so deep in what it is asked about."""
        first, above = not self._by_depth, self._last
        counts = [0] * len(above)
        for number in self._order:
            part = self._parts[number]
            below = sum(above[each] for each in part.below) + max((above[each] for each in part.one_of), default=0)
            counts[number] = min(CAP, (1 if first else below) + sum(counts[each] for each in part.here))
        self._last = counts
        self._by_depth.append(counts[0])

    def _part(self, schema: Any) -> _Part:
        if not isinstance(schema, dict):
            return _Part([], [], [])
        if any(name in schema for name in _ELSEWHERE) or (schema is not self._root and {"$id", "id"} & schema.keys()):
            raise TooIntricate("it names its parts")
        here = [schema[name] for name in _HERE if name in schema]
        here += [each for name in _HERE_LISTS for each in _listed(schema.get(name))]
        here += [each for name in _HERE_MAPS for each in _mapped(schema.get(name))]
        if "$ref" in schema:
            here.append(self._target(schema["$ref"]))
        below = [*_mapped(schema.get("patternProperties")), *(schema[name] for name in _BELOW if name in schema)]
        one_of = [*_mapped(schema.get("properties")), *_listed(schema.get("prefixItems"))]
        one_of += [
            each for name in _BELOW_ONE_OF if name in schema for each in (_listed(schema[name]) or [schema[name]])
        ]
        return _Part(*([self._number(each) for each in found] for found in (here, below, one_of)))

    def _number(self, schema: Any) -> int:
        """Parts are told apart by identity: the schema is parsed once and lives as long as this."""
        number = self._numbers.setdefault(id(schema), len(self._found))
        if number == len(self._found):
            if number >= PLACES:
                raise TooIntricate("it has too many parts")
            self._found.append(schema)
        return number

    def _target(self, pointer: Any) -> Any:
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            raise TooIntricate("it refers to its parts by other than pointers")
        found = self._root
        for name in unquote(pointer).split("/")[1:]:
            step = name.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (LookupError, TypeError, ValueError):
                raise TooIntricate("it refers to what is not there") from None
        return found


def _inside(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapped(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []
