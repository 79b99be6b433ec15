"""Errors of the core, sorted by what the caller must do.

    CoreError
    ├── UnknownCall      a result for a call this run never requested: dead letter
    ├── NotStarted       a message for a run that has no first step: dead letter, or refuse the command
    └── BadHistory       recorded events that this build cannot fold: stop this run, nothing else
"""

from __future__ import annotations


class CoreError(Exception):
    """Base of the core's errors; nothing was changed when one is raised."""


class UnknownCall(CoreError):
    """The run never requested this call."""


class NotStarted(CoreError):
    """The run has not started."""


class BadHistory(CoreError):
    """The events do not fit the state they are folded into."""
