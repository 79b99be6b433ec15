"""What the stories of the core's rules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnlog.core.agents import MenuEntry
from turnlog.core.transcript import ToolMessage
from turnlog.testing.given import Story, agent, tool

TOOLS = [tool("add"), tool("look"), tool("stop", ends_run=True), tool("think", takes_text=True)]


def started(menu: Sequence[MenuEntry] = TOOLS, **overrides: Any) -> Story:
    """A run whose model is asked for the first time."""
    return Story(agent(**overrides), menu).start()


def results(story: Story) -> list[tuple[str, bool]]:
    """Content and failed mark of the tool messages in the transcript."""
    return [(m.content, m.failed) for m in story.state.transcript if isinstance(m, ToolMessage)]
