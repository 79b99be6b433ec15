"""What can go wrong for a client, sorted by what the caller must do.

    ClientError
    ├── BadCommand        nothing was sent, and never will be: mend the command (also a ValueError)
    ├── CommandRefused    the loop said no; `outcome.reason` says why, for people
    ├── RunUnknown        no such run, or it was forgotten after `run_id_keep`
    ├── NotConnected      the cluster or the installation's topics are not there
    └── TimedOut          nothing is known yet; ask again (also a TimeoutError)
        └── NotAcknowledged   the command may still arrive; send it again with the same id

Errors of the log (`turnlog.kafka.port.LogError`) pass through where none of these fits.
"""

from __future__ import annotations

from turnlog.core.records import CommandOutcome


class ClientError(Exception):
    """Base of the client's errors."""


class BadCommand(ClientError, ValueError):
    """The command cannot be sent as it is."""


class CommandRefused(ClientError):
    """The loop refused the command, and nothing happened."""

    def __init__(self, outcome: CommandOutcome) -> None:
        what = "the start of" if outcome.kind == "start" else f"the {outcome.kind} for"
        super().__init__(f"{what} run {outcome.run_id!r} was refused: {outcome.reason}")
        self.outcome = outcome


class RunUnknown(ClientError):
    """There is no such run."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}")
        self.run_id = run_id


class NotConnected(ClientError):
    """The cluster does not answer, or is not set up for Turnlog."""


class TimedOut(ClientError, TimeoutError):
    """The time is over; what was asked for may still come."""


class NotAcknowledged(TimedOut):
    """The cluster did not acknowledge the command in time. It may still arrive: sending it again with the same id is safe."""
