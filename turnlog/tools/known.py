"""Results by call key, so that a repeated request is answered and not executed: the newest ones, bounded by count and bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from turnlog.core.events import Outcome
from turnlog.core.limits import utf8_size

_OVERHEAD = 400  # bytes of objects around one entry, roughly


class Known(NamedTuple):
    """How an attempt of a call ended."""

    attempt: int
    outcome: Outcome

    def answers(self, attempt: int) -> bool:
        """A success answers every attempt. An error answers its own only: a new attempt is a wish to try again."""
        return self.outcome.status == "ok" or self.attempt == attempt


class KnownResults:
    """Least recently used goes first. Forgetting costs a second execution at most, which every tool must stand (same key)."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._size = 0
        # Not a dict: its first key is found by walking over all that were deleted before it.
        self._entries: OrderedDict[str, tuple[Known, int]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        """Whether there is an entry; safe without the owner's lock."""
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes held, roughly."""
        return self._size

    def get(self, key: str) -> Known | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: str, known: Known) -> None:
        """Remember; a success is never replaced by an error of another attempt."""
        entries = self._entries
        old = entries.pop(key, None)
        if old is not None:
            if old[0].outcome.status == "ok" and known.outcome.status != "ok":
                entries[key] = old
                return
            self._size -= old[1]
        size = utf8_size(known.outcome.content) + len(key) + _OVERHEAD
        entries[key] = (known, size)
        self._size += size
        while entries and (self._size > self._most_bytes or len(entries) > self._most):
            self._size -= entries.popitem(last=False)[1][1]
