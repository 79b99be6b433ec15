"""The toolset of the loop's bad-input tests: results that are awkward to carry."""

from __future__ import annotations

from turnlog.tools import ToolContext, Toolset

tools = Toolset("odd", version="1")


@tools.tool()
async def say(ctx: ToolContext, text: str) -> str:
    """Say it back, whatever it is."""
    return text


@tools.tool()
async def length(ctx: ToolContext, text: str) -> int:
    """How many characters it has."""
    return len(text)


@tools.tool()
async def nothing(ctx: ToolContext) -> float:
    """Not a number."""
    return float("nan")
