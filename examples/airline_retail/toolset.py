"""The tau2 tools of both domains as Turnlog toolsets, with the schemas that were offered to the recorded model.

    python -m services.tool_worker examples.airline_retail.toolset:airline examples.airline_retail.toolset:retail

The world's file is named by AIRLINE_RETAIL_WORLD (default: airline_retail.sqlite in the working directory). Several workers
may share it. AIRLINE_RETAIL_LOOK_UP=no takes the ledger look-up out, for the test that shows what redelivery does then.
"""

import functools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.airline_retail.recording import DOMAINS, FREE_TEXT_TOOLS, RUN_ENDING_TOOLS, load_tools
from examples.airline_retail.world import World
from turnlog.tools import ToolContext, ToolFailure, Toolset

WORLD_VARIABLE = "AIRLINE_RETAIL_WORLD"
LOOK_UP_VARIABLE = "AIRLINE_RETAIL_LOOK_UP"
VERSION = "tau2-26.3"
TIMEOUT_S = 3600.0
"""A call takes a millisecond. But it may find the broker down or its worker killed, several times over, and a call that timed
out is another result than the recorded one: the bound on the whole play is what ends a play that hangs."""

_opening = threading.Lock()


def _toolset(domain: str) -> Toolset:
    tools = Toolset(domain, version=VERSION)
    for offered in load_tools(domain):
        function = offered["function"]
        name = function["name"]
        free_text = name in FREE_TEXT_TOOLS
        register = tools.tool(
            name=name,
            description=function["description"],
            parameters=function["parameters"],
            takes_text=free_text,
            ends_run=name in RUN_ENDING_TOOLS,
            timeout_s=TIMEOUT_S,
        )
        register(_text_tool(domain, name) if free_text else _json_tool(domain, name))
    return tools


def _json_tool(domain: str, name: str) -> Callable[..., str]:
    def run(ctx: ToolContext, **arguments: Any) -> str:
        return _execute(ctx, domain, name, json.dumps(arguments))

    return run


def _text_tool(domain: str, name: str) -> Callable[..., str]:
    def run(ctx: ToolContext, text: str) -> str:
        return _execute(ctx, domain, name, text)

    return run


def _execute(ctx: ToolContext, domain: str, name: str, arguments: str) -> str:
    """The tool's answer. Raises ToolFailure with its words when it refuses: the model reads them, and the run goes on."""
    outcome = _world().execute(ctx.run_id, domain, ctx.key, name, arguments)
    if outcome.error:
        raise ToolFailure(outcome.content)
    return outcome.content


def _world() -> World:
    with _opening:
        return _open_world(os.environ.get(WORLD_VARIABLE, "airline_retail.sqlite"), os.environ.get(LOOK_UP_VARIABLE))


@functools.cache
def _open_world(path: str, look_up: str | None) -> World:
    world = World(Path(path), look_up=look_up != "no")
    world.preload(*DOMAINS)
    return world


airline = _toolset("airline")
retail = _toolset("retail")
