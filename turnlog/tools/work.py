"""The worker's two words: a request record that is owed an answer, and the execution that answers one or more of them."""

from __future__ import annotations

import asyncio

from turnlog.core.records import ToolRequest
from turnlog.kafka.port import Received
from turnlog.tools.context import ToolContext
from turnlog.tools.offsets import OffsetTracker
from turnlog.tools.toolset import Tool


class Owed:
    """One request record: every one gets exactly one answer, refusal or dead letter before its offset may be committed.

    `topic`, `value` and `partition` are what leaves for it, once that is known."""

    __slots__ = ("arrived", "expires", "partition", "record", "request", "size", "topic", "tracker", "value", "watched")

    request: ToolRequest
    """Set once it was read; an Owed without it never leaves the reader but as a dead letter."""
    arrived: float
    expires: float
    """Both on the monotonic clock; `expires` is the request's `not_after`."""
    topic: str
    value: bytes
    partition: int | None

    def __init__(self, record: Received, tracker: OffsetTracker) -> None:
        self.record = record
        self.tracker = tracker
        self.size = len(record.value or b"")
        self.watched = 0
        """Its entry among the desk's deadlines; 0 without one."""


class Execution:
    """One run of a tool for one key. Duplicates that arrive meanwhile join `owed`.

    Fields change under the desk's lock. Whoever takes an Owed out of `owed` answers it: nobody else will.
    """

    __slots__ = (
        "abandoned",
        "attempt",
        "deadline",
        "expires",
        "key",
        "overrun",
        "owed",
        "request",
        "started",
        "task",
        "tool",
    )

    def __init__(self, tool: Tool, owed: Owed) -> None:
        self.tool = tool
        self.request = owed.request
        self.key = owed.request.call_key
        self.attempt = owed.request.attempt
        self.owed = [owed]
        self.expires = owed.expires
        self.started: float | None = None
        """On the monotonic clock; None while it waits for its turn."""
        self.deadline = 0.0
        """Seconds since the epoch, for the tool's context."""
        self.abandoned = False
        """Nobody waits for it any more: not to be started."""
        self.overrun = False
        """It runs past the time of everybody who waited for it."""
        self.task: asyncio.Task[None] | None = None

    def context(self) -> ToolContext:
        return ToolContext.of(self.request, self.deadline)

    def due(self, owed: Owed) -> float:
        """When the patience of one of those who wait is over: the tool's time from the start (or its own arrival, if later),
        never after its `not_after`."""
        if self.started is None:
            return owed.expires
        return min(owed.expires, max(self.started, owed.arrived) + self.tool.timeout_s)
