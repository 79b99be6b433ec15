"""What a call's end means: results as text, failures sorted, every limit at its edge."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import itertools
import json
import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from turnlog.core.ids import canonical_json
from turnlog.core.limits import ERROR_CHARS, VALUE_BYTES
from turnlog.tools import ToolFailure
from turnlog.tools.failures import Verdict, classify, failed, sound
from turnlog.tools.results import succeeded


class Point(BaseModel):
    y: int
    x: Decimal


@dataclasses.dataclass
class Pair:
    b: int
    a: datetime


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),
        ('{"not": touched}', '{"not": touched}'),
        ("Grüße 🙂", "Grüße 🙂"),
        (None, "null"),
        (True, "true"),
        ({"b": 1, "a": [1, 2.5, None]}, '{"a":[1,2.5,null],"b":1}'),
        (Point(y=1, x=Decimal("1.10")), '{"x":"1.10","y":1}'),
        (Pair(1, datetime(2026, 1, 2, tzinfo=UTC)), '{"a":"2026-01-02T00:00:00Z","b":1}'),
        ([UUID(int=1)], '["00000000-0000-0000-0000-000000000001"]'),
        ({"deep": [Point(y=1, x=Decimal(2))]}, '{"deep":[{"x":"2","y":1}]}'),
        ({"lone": "\ud800"}, '{"lone":"\\ud800"}'),
    ],
)
def test_results_as_text(value: Any, text: str) -> None:
    outcome = succeeded(value, "tool", "w")
    assert (outcome.status, outcome.content, outcome.worker) == ("ok", text, "w")


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], {"a": Decimal("NaN"), "b": float("nan")}, object(), {"a": object()}]
)
def test_what_is_no_json_is_the_tool_teams_error(value: Any) -> None:
    outcome = succeeded(value, "mine", "w")
    assert (outcome.status, outcome.error, outcome.retryable, outcome.fatal) == ("error", "bad_result", False, False)
    assert "'mine' is not JSON" in outcome.content
    assert "did happen" in outcome.content


def test_circles_and_depth_are_errors_too() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert succeeded(circle, "t").error == "bad_result"
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert succeeded(deep, "t").error == "bad_result"


def test_an_awaitable_from_a_plain_function_is_a_broken_tool() -> None:
    async def hidden() -> None: ...

    outcome = succeeded(hidden(), "t")
    assert (outcome.error, outcome.status) == ("broken_tool", "error")


def test_the_size_limit_counts_utf8_bytes() -> None:
    assert succeeded("é" * (VALUE_BYTES // 2), "t").status == "ok"
    over = succeeded("é" * (VALUE_BYTES // 2) + "x", "t")
    assert over.error == "result_too_large"
    assert f"{VALUE_BYTES + 1} bytes, at most {VALUE_BYTES}" in over.content
    assert succeeded("x" * (VALUE_BYTES + 1), "t").error == "result_too_large"
    assert succeeded(["x" * VALUE_BYTES], "t").error == "result_too_large"


@given(st.text(st.characters(codec=None)))
def test_every_string_result_can_travel(text: str) -> None:
    outcome = succeeded(text, "t")
    outcome.content.encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        assert outcome.content == sound(text)
    else:
        assert outcome.content == text


def test_lone_surrogates_become_the_replacement_character_and_pairs_join() -> None:
    assert sound("a\ud800b") == "a\ufffdb"
    assert sound("\ud83d\ude42\udfff") == "🙂\ufffd"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values.filter(lambda value: not isinstance(value, str)))
def test_plain_values_are_canonical_json(value: Any) -> None:
    outcome = succeeded(value, "t")
    assert outcome.content == canonical_json(value)
    assert json.loads(outcome.content) == value


# ---------------------------------------------------------------- failures


def test_a_tools_own_failure_is_told_in_its_own_words() -> None:
    outcome = failed(ToolFailure("Only paid orders.", retryable=True, fatal=True), "w")
    assert outcome == ("error", "Only paid orders.", "tool_failed", True, True, "w")


def test_error_text_is_bounded_and_can_travel() -> None:
    for error in (ToolFailure("x" * 5000), ValueError("x" * 5000)):
        assert len(failed(error).content) == ERROR_CHARS
    assert failed(ValueError("a\ud800")).content == "ValueError: a\ufffd"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_other_exceptions_show_type_and_message_and_no_traceback() -> None:
    assert failed(KeyError("x")).content == "KeyError: 'x'"
    assert failed(ValueError()).content == "ValueError: (no message)"
    assert failed(Unspeakable()).content == "Unspeakable: (its message cannot be shown)"


class Mine(Exception):
    pass


def caused(*chain: BaseException) -> BaseException:
    for error, cause in itertools.pairwise(chain):
        error.__cause__ = cause
    return chain[0]


PASSING = Verdict("unreachable", True)
PLAIN = Verdict("exception", False)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ValueError("x"), PLAIN),
        (Mine("x"), PLAIN),
        (ConnectionResetError(), PASSING),
        (BrokenPipeError(), PASSING),
        (TimeoutError(), PASSING),
        (asyncio.CancelledError(), PASSING),
        (sqlite3.OperationalError("database is locked"), PASSING),
        (PermissionError(), PLAIN),
        (FileNotFoundError(), PLAIN),
        (NotImplementedError(), Verdict("broken_tool", False)),
        (SystemExit(1), Verdict("broken_tool", False)),
        (caused(Mine(), ConnectionRefusedError()), PASSING),
        (caused(RuntimeError(), Mine(), ToolFailure("x", retryable=True)), Verdict("tool_failed", True)),
        (caused(Mine(), Mine(), Mine(), Mine(), ConnectionRefusedError()), PASSING),
        (caused(Mine(), Mine(), Mine(), Mine(), Mine(), ConnectionRefusedError()), PLAIN),
        (caused(ConnectionRefusedError(), ToolFailure("fatal", fatal=True)), PASSING),
    ],
)
def test_classification(error: BaseException, verdict: Verdict) -> None:
    assert classify(error) == verdict


def test_context_counts_as_cause_unless_it_is_hidden() -> None:
    error = Mine()
    error.__context__ = ConnectionResetError()
    assert classify(error) == PASSING
    error.__suppress_context__ = True  # what `raise ... from None` sets
    assert classify(error) == PLAIN


def test_a_single_error_of_a_task_group_speaks_for_itself() -> None:
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [ToolFailure("Mine.", retryable=True)])])
    assert failed(group)[:5] == ("error", "Mine.", "tool_failed", True, False)
    assert classify(ExceptionGroup("two", [ConnectionResetError(), ValueError()])) == PLAIN


def test_libraries_are_known_by_name() -> None:
    assert classify(httpx.ConnectTimeout("x")) == PASSING
    assert classify(httpx.InvalidURL("x")) == PLAIN


BUILTIN_RETRYABLE = {
    "BlockingIOError", "BrokenPipeError", "ConnectionAbortedError", "ConnectionError", "ConnectionRefusedError",
    "ConnectionResetError", "InterruptedError", "MemoryError", "TimeoutError",
}  # fmt: skip
BUILTIN_BROKEN = {
    "GeneratorExit", "ImportError", "IndentationError", "KeyboardInterrupt", "ModuleNotFoundError", "NameError",
    "NotImplementedError", "SyntaxError", "SystemExit", "TabError", "UnboundLocalError",
}  # fmt: skip


def test_every_builtin_exception_has_its_verdict() -> None:
    found: dict[str, set[str]] = {"unreachable": set(), "broken_tool": set(), "exception": set()}
    for name, kind in vars(builtins).items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)) or issubclass(kind, Warning):
            continue
        if kind.__name__ == name:
            groups = issubclass(kind, BaseExceptionGroup)
            error = kind.__new__(kind, "several", [ValueError(), KeyError()]) if groups else kind.__new__(kind)
            found[classify(error).error].add(name)
    assert found["unreachable"] == BUILTIN_RETRYABLE
    assert found["broken_tool"] == BUILTIN_BROKEN
