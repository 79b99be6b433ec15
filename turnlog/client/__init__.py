"""Starting, steering and watching runs from Python.

    from turnlog.client import Client

    with Client.connect("localhost:9092") as client:
        run = client.submit("airline", "Please cancel my booking EHGLP3", run_id="case-4711")
        print(run.wait(timeout_s=60).answer)

Everything a client says is a command, and every command has an id: sending it again with the same id is the same command. A
start's id follows from its run id, so `submit` with a `run_id` of yours may be repeated after any crash or time-out.
"""

from turnlog.client.client import Client, RecordedEvent, RunHandle
from turnlog.client.commands import StartRequest, start_command_id
from turnlog.client.errors import (
    BadCommand,
    ClientError,
    CommandRefused,
    NotAcknowledged,
    NotConnected,
    RunUnknown,
    TimedOut,
)
from turnlog.client.watch import ended, idle

__all__ = [
    "BadCommand",
    "Client",
    "ClientError",
    "CommandRefused",
    "NotAcknowledged",
    "NotConnected",
    "RecordedEvent",
    "RunHandle",
    "RunUnknown",
    "StartRequest",
    "TimedOut",
    "ended",
    "idle",
    "start_command_id",
]
