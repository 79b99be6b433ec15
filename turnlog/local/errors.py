"""What can go wrong on one machine, each with the one thing that helps.

LocalError
├── NoJava            no Java 17 or newer
├── NoNetwork         jars are not cached and the repository cannot be reached
├── BadDownload       what came is not what the lock names
├── PortTaken         an explicitly named port is in use
├── DiskFull          too little room to start, or the broker died of it
├── AlreadyRunning    a broker of this state directory is alive
├── SystemRunning     a whole system runs from it
├── ForeignData       the state directory holds data that this Kafka must not open
├── BrokerDied        the broker ended while starting
├── BrokerSlow        the broker lives but does not serve within the deadline
└── ChildFailed       a service ended, or is not ready within the deadline
"""

from __future__ import annotations


class LocalError(Exception):
    """One line that says what happened, and one that says what to do about it.

    `str()` gives both, as a command line prints them; `detail` (a log's last words) follows when there is any.
    """

    def __init__(self, message: str, remedy: str, *, detail: str = "") -> None:
        super().__init__(message, remedy, detail)
        self.message = message
        self.remedy = remedy
        self.detail = detail

    def __str__(self) -> str:
        lines = [self.message, f"  what helps: {self.remedy}"]
        if self.detail:
            lines += ["  its last words:", *(f"    {line}" for line in self.detail.splitlines())]
        return "\n".join(lines)


class NoJava(LocalError):
    """No Java that can run Kafka, or the one that was asked for cannot."""


class NoNetwork(LocalError):
    """Something must be fetched and its source cannot be reached."""


class BadDownload(LocalError):
    """A fetched file differs from the lock, or does not exist under its coordinates."""


class PortTaken(LocalError):
    """A port that was asked for by number is in use."""


class DiskFull(LocalError):
    """Too little disk for the broker's data or for Kafka's jars."""


class AlreadyRunning(LocalError):
    """A live broker owns the state directory; `bootstrap` and `pid` name it."""

    def __init__(self, message: str, remedy: str, *, bootstrap: str, pid: int) -> None:
        super().__init__(message, remedy)
        self.bootstrap = bootstrap
        self.pid = pid


class SystemRunning(LocalError):
    """Another supervisor runs a whole system from the state directory."""


class ForeignData(LocalError):
    """Data that a newer Kafka, or something else, wrote."""


class BrokerDied(LocalError):
    """The broker's process ended before it served; `detail` has its log's last words."""


class BrokerSlow(LocalError):
    """The broker did not serve before the deadline."""


class ChildFailed(LocalError):
    """A supervised service ended or did not become ready; `detail` has its log's last words."""
