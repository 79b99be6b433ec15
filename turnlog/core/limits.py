"""Bounds of the core, with the texts that say so. Changing one changes the rules' revision (`RULES`)."""

from __future__ import annotations

from typing import Final

RULES: Final = 1
"""Revision of the rules. A run goes on under the revision it began with."""

TEXT_CHARS: Final = 262_144
"""An answer's text is cut to this many characters, mark included."""
VALUE_BYTES: Final = 262_144
"""A tool result or input up to this many UTF-8 bytes is inline."""
CALLS_BYTES: Final = 524_288
"""Names and arguments of one answer's calls together."""
CALLS_PER_TURN: Final = 128
ERROR_CHARS: Final = 2_000
COMMANDS_REMEMBERED: Final = 256
QUEUED_INPUTS: Final = 64
IDLE_KEEP_MS: Final = 30 * 24 * 3_600_000
"""How long a run may be stopped or wait for input before it ends as expired (`run_idle_keep`)."""
BACKOFF_CAP_MS: Final = 60_000

CUT_MARK: Final = "\n[… cut by Turnlog: the text was longer than allowed]"


def cut(text: str, most: int) -> str:
    """The text, or its head with a mark so that both have `most` characters. Cutting what was cut changes nothing."""
    if len(text) <= most:
        return text
    return text[: most - len(CUT_MARK)] + CUT_MARK


def utf8_size(text: str) -> int:
    """Bytes of the text in UTF-8; three for a lone surrogate."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def backoff_ms(base_ms: int, attempt: int) -> int:
    """Pause after the given failed attempt (1-based): doubling from `base_ms`, at most a minute."""
    doubled: int = base_ms << min(attempt - 1, 20)
    return min(doubled, BACKOFF_CAP_MS)
