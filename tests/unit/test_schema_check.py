"""Breaches of a tool's schema, said in words of our own."""

from __future__ import annotations

import socket

import pytest

from turnlog.core.agents import MenuEntry
from turnlog.schema_check import check_arguments

SCHEMA = (
    '{"type":"object","required":["x"],"properties":{"x":{"type":["integer","null"]},"y":{"enum":["a","b"]},'
    '"deep":{"type":"array","items":{"type":"string","minLength":2}}},"additionalProperties":false}'
)
ENTRY = MenuEntry("t", "set", "1", "topic", parameters=SCHEMA)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"x": 1}, None),
        ({}, "arguments: 'x' is missing"),
        ({"x": "1"}, "x: must be of type integer or null"),
        ({"x": 1, "z": 2, "a": 3}, "arguments: has names it does not take: 'a', 'z'"),
        ({"x": 1, "y": "c"}, 'y: breaks \'enum\': ["a","b"]'),
        ({"x": 1, "deep": ["ok", "s"]}, "deep/1: breaks 'minLength': 2"),
    ],
)
def test_the_first_breaches_are_named_by_path_and_keyword(arguments: object, said: str | None) -> None:
    assert check_arguments(ENTRY, arguments) == said


def test_a_schema_that_cannot_be_compiled_is_left_to_the_worker() -> None:
    assert check_arguments(ENTRY._replace(parameters='{"type":"no such type"}'), {"x": 1}) is None
    assert check_arguments(ENTRY._replace(parameters="not json"), {"x": 1}) is None


def test_a_schema_is_never_fetched_and_its_depth_is_bounded() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.2)
    elsewhere = f'{{"$ref":"http://127.0.0.1:{listener.getsockname()[1]}/schema"}}'
    assert check_arguments(ENTRY._replace(parameters=elsewhere), {"x": 1}) is None
    with listener, pytest.raises(TimeoutError):
        listener.accept()
    deep = '{"properties":{"a":' * 3_000 + "{}" + "}}" * 3_000
    assert check_arguments(ENTRY._replace(parameters=deep), {"x": 1}) is None


def test_names_that_are_no_text_are_told_and_do_not_raise() -> None:
    told = check_arguments(ENTRY, {"x": 1, "\ud800": 2})
    assert told is not None
    assert "surrogate" in told


def nested(levels: int, leaf: object) -> dict[str, object]:
    """A filter of so many levels of `or`."""
    found: dict[str, object] = {"field": leaf}
    for _ in range(levels):
        found = {"op": "or", "left": found, "right": {"field": "x"}}
    return found


def union(op: str) -> str:
    side = '{"$ref":"#/$defs/filter"}'
    return f'{{"properties":{{"left":{side},"right":{side},"op":{{"const":"{op}"}}}},"required":["left","right","op"]}}'


FILTER = ENTRY._replace(
    parameters=f'{{"$defs":{{"filter":{{"anyOf":[{union("and")},{union("or")},'
    '{"properties":{"field":{"type":"string"}},"required":["field"]}]}},"properties":{"f":{"$ref":"#/$defs/filter"}}}'
)


def test_a_value_that_might_cost_any_time_is_left_to_the_worker() -> None:
    """Each level of the union costs twice the one above it: 100 levels would never come to an end."""
    assert check_arguments(FILTER, {"f": nested(1, 5)}) == "f: breaks 'anyOf': see the schema"
    assert (
        check_arguments(FILTER, {"f": nested(10, 5)})
        == "arguments: they are too large or too deeply nested to say where"
    )
    assert check_arguments(FILTER, {"f": nested(10, "x")}) is None
    assert check_arguments(FILTER, {"f": nested(100, 5)}) is None


def test_a_schema_that_might_cost_any_time_is_left_to_the_worker() -> None:
    doubling = ",".join(
        f'"d{n}":{{"anyOf":[{{"$ref":"#/$defs/d{n + 1}"}},{{"$ref":"#/$defs/d{n + 1}"}}]}}' for n in range(60)
    )
    parameters = f'{{"$defs":{{{doubling},"d60":false}},"$ref":"#/$defs/d0"}}'
    assert check_arguments(ENTRY._replace(parameters=parameters), {}) is None
    for endless in ('{"$ref":"#"}', '{"allOf":[{"$ref":"#/allOf/0"}]}', '{"$dynamicRef":"#"}', '{"$ref":"#/nowhere"}'):
        assert check_arguments(ENTRY._replace(parameters=endless), {"x": 1}) is None


def test_breaches_without_number_are_not_told_one_by_one() -> None:
    entry = ENTRY._replace(parameters='{"properties":{"a":{"items":{"type":"string"}}}}')
    assert check_arguments(entry, {"a": [1] * 3}) == "; ".join(f"a/{n}: must be of type string" for n in range(3))
    told = check_arguments(entry, {"a": [1] * 100_000})
    assert told == "arguments: they are too large or too deeply nested to say where"
    assert check_arguments(entry, {"a": ["x"] * 100_000}) is None
