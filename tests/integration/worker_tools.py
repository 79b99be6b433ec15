"""The toolset that the worker's integration tests run in processes of their own. Effects go to the file EFFECTS names: one line
`<key> <attempt> <pid> <start|end>` each, written with one system call, so that kill -9 loses none."""

from __future__ import annotations

import asyncio
import os
import time

from turnlog.tools import ToolContext, Toolset

tools = Toolset("shop", version=os.environ.get("SHOP_VERSION", "1"))


def effect(ctx: ToolContext, what: str) -> None:
    with open(os.environ["EFFECTS"], "ab", buffering=0) as file:
        file.write(f"{ctx.key} {ctx.attempt} {os.getpid()} {what}\n".encode())


@tools.tool()
async def quick(ctx: ToolContext, n: int) -> str:
    """Answer at once."""
    effect(ctx, "end")
    return f"quick {n}"


@tools.tool(timeout_s=20)
async def slow(ctx: ToolContext, seconds: float) -> str:
    """Answer after a while."""
    effect(ctx, "start")
    await asyncio.sleep(seconds)
    effect(ctx, "end")
    return "slow"


if "SHOP_WITHOUT_BLOCKING" not in os.environ:

    @tools.tool(timeout_s=20)
    def blocking(ctx: ToolContext, seconds: float) -> str:
        """Keep a thread for a while."""
        effect(ctx, "start")
        time.sleep(seconds)
        effect(ctx, "end")
        return "blocking"
