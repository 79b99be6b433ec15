"""What a tool is told about the call it serves."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from turnlog.core.records import ToolRequest
from turnlog.obs.logs import bound

_log = logging.getLogger("turnlog.tool")


class ToolContext:
    """One attempt of one call. Handed to every tool that asks for it as its first parameter; read only.

    `key` is the same on every attempt and redelivery of the call: hand it to the system behind the tool as its idempotency
    key, because a call may reach a tool more than once (see services/tool_worker/README.md).
    """

    __slots__ = ("_labels", "agent", "attempt", "deadline", "key", "position", "run_id", "turn")

    def __init__(
        self,
        *,
        key: str,
        run_id: str,
        turn: int,
        position: int,
        attempt: int,
        deadline: float,
        agent: str = "",
        labels: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.key = key
        self.run_id = run_id
        self.turn = turn
        """The turn of the run, from 0, and the call's position in the model's answer."""
        self.position = position
        self.attempt = attempt
        """1 for the first attempt that the loop asked for."""
        self.deadline = deadline
        """Seconds since the epoch: a result after it is reported as timed out."""
        self.agent = agent
        self._labels = labels

    @classmethod
    def of(cls, request: ToolRequest, deadline: float) -> ToolContext:
        """The context of a request. (Hot path: a third of what the constructor's keywords cost.)"""
        made = cls.__new__(cls)
        made.key = request.call_key
        made.run_id = request.run_id
        made.turn = request.turn
        made.position = request.position
        made.attempt = request.attempt
        made.deadline = deadline
        made.agent = request.agent
        made._labels = request.labels
        return made

    @property
    def labels(self) -> Mapping[str, str]:
        """The run's labels, as its start command gave them."""
        return dict(self._labels)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry run, turn and key."""
        return bound(_log, run=self.run_id, turn=self.turn, key=self.key)

    def remaining_s(self) -> float:
        """Seconds until the deadline, at least 0: a bound for requests to the systems behind the tool."""
        return max(0.0, self.deadline - time.time())
