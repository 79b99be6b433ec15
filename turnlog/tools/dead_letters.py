"""A request that cannot be taken, as the record that says so, cut so that it fits into a record itself."""

from __future__ import annotations

import hashlib
from typing import Final

from turnlog.core.records import DeadLetter, Header, InputRef
from turnlog.kafka.port import Received
from turnlog.tools.failures import sound

DEAD_LETTER_VALUE_BYTES: Final = 512 * 1024
DEAD_LETTER_KEY_BYTES: Final = 64 * 1024
DEAD_LETTER_HEADER_BYTES: Final = 64 * 1024


def dead_letter(record: Received, reason: str, detail: str, service: str, at: int) -> DeadLetter:
    """`size` and `sha256` are those of the whole value; headers beyond 64 KiB are left out."""
    value, key = record.value, record.key
    extra = sum(len(name) + len(content or b"") for name, content in record.headers)
    headers = record.headers if extra <= DEAD_LETTER_HEADER_BYTES else ()
    return DeadLetter(
        source=InputRef(record.topic, record.partition, record.offset),
        reason=reason,
        detail=sound(detail[:2000]),
        key=None if key is None else key[:DEAD_LETTER_KEY_BYTES],
        value=None if value is None else value[:DEAD_LETTER_VALUE_BYTES],
        size=len(value or b""),
        sha256=hashlib.sha256(value or b"").digest(),
        headers=tuple(Header(*header) for header in headers),
        service=service,
        at=at,
    )
