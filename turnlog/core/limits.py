"""Bounds of the core, with the texts that say so. Changing one changes the rules' revision (`RULES`)."""

from __future__ import annotations

from typing import Final

RULES: Final = 1
"""Revision of the rules. A run goes on under the revision it began with."""

TEXT_CHARS: Final = 262_144
"""An answer's text is cut to this many characters, mark included."""
VALUE_BYTES: Final = 262_144
"""A tool result or input up to this many UTF-8 bytes is inline."""

# One group of events is one record of the journal at most, so the parts below add up to less than GROUP_BYTES in the worst case
# (an answer's text stands twice when it ends the run; each rejected call repeats its tool's name and gets advice).
GROUP_BYTES: Final = 921_600
"""No group of events has more, whatever arrives (docs/journal.md: a step has 900 KiB at most)."""
START_BYTES: Final = 655_360
"""A start command with its agent and menu."""
TEXT_BYTES: Final = 393_216
"""An answer's text: beyond plain ASCII, TEXT_CHARS characters may have more."""
CALLS_BYTES: Final = 393_216
"""Ids, names and arguments of one answer's calls together."""
ANSWER_BYTES: Final = 655_360
"""Text and calls of one answer; the calls come first, the text is cut to what they leave."""
ADVICE_BYTES: Final = 65_536
"""What the model is told about all rejected calls of one answer."""
CALLS_PER_TURN: Final = 128
CALL_ATTEMPTS: Final = 100
"""Attempts of one call, whatever its manifest says."""
TOOL_COLUMN_CHARS: Final = 200
"""The `tool` column of an event; the call itself keeps the name it came with."""
COMMAND_ID_CHARS: Final = 256
WORD_CHARS: Final = 200
"""Stable words and names from outside: an error's kind, a worker, a model, a finish reason, a response id."""
ERROR_CHARS: Final = 2_000
COMMANDS_REMEMBERED: Final = 256
QUEUED_INPUTS: Final = 64
IDLE_KEEP_MS: Final = 30 * 24 * 3_600_000
"""How long a run may be stopped or wait for input before it ends as expired (`run_idle_keep`)."""
BACKOFF_CAP_MS: Final = 60_000
RETRY_AFTER_CAP_MS: Final = 3_600_000
"""A provider may ask for a longer pause than ours, but not for more than an hour."""
JSON_DEPTH: Final = 128
"""Nesting of a call's arguments. The interpreter's own limit depends on its version and on how deep the stack already is."""
JSON_DIGITS: Final = 600
"""Digits of one number in a call's arguments. Python's own limit can be set from outside, but never below 640."""

CUT_MARK: Final = "\n[… cut by Turnlog: the text was longer than allowed]"


def cut(text: str, most: int) -> str:
    """The text, or its head with a mark so that both have `most` characters. Cutting what was cut changes nothing."""
    if len(text) <= most:
        return text
    return text[: most - len(CUT_MARK)] + CUT_MARK


def cut_bytes(text: str, most: int) -> str:
    """Like `cut`, with `most` UTF-8 bytes as the measure; no character is torn."""
    if utf8_size(text) <= most:
        return text
    data = text.encode("utf-8", "surrogatepass")
    end = most - _MARK_BYTES
    while data[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
    return data[:end].decode("utf-8", "surrogatepass") + CUT_MARK


def utf8_size(text: str) -> int:
    """Bytes of the text in UTF-8; three for a lone surrogate."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


_MARK_BYTES = utf8_size(CUT_MARK)


def backoff_ms(base_ms: int, attempt: int) -> int:
    """Pause after the given failed attempt (1-based): doubling from `base_ms`, at most a minute."""
    return min(max(base_ms, 0) << min(max(attempt - 1, 0), 20), BACKOFF_CAP_MS)
