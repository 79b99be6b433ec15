"""The decorator SDK: a toolset, its tools, and everything that can be wrong with one said at decoration."""

from __future__ import annotations

import dis
import inspect
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from turnlog.core.definitions import NAME, TIMEOUT_MS
from turnlog.core.limits import CALL_ATTEMPTS
from turnlog.core.records import ToolManifest
from turnlog.tools.context import ToolContext
from turnlog.tools.signature import ReadArguments, UnsupportedSignature, signature_of

NAME_PATTERN: Final = NAME
MOST_TIMEOUT_S: Final = TIMEOUT_MS / 1000
MOST_ATTEMPTS: Final = CALL_ATTEMPTS
MOST_SCHEMA_BYTES: Final = 64 * 1024

Function = TypeVar("Function", bound=Callable[..., Any])


def told_with_place(problem: ToolDefinitionError | SyntaxError) -> str:
    """What is wrong with a module of tools, and where: the last line of its traceback that is the tool team's own."""
    if isinstance(problem, SyntaxError):
        return f"{problem.msg} ({problem.filename}, line {problem.lineno})"
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename != __file__]
    return f"{problem} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else str(problem)


class ToolDefinitionError(Exception):
    """A toolset or tool that cannot be; the message names it and says what to change. Raised at decoration, never later."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as the worker runs it. Times in seconds."""

    name: str
    toolset: str
    version: str
    function: Callable[..., Any]
    description: str
    parameters: str
    """JSON Schema of the arguments, as text."""
    takes_text: bool
    ends_run: bool
    idempotent: bool
    timeout_s: float
    attempts: int
    backoff_s: float
    wants_context: bool
    is_async: bool
    never_suspends: bool
    """An async function without a single point where it could suspend: known from its code, not guessed."""
    read: ReadArguments

    def call(self, ctx: ToolContext, arguments: str) -> Any:
        """Call the function with the argument text of a request: its value, or the coroutine of an async tool.
        Raises BadArguments before the function runs, and whatever the function raises."""
        named = self.read(arguments)
        return self.function(ctx, **named) if self.wants_context else self.function(**named)

    def manifest(self, topic: str) -> ToolManifest:
        """What the loop learns of it: `topic` is where its requests go."""
        return ToolManifest(
            toolset=self.toolset,
            tool=self.name,
            version=self.version,
            topic=topic,
            description=self.description,
            parameters=self.parameters,
            takes_text=self.takes_text,
            ends_run=self.ends_run,
            idempotent=self.idempotent,
            timeout_ms=round(self.timeout_s * 1000),
            attempts=self.attempts,
            backoff_ms=round(self.backoff_s * 1000),
        )


class Toolset:
    """The tools that one team ships in one worker deployment, with one request topic.

    `version` is pinned by runs that start with it and shown to people; raise it when a tool changes its meaning.
    """

    def __init__(self, name: str, version: str) -> None:
        if not NAME_PATTERN.fullmatch(name):
            raise ToolDefinitionError(f"toolset {name!r}: a name has 1 to 64 of A-Z a-z 0-9 _ -")
        if not isinstance(version, str) or not 1 <= len(version) <= 64:
            raise ToolDefinitionError(
                f"toolset {name!r}: version must be a string of 1 to 64 characters, got {version!r}"
            )
        self.name = name
        self.version = version
        self._tools: dict[str, Tool] = {}

    def __repr__(self) -> str:
        return f"Toolset({self.name!r}, version={self.version!r}, tools={list(self._tools)})"

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def tool(
        self,
        _no_parentheses: None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        takes_text: bool = False,
        ends_run: bool = False,
        idempotent: bool = True,
        timeout_s: float = 60.0,
        attempts: int = 3,
        backoff_s: float = 0.2,
    ) -> Callable[[Function], Function]:
        """Make a function a tool; the function itself is returned unchanged, so it stays callable and testable.

        name, description   from the function's name and docstring unless given
        parameters          JSON Schema shown to the model instead of the signature's; needed with `**arguments`
        takes_text          the one argument is the model's raw text, JSON or not; `parameters` is then shown and never checked
        ends_run            a successful call ends the run
        idempotent          False is recorded for people and policies. Claims come later: today every tool runs *at least
                            once*, so hand `ctx.key` to the system behind it
        timeout_s           for the call, all attempts together; an async tool is cancelled then, a thread cannot be
        attempts            how often the loop asks at most when attempts fail retryably, `backoff_s` apart (doubling)

        `def` tools run in a bounded pool of threads, `async def` tools in one event loop, which they must not block.
        Raises ToolDefinitionError.
        """
        if _no_parentheses is not None:
            raise ToolDefinitionError("write @tools.tool() with parentheses")

        def register(function: Function) -> Function:
            made = name if name is not None else getattr(function, "__name__", "")
            self._check(made, timeout_s, attempts, backoff_s)
            try:
                _check_function(function)
                signature = signature_of(function, takes_text=takes_text, parameters=parameters)
            except UnsupportedSignature as problem:
                raise ToolDefinitionError(f"tool {made!r}: {problem}") from None
            if len(signature.parameters) > MOST_SCHEMA_BYTES:
                raise ToolDefinitionError(f"tool {made!r}: its schema has more than {MOST_SCHEMA_BYTES} bytes")
            self._tools[made] = Tool(
                name=made,
                toolset=self.name,
                version=self.version,
                function=function,
                description=signature.description if description is None else description,
                parameters=signature.parameters,
                takes_text=takes_text,
                ends_run=ends_run,
                idempotent=idempotent,
                timeout_s=float(timeout_s),
                attempts=attempts,
                backoff_s=float(backoff_s),
                wants_context=signature.wants_context,
                is_async=_is_async(function),
                never_suspends=_never_suspends(function),
                read=signature.read,
            )
            return function

        return register

    def _check(self, name: str, timeout_s: float, attempts: int, backoff_s: float) -> None:
        if not NAME_PATTERN.fullmatch(name):
            raise ToolDefinitionError(f"tool {name!r}: a name has 1 to 64 of A-Z a-z 0-9 _ -; give one with name=")
        if name in self._tools:
            raise ToolDefinitionError(f"tool {name!r}: toolset {self.name!r} has a tool of that name already")
        if not 0 < timeout_s <= MOST_TIMEOUT_S:
            raise ToolDefinitionError(
                f"tool {name!r}: timeout_s must be above 0 and at most {MOST_TIMEOUT_S:g}, got {timeout_s}"
            )
        if not 1 <= attempts <= MOST_ATTEMPTS:
            raise ToolDefinitionError(f"tool {name!r}: attempts must be 1 to {MOST_ATTEMPTS}, got {attempts}")
        if not 0 <= backoff_s <= 3600:
            raise ToolDefinitionError(f"tool {name!r}: backoff_s must be 0 to 3600, got {backoff_s}")


def _check_function(function: Any) -> None:
    if isinstance(function, type):
        raise UnsupportedSignature("a class cannot be a tool: give a function or a bound method")
    if not callable(function):
        raise UnsupportedSignature(f"{type(function).__name__} is not callable")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UnsupportedSignature("generators are not supported: return the whole result")


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


_SUSPENDING: Final = frozenset({"GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "YIELD_VALUE", "SEND"})
# Names that need a running event loop although nothing is awaited (`asyncio.create_task(...)`, fire and forget).
_LOOP_NAMES: Final = frozenset(
    {"asyncio", "anyio", "trio", "create_task", "ensure_future", "get_running_loop", "get_event_loop"}
)


def _never_suspends(function: Callable[..., Any]) -> bool:
    """Whether an async function surely returns in its first step: no await, async with or async for in its code, and no
    mention of an event loop. (A wrapped or partial function has an await or no code: not known, so False.)"""
    if not isinstance(function, types.FunctionType) or not inspect.iscoroutinefunction(function):
        return False
    code = function.__code__
    if not code.co_flags & inspect.CO_COROUTINE or _LOOP_NAMES & {*code.co_names, *code.co_freevars}:
        return False
    return not any(instruction.opname in _SUSPENDING for instruction in dis.get_instructions(code))
