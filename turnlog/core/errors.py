"""Errors of the core, sorted by what the caller must do.

CoreError
├── UnknownCall      a result for a call this run never requested: dead letter
├── NotStarted       a message for a run that has no first step: dead letter, or refuse the command
├── Unrecordable     a command too large for the journal: refuse it
└── BadHistory       recorded events that this build cannot fold: stop this run, nothing else
"""

from __future__ import annotations


class CoreError(Exception):
    """Base of the core's errors. All but BadHistory are raised before anything was changed."""


class UnknownCall(CoreError):
    """The run never requested this call."""


class NotStarted(CoreError):
    """The run has not started."""


class Unrecordable(CoreError):
    """The command has more bytes than one step of the journal may have; the message says which part and how many are allowed."""


class BadHistory(CoreError):
    """The events do not fit the state they are folded into: an unknown kind, a missing or foreign payload, an impossible order.
    The state may have been changed in part; drop it."""
