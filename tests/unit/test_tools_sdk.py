"""The decorator SDK: schemas from signatures, coercion, and what is refused at decoration."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from turnlog.tools import ToolContext, ToolDefinitionError, Toolset
from turnlog.tools.signature import BadArguments


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Line(BaseModel):
    sku: str
    count: int = Field(1, ge=1, description="How many.")


def one(function: Callable[..., Any], **options: Any) -> Any:
    tools = Toolset("shop", version="7")
    tools.tool(**options)(function)
    return next(iter(tools))


CTX = ToolContext(key="r:t0:c0:x", run_id="r", turn=0, position=0, attempt=1, deadline=0.0, labels=(("a", "b"),))


async def order(
    ctx: ToolContext,
    order_id: str,
    amount: Decimal,
    lines: list[Line],
    when: date | None = None,
    size: Size = Size.SMALL,
    mode: Literal["fast", "slow"] = "fast",
    note: Annotated[str, Field(description="For the driver.", max_length=5)] = "",
) -> str:
    """Place an order.

    It is placed at once.

    Args:
        order_id: The order's number,
            as printed.
        amount (Decimal): In euros.
        note: Never seen, the annotation wins.

    Returns:
        Nothing of use.
    """
    return f"{ctx.key}|{order_id}|{amount!r}|{lines!r}|{when!r}|{size!r}|{mode}|{note}"


def test_the_schema_follows_the_signature_and_the_docstring() -> None:
    tool = one(order, timeout_s=1.5, backoff_s=0.25)
    schema = json.loads(tool.parameters)
    assert tool.description == "Place an order.\n\nIt is placed at once."
    assert schema["required"] == ["order_id", "amount", "lines"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert list(properties) == ["order_id", "amount", "lines", "when", "size", "mode", "note"]
    assert properties["order_id"] == {"type": "string", "description": "The order's number, as printed."}
    assert properties["amount"]["description"] == "In euros."
    assert properties["note"] == {"type": "string", "description": "For the driver.", "maxLength": 5, "default": ""}
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert properties["size"]["default"] == "s"
    assert properties["when"]["default"] is None
    assert schema["$defs"]["Line"]["properties"]["count"]["minimum"] == 1
    manifest = tool.manifest("topic")
    assert (manifest.timeout_ms, manifest.backoff_ms, manifest.attempts) == (1500, 250, 3)
    assert (manifest.toolset, manifest.tool, manifest.version, manifest.topic) == ("shop", "order", "7", "topic")


def run(coroutine: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    return end.value.value


def test_arguments_are_coerced() -> None:
    text = '{"order_id":"o","amount":"1.10","lines":[{"sku":"x","count":"2"}],"when":"2026-01-02","size":"l"}'
    found = run(one(order).call(CTX, text))
    assert found == (
        "r:t0:c0:x|o|Decimal('1.10')|[Line(sku='x', count=2)]|datetime.date(2026, 1, 2)|<Size.LARGE: 'l'>|fast|"
    )


def test_absent_arguments_get_the_functions_own_defaults() -> None:
    marker = object()

    def tool(a: int, b: Any = marker) -> bool:
        return b is marker

    assert one(tool).call(CTX, '{"a":1}') is True


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"order_id":1,"lines":[]}', "order_id: Input should be a valid string; amount: Field required"),
        ('{"order_id":"o","amount":1,"lines":[{"sku":"x","count":0}]}', "lines.0.count: Input should be greater"),
        ('{"order_id":"o","amount":1,"lines":[],"extra":1}', "extra: Extra inputs are not permitted"),
        ("[]", "arguments: Input should be"),
        ("nope", "are not JSON"),
        ('{"order_id":NaN}', "order_id"),
        ("[" * 100_000, "nested"),
    ],
)
def test_bad_arguments_say_how_to_mend_the_call(text: str, hint: str) -> None:
    with pytest.raises(BadArguments, match="again") as problem:
        one(order).call(CTX, text)
    assert hint in str(problem.value)


def test_a_lone_surrogate_in_an_argument_reaches_the_tool() -> None:
    def tool(q: str) -> str:
        return q

    assert one(tool).call(CTX, '{"q":"\\ud800"}') == "\ud800"


def test_text_tools_get_the_raw_text() -> None:
    def think(thought: str) -> str:
        return thought

    tool = one(think, takes_text=True)
    assert tool.call(CTX, "no {json} at all") == "no {json} at all"
    assert tool.manifest("t").takes_text


def test_an_explicit_schema_replaces_what_is_shown() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}}

    def raw(ctx: ToolContext, /, **arguments: Any) -> Any:
        return arguments

    tool = one(raw, parameters=schema, name="renamed", description="Mine.")
    assert (tool.name, tool.description) == ("renamed", "Mine.")
    assert tool.parameters == '{"type":"object","properties":{"b":{"type":"string"},"a":{}}}'
    assert tool.call(CTX, '{"ctx":1,"b":2}') == {"ctx": 1, "b": 2}
    with pytest.raises(BadArguments, match="no object"):
        tool.call(CTX, "[]")


def test_methods_partials_and_callable_objects_are_tools() -> None:
    class Shop:
        def sell(self, ctx: ToolContext, item: str) -> str:
            return item

        async def __call__(self, item: str) -> str:
            return item

    def two(first: str, second: str) -> str:
        return first + second

    assert one(Shop().sell).call(CTX, '{"item":"x"}') == "x"
    called = one(Shop(), name="shop")
    assert called.is_async
    assert run(called.call(CTX, '{"item":"x"}')) == "x"
    bound = one(functools.partial(two, second="!"), name="two")
    assert bound.call(CTX, '{"first":"x"}') == "x!"


def varargs(*args: str) -> None: ...
def kwargs(**more: str) -> None: ...
def untyped(a) -> None: ...  # type: ignore[no-untyped-def]
def untyped_ctx(ctx, a: int) -> None: ...  # type: ignore[no-untyped-def]
def late_ctx(a: int, ctx: ToolContext) -> None: ...
def positional(a: int, /) -> None: ...
def unknown_type(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def no_json(a: Callable[[], int]) -> None: ...
def generator(a: int) -> Any:
    yield a


async def stream(a: int) -> Any:
    yield a


def two_texts(a: str, b: str) -> None: ...
def fine(a: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (varargs, {}, r"tool 'varargs': \*args is not supported"),
        (kwargs, {}, "needs an explicit JSON Schema"),
        (untyped, {}, "parameter 'a' has no type"),
        (untyped_ctx, {}, "write `ctx: ToolContext`"),
        (late_ctx, {}, "must be the first parameter"),
        (positional, {}, "positional-only"),
        (unknown_type, {}, "'Missing' is not known"),
        (no_json, {}, "JSON"),
        (generator, {}, "generators are not supported"),
        (stream, {}, "generators are not supported"),
        (Line, {}, "a class cannot be a tool"),
        (two_texts, {"takes_text": True}, "one parameter for the text"),
        (fine, {"parameters": {"type": "string"}}, "JSON Schema of an object"),
        (fine, {"parameters": {"type": "object", "x": object()}}, "no JSON"),
        (fine, {"name": "with space"}, "1 to 64 of"),
        (fine, {"name": ""}, "1 to 64 of"),
        (fine, {"name": "x" * 65}, "1 to 64 of"),
        (fine, {"timeout_s": 0}, "timeout_s must be above 0"),
        (fine, {"timeout_s": float("nan")}, "timeout_s must be above 0"),
        (fine, {"attempts": 0}, "attempts must be 1 to"),
        (fine, {"backoff_s": -1}, "backoff_s must be"),
        (lambda a: a, {}, "give one with name="),
    ],
)
def test_what_cannot_be_a_tool_is_said_at_decoration(function: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolDefinitionError, match=message):
        one(function, **options)


def test_names_are_unique_and_toolsets_have_names_and_versions() -> None:
    tools = Toolset("shop", version="1")
    tools.tool()(fine)
    with pytest.raises(ToolDefinitionError, match="already"):
        tools.tool()(fine)
    with pytest.raises(ToolDefinitionError, match="a name has"):
        Toolset("a.b", version="1")
    with pytest.raises(ToolDefinitionError, match="version must be"):
        Toolset("shop", version=1)  # type: ignore[arg-type]
    with pytest.raises(ToolDefinitionError, match="parentheses"):
        tools.tool(fine)  # type: ignore[arg-type]


def test_the_decorator_returns_the_function_itself() -> None:
    tools = Toolset("shop", version="1")
    assert tools.tool()(fine) is fine


async def helper() -> None: ...
async def at_once(a: int) -> int:
    return a + 1


async def awaits(a: int) -> None:
    await helper()


async def enters(a: int) -> None:
    async with a:  # type: ignore[attr-defined]
        pass


async def loops(a: int) -> None:
    async for _ in a:  # type: ignore[attr-defined]
        pass


async def fires(a: int) -> None:
    import asyncio

    asyncio.get_running_loop()


@pytest.mark.parametrize(
    ("function", "surely"),
    [(at_once, True), (awaits, False), (enters, False), (loops, False), (fires, False), (fine, False)],
)
def test_whether_a_tool_can_suspend_is_known_from_its_code(function: Any, surely: bool) -> None:
    assert one(function).never_suspends is surely


def test_the_context_knows_its_call() -> None:
    assert CTX.labels == {"a": "b"}
    assert CTX.remaining_s() == 0.0
    assert CTX.logger.extra == {"run": "r", "turn": 0, "key": "r:t0:c0:x"}


def test_a_text_tool_may_show_a_schema_that_nothing_is_checked_against() -> None:
    tools = Toolset("thoughts", version="1")
    shown = {"type": "object", "properties": {"thought": {"type": "string"}}, "required": ["thought"]}

    @tools.tool(takes_text=True, parameters=shown)
    def think(text: str) -> str:
        return text

    (tool,) = tools
    assert json.loads(tool.manifest("topic").parameters) == shown
    assert tool.manifest("topic").takes_text
