"""Names and digests. The golden values are the protocol: other readers of the log compute them, too; they never change."""

from __future__ import annotations

import json
import sys
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.agents import AgentSpec, MenuEntry
from turnlog.core.events import RecordedCall
from turnlog.core.ids import (
    EMPTY_DIGEST,
    call_key,
    canonical_arguments,
    canonical_json,
    chain_digest,
    parse_json,
    place,
    place_of_key,
    read_arguments,
    run_id_problem,
    run_of_key,
)
from turnlog.core.limits import CUT_MARK, backoff_ms, cut, cut_bytes, utf8_size
from turnlog.core.transcript import AssistantMessage, ToolMessage, UserMessage, base_digest, message_digest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ('{"b": 1, "a": [1.0, 2e3, -0.0, true, null]}', '{"a":[1.0,2000.0,-0.0,true,null],"b":1}'),
        ('{"a": 1, "a": 2}', '{"a":2}'),
        ('{"ü": "é🙂"}', '{"\\u00fc":"\\u00e9\\ud83d\\ude42"}'),
        ('"\\ud800"', '"\\ud800"'),
        ('"\ud800"', '"\\ud800"'),
        (" [ ] ", "[]"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("1e400", '"1e400"'),
        ("NaN", '"NaN"'),
        ("-Infinity", '"-Infinity"'),
        ("", '""'),
        ("not json", '"not json"'),
        ('{"a": 1} x', '"{\\"a\\": 1} x"'),
        ('"/\x7f"', '"/\\u007f"'),
    ],
)
def test_canonical_arguments(raw: str, canonical: str) -> None:
    assert canonical_arguments(raw) == canonical


@given(JSON)
def test_canonical_json_is_pythons_and_stable(value: object) -> None:
    text = canonical_json(value)
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    assert text.isascii()
    assert canonical_json(parse_json(text)) == text
    assert canonical_arguments(json.dumps(value, indent=1, ensure_ascii=False)) == text


@given(ANY_TEXT)
def test_every_text_has_a_canonical_form(raw: str) -> None:
    read = read_arguments(raw)
    assert read.canonical.isascii()
    assert parse_json(read.canonical) == (read.value if read.is_json else raw)
    assert len(call_key("r", 0, 0, raw, read.canonical)) == len("r:t0:c0:") + 16


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), [float("nan")]])
def test_canonical_json_refuses_what_is_no_json(value: object) -> None:
    for _ in range(2):  # a refusal leaves nothing behind
        with pytest.raises(ValueError, match=r"not JSON compliant"):
            canonical_json(value)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_the_bound_on_nesting_is_ours(opening: str) -> None:
    closing = opening.replace('"a":', "")[::-1].translate(str.maketrans("[{", "]}"))
    levels = 128 // len(closing)
    assert parse_json(opening * levels + "1" + closing * levels)
    with pytest.raises(ValueError, match="nested"):
        parse_json(opening * (levels + 1) + "1" + closing * (levels + 1))
    with pytest.raises(ValueError, match="nested"):
        parse_json(opening * 100_000)


def test_brackets_and_digits_inside_strings_and_side_by_side_do_not_count() -> None:
    assert parse_json(json.dumps("[" * 10_000 + '\\"{' * 1_000)).startswith("[")
    assert len(parse_json("[" + ",".join(["[1]"] * 5_000) + "]")) == 5_000
    assert parse_json(json.dumps(["9" * 10_000])) == ["9" * 10_000]


def test_the_bound_on_digits_does_not_depend_on_the_interpreters() -> None:
    before = sys.get_int_max_str_digits()
    try:
        for setting in (640, 0, before):
            sys.set_int_max_str_digits(setting)
            assert canonical_json(parse_json("9" * 600)) == "9" * 600
            with pytest.raises(ValueError, match="more than 600 digits"):
                parse_json("[" + "9" * 601 + "]")
            assert canonical_arguments("9" * 5_000) == '"' + "9" * 5_000 + '"'
    finally:
        sys.set_int_max_str_digits(before)


def test_an_unterminated_string_full_of_escapes_is_read_in_linear_time() -> None:
    with pytest.raises(ValueError, match="nterminated"):
        parse_json('"' + "\\\\" * 200_000)


@pytest.mark.parametrize(
    ("where", "key"),
    [
        (("r1", 0, 0, "add", "{}"), "r1:t0:c0:8cd3d75d37b27583"),
        (("r1", 0, 1, "add", "{}"), "r1:t0:c1:8cd3d75d37b27583"),
        (("r1", 3, 0, "book", '{"a":1}'), "r1:t3:c0:d3622eeb232da215"),
        (("r1", 0, 0, "ü", "{}"), "r1:t0:c0:494836d65a0a6706"),
    ],
)
def test_call_keys(where: tuple[str, int, int, str, str], key: str) -> None:
    run_id, turn, position, tool, arguments = where
    assert call_key(*where) == key
    assert key.endswith(sha256(tool.encode() + b"\0" + arguments.encode()).hexdigest()[:16])
    assert run_of_key(key) == run_id
    assert place_of_key(key) == (turn, position)


def test_a_key_knows_place_tool_and_arguments_apart() -> None:
    keys = {
        call_key(run, turn, position, tool, arguments)
        for run in ("a", "b")
        for turn in (0, 1)
        for position in (0, 1)
        for tool, arguments in (("x", '"y"'), ("x\0", '"y"'), ("y", '"x"'), ("x", '"yy"'))
    }
    assert len(keys) == 32


@pytest.mark.parametrize("key", ["", "r", "r:t1", "r:tx:c1:00", "r:t1:c1:00:00"])
def test_what_is_no_key_has_no_place(key: str) -> None:
    with pytest.raises(ValueError):
        place_of_key(key)


def test_places() -> None:
    assert (place(3), place(3, 0)) == ("turn:3", "turn:3:call:0")


@pytest.mark.parametrize("run_id", ["a", "A-Z_0.9", "x" * 128, "tau-airline-gpt4o-t003-r0"])
def test_run_ids(run_id: str) -> None:
    assert run_id_problem(run_id) is None


@pytest.mark.parametrize("run_id", ["", "x" * 129, "x" * 10_000, "a b", "a:b", "a/b", "ü", "\ud800", "a\n"])
def test_what_is_no_run_id_is_told_why(run_id: str) -> None:
    problem = run_id_problem(run_id)
    assert problem is not None
    assert problem.startswith("run_id")
    assert len(problem) < 100


# ---------------------------------------------------------------- digests


def test_golden_digests() -> None:
    empty = EMPTY_DIGEST
    agent = AgentSpec("a", "1", "Help.", "openai/gpt-4o")
    entry = MenuEntry("add", "math", "1", "tool-requests.math", "Adds.")
    found = {
        "nothing": chain_digest(empty),
        "none": chain_digest(empty, None),
        "empty text": chain_digest(empty, ""),
        "two parts": chain_digest(empty, "é", "\ud800"),
        "user": message_digest(empty, UserMessage("hi")),
        "assistant": message_digest(empty, AssistantMessage(None, (RecordedCall("c1", "add", "{}"),))),
        "tool": message_digest(empty, ToolMessage("c1", "add", "2", False)),
        "failed": message_digest(empty, ToolMessage("c1", "add", "2", True)),
        "base": base_digest(agent, (entry,)),
    }
    assert {name: digest[:16] for name, digest in found.items()} == GOLDEN_DIGESTS


GOLDEN_DIGESTS = {
    "nothing": "60e05bd1b195af2f",
    "none": "0dda78b18fcb8023",
    "empty text": "e3bdbcbf48cb21a8",
    "two parts": "ca2dcdb201febafd",
    "user": "87737b5d9f8bd965",
    "assistant": "fa93b42d0c99e30d",
    "tool": "2336749577921fb2",
    "failed": "25233f47b17bd122",
    "base": "e4ce378dea8d805d",
}


@given(st.lists(st.none() | ANY_TEXT, max_size=4), st.lists(st.none() | ANY_TEXT, max_size=4))
def test_other_parts_have_another_digest(one: list[str | None], other: list[str | None]) -> None:
    assert (chain_digest(EMPTY_DIGEST, *one) == chain_digest(EMPTY_DIGEST, *other)) == (one == other)


def test_what_the_request_is_made_of_is_in_its_base_digest() -> None:
    agent, entry = AgentSpec("a", "1", "Help.", "p/m"), MenuEntry("add", "math", "1", "t")
    base = base_digest(agent, (entry,))
    changed = [
        base_digest(agent._replace(instructions="Help!"), (entry,)),
        base_digest(agent._replace(model="p/n"), (entry,)),
        base_digest(agent._replace(model_settings='{"temperature":1}'), (entry,)),
        base_digest(agent, (entry._replace(parameters="{}"),)),
        base_digest(agent, (entry._replace(takes_text=True),)),
        base_digest(agent, (entry, entry)),
        base_digest(agent, ()),
    ]
    assert len({base, *changed}) == 8
    assert base_digest(agent._replace(turn_limit=7), (entry._replace(attempts=9),)) == base, (
        "the model never sees these"
    )


# ---------------------------------------------------------------- bounds


@given(ANY_TEXT, st.integers(60, 200))
def test_cutting_twice_is_cutting_once(text: str, most: int) -> None:
    text = text * 8
    for shorten, size in ((cut, len), (cut_bytes, utf8_size)):
        short = shorten(text, most)
        assert size(short) <= most
        assert shorten(short, most) == short
        assert short == text if size(text) <= most else text.startswith(short.removesuffix(CUT_MARK))


def test_backoff() -> None:
    assert [backoff_ms(200, attempt) for attempt in (1, 2, 3, 9, 10_000)] == [200, 400, 800, 51_200, 60_000]
    assert backoff_ms(0, 1) == backoff_ms(-5, 3) == 0
    assert backoff_ms(200, 0) == backoff_ms(200, -7) == 200
