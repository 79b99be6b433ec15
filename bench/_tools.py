"""The tools of the standard work: they do nothing, so that what is measured is everything around them."""

from __future__ import annotations

from turnlog.tools import Toolset

RESULT = "r" * 150
"""With its envelope a result then has about 300 bytes."""

tools = Toolset("bench", version="1")


@tools.tool()
async def bench_a(n: int) -> str:
    """Gives a constant."""
    return RESULT


@tools.tool()
async def bench_b(n: int) -> str:
    """Gives a constant, too."""
    return RESULT
