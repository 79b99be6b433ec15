"""Words of the command line turned into values, with a message that helps when they are none."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from turnlog.cli.errors import CliError
from turnlog.core.ids import run_id_problem

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")


def seconds(text: str | float) -> float:
    """A length of time: `30`, `30s`, `1.5m`, `250ms`, `2h`, `1d`; a bare number is seconds. Raises ValueError."""
    match = _SPAN.fullmatch(str(text).strip())
    if match is None or isinstance(text, bool):
        raise ValueError(f"{text!r} is no length of time: write 30, 30s, 1.5m, 250ms, 2h or 1d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def seconds_option(name: str, text: str | None) -> float | None:
    """The same for an option. Raises CliError."""
    if text is None:
        return None
    try:
        return seconds(text)
    except ValueError as problem:
        raise CliError(f"{name}: {problem}") from None


def labels(pairs: Sequence[str]) -> dict[str, str]:
    """`k=v` pairs. Raises CliError."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CliError(f"--label {pair!r} is not NAME=VALUE", "write for example --label tenant=acme")
        found[name] = value
    return found


def text_argument(text: str | None) -> str | None:
    """The text, or all of standard input for `-`. Raises CliError for input that is not UTF-8."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8") if hasattr(sys.stdin, "buffer") else sys.stdin.read()
    except UnicodeDecodeError as problem:
        raise CliError(
            f"standard input is not UTF-8 (at byte {problem.start})", "convert it first, for example with iconv"
        ) from None


def run_id(text: str) -> str:
    """A run id. Raises CliError."""
    problem = run_id_problem(text)
    if problem is not None:
        raise CliError(problem, "list what there is: turnlog runs list")
    return text
