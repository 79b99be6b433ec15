"""The runs of a partition that exist or ended: an index of `run-state`, for existence only (J12), and its guard (J13).

The partition is streamed once when it is opened and followed from then on. When a record is read whose step is below the
highest that was read before for its key (an owner that slept wrote an old projection over a new one), the earlier record is
named for repair: it must be written again, byte for byte.
"""

from __future__ import annotations

from typing import NamedTuple

from turnlog.kafka.port import Partition, Received


class Known(NamedTuple):
    """What is known of a run from its newest projection: `ended_at` in ms, 0 while it goes on."""

    step: int
    offset: int
    ended_at: int


def state_headers(step: int, ended_at: int | None) -> list[tuple[str, bytes]]:
    """Headers of a `run-state` record, so that its readers need not decode it."""
    headers = [("step", b"%d" % step)]
    if ended_at:
        headers.append(("ended", b"%d" % ended_at))
    return headers


class KnownRuns:
    """One partition's index. `streamed` once the end seen at the start is reached; about 200 bytes a run."""

    def __init__(self, partition: Partition, start: int, until: int) -> None:
        self.partition = partition
        self.next_read = start
        self.until = until
        self._runs: dict[bytes, Known] = {}
        self._unread: set[bytes] = set()
        """Runs that ended here and whose last projection is acknowledged but not read back yet."""

    @property
    def streamed(self) -> bool:
        return self.next_read >= self.until

    def __contains__(self, run_id: str) -> bool:
        key = run_id.encode()
        return key in self._runs or key in self._unread

    def ended(self, key: bytes) -> None:
        """The run is no longer held: it is known from now on, although its projection has not been read back yet."""
        if key not in self._runs:
            self._unread.add(key)

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, record: Received) -> int | None:
        """Follow one record; returns the offset of an earlier record that must be written again, or None."""
        self.next_read = record.offset + 1
        key = record.key or b""
        known = self._runs.get(key)
        if record.value is None:
            if known is not None and not known.ended_at:
                return known.offset  # a tombstone of a live run counts as older
            self._runs.pop(key, None)
            return None
        headers = dict(record.headers)
        try:
            step = int(headers.get("step") or b"-1")
            ended_at = int(headers.get("ended") or b"0")
        except ValueError:
            step, ended_at = -1, 0
        if known is not None and step < known.step:
            return known.offset
        self._runs[key] = Known(step, record.offset, ended_at)
        self._unread.discard(key)
        return None

    def expired(self, before_ms: int, most: int = 1_000) -> list[bytes]:
        """Keys of runs that ended before this moment, at most so many: their names may be used again."""
        found = []
        for key, known in self._runs.items():
            if known.ended_at and known.ended_at < before_ms:
                found.append(key)
                if len(found) >= most:
                    break
        return found
