"""Errors of the codec, sorted by what the caller must do.

    CodecError
    ├── Unreadable           these bytes will never be read by this build: a dead letter, or in the journal a stop of the run
    ├── Unencodable          this record has no bytes: refuse whatever brought the value in
    ├── RegistryUnavailable  ask again later, unchanged; nothing is wrong with the record
    └── RegistryRefused      stop and tell the operator: the registry does not take our schema

`Unreadable.reason` is one of REASONS: stable words that stand in dead letters and metrics.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Reason = Literal[
    "null_value",
    "not_avro",
    "unknown_schema_id",
    "bad_bytes",
    "wrong_record",
    "unknown_event_kind",
]
REASONS: Final[tuple[str, ...]] = get_args(Reason)


class CodecError(Exception):
    """Whatever the codec raises on purpose."""


class Unreadable(CodecError):
    """Bytes that are no record of the kind expected. `detail` is a sentence for whoever looks at the dead letter."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


class Unencodable(CodecError):
    """A value that Avro cannot carry: a lone surrogate (UTF-8 has no bytes for it), a number outside 64 bits, a payload
    that is not of its event's kind. The message names the place."""


class RegistryUnavailable(CodecError):
    """The schema registry does not answer, or refuses us: the same request may succeed later."""


class RegistryRefused(CodecError):
    """The schema registry finds our schema incompatible, or lacks it where we may not register. Comes at start only."""
