"""The first tool of the README works as it stands there."""

from __future__ import annotations

import asyncio

from examples.first_tool import forecast, tools
from services.tool_worker.__main__ import load
from turnlog.tools import ToolContext


def test_the_first_tool_can_be_loaded_and_called() -> None:
    assert load("examples.first_tool:tools") is tools
    ctx = ToolContext(key="r:t0:c0:x", run_id="r", turn=0, position=0, attempt=1, deadline=0.0)
    assert asyncio.run(forecast(ctx, "Hamburg")) == {"city": "Hamburg", "days": 1, "sky": "sunny"}
    assert [tool.name for tool in tools] == ["forecast"]
