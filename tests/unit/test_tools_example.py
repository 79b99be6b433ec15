"""The first tool of the README works as it stands there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.first_tool import forecast, tools
from services.tool_worker.__main__ import NoToolset, load
from turnlog.cli.errors import CliError
from turnlog.cli.worker import load_toolset
from turnlog.tools import ToolContext


def test_the_first_tool_can_be_loaded_and_called() -> None:
    assert load("examples.first_tool:tools") is tools
    ctx = ToolContext(key="r:t0:c0:x", run_id="r", turn=0, position=0, attempt=1, deadline=0.0)
    assert asyncio.run(forecast(ctx, "Hamburg")) == {"city": "Hamburg", "days": 1, "sky": "sunny"}
    assert [tool.name for tool in tools] == ["forecast"]


HEAD = 'from turnlog.tools import Toolset\n\ntools = Toolset("desk", version="1")\n\n\n'


@pytest.mark.parametrize("load_it", [load, load_toolset])
@pytest.mark.parametrize(
    ("module", "body", "said"),
    [
        (
            "bare",
            "@tools.tool\ndef note() -> str: ...\n",
            r"write @tools.tool\(\) with parentheses \(.*bare.py, line 6\)",
        ),
        ("torn", "def note( -> str: ...\n", r"\(.*torn.py, line 6\)"),
    ],
)
def test_what_is_wrong_with_a_module_of_tools_is_said_with_its_place(
    load_it: Callable[[str], object],
    module: str,
    body: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / f"{module}.py").write_text(HEAD + body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((NoToolset, CliError), match=said):
        load_it(f"{module}:tools")
