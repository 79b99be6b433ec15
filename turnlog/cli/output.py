"""How things are printed: JSON for scripts, tables and lines for people, and nothing from a log that a terminal would obey."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnlog.journal.timeline import clean

STYLES = {
    "succeeded": "green", "failed": "red", "cancelled": "yellow", "stopped": "yellow", "running": "cyan", "waiting": "magenta",
    "ok": "green", "error": "red",
}  # fmt: skip


def reflow(text: str) -> str:
    """Help text for typer: prose is joined to one line a paragraph, indented lines stay as they are, and only our own tags of
    bold are markup."""
    joined: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        if not paragraph.startswith(" "):
            joined.append(" ".join(paragraph.split()))
        elif joined and joined[-1].startswith(" "):
            joined[-1] += "\n" + paragraph
        else:
            joined.append(paragraph)
    marked = [re.sub(r"\[(?!bold\]|/\])", r"\\[", paragraph) for paragraph in joined]
    # Typer takes away what indents all lines after the first: a line that begins with a tag keeps the others where they are.
    return "\n\n".join(f"[bold][/]{paragraph}" if paragraph.startswith(" ") else paragraph for paragraph in marked)


def leave_quietly() -> NoReturn:
    """Whoever read our output has seen enough (`| head`): end well, and let nothing complain at the last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        leave_quietly()


def console(stderr: bool = False) -> Console:
    """A console on what standard output is now; lines are never broken where it is no terminal."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return _Console(stderr=stderr, highlight=False, soft_wrap=not terminal)


def say(text: str = "") -> None:
    """A line of ours for people, as it is."""
    console().print(text, markup=False)


def note(text: str) -> None:
    """A line beside the result, on standard error."""
    console(stderr=True).print(text, markup=False, style="dim")


def warn(text: str) -> None:
    """What may become a problem, on standard error."""
    console(stderr=True).print(f"warning: {text}", markup=False, style="yellow")


def emit(value: Any) -> None:
    """One JSON value on one line. ASCII only, so nothing in it can harm a terminal, and a lone surrogate survives."""
    try:
        sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        leave_quietly()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None) -> None:
    """A plain table, one line a row where it goes to no terminal; with `width` the widest column is cut there so that a line has at
    most so many characters. Cells are cleaned and never taken for markup."""
    cells = [[_clean_cell(value) for value in row] for row in rows]
    shown_on = console()
    if not shown_on.is_terminal:
        if width is not None:
            cells = _cut(columns, cells, width)
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for row in (list(columns), *cells):
            say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    shown = Table(box=None, pad_edge=False, header_style="bold")
    # The first column is an id, to be copied whole, unless the others would have no room beside it.
    whole_id = max((len(row[0]) for row in cells), default=0) <= shown_on.width // 2
    for index, column in enumerate(columns):
        shown.add_column(column, overflow="fold", no_wrap=index == 0 and whole_id)
    for row in cells:
        shown.add_row(*map(_styled, row))
    shown_on.print(shown)


def _cut(columns: Sequence[str], cells: list[list[str]], width: int) -> list[list[str]]:
    """The same cells with the widest column cut, but not below its title, so that they fit."""
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    widest = widths.index(max(widths))
    room = max(len(columns[widest]), widths[widest] - max(0, sum(widths) + 2 * (len(widths) - 1) - width))
    return [[clean(cell, room) if index == widest else cell for index, cell in enumerate(row)] for row in cells]


def _clean_cell(value: object) -> str:
    return clean("" if value is None else str(value), 2_000)


def _styled(text: str) -> str:
    style = STYLES.get(text)
    return f"[{style}]{text}[/]" if style else escape(text)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other; values that are None or empty are left out."""
    shown = [(name, str(value)) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        style = STYLES.get(value)
        text = f"[{style}]{value}[/]" if style else escape(clean(value, 4_000))
        console().print(f"[bold]{name.ljust(width)}[/]  {text}")


def when(ms: int | None) -> str:
    """A time as UTC, to the millisecond; empty for none."""
    if not ms:
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}Z"


def clock(ms: int) -> str:
    """The time of day, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.") + f"{ms % 1000:03d}"


def span(ms: int) -> str:
    """A length of time in two units at most."""
    seconds = abs(ms) / 1000
    for unit, size, below in (("d", 86_400, "h"), ("h", 3_600, "m"), ("m", 60, "s")):
        if seconds >= size:
            rest = {"h": 3_600, "m": 60, "s": 1}[below]
            return f"{int(seconds // size)} {unit} {int(seconds % size // rest)} {below}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{abs(ms)} ms"


def from_now(ms: int, now: int) -> str:
    """A time as a distance: `in 3 m 2 s`, `4.0 s ago`."""
    return f"in {span(ms - now)}" if ms > now else f"{span(now - ms)} ago"


def plain(record: Any) -> Any:
    """A nested record as JSON values: named tuples become objects, bytes hex text, pairs of labels stay lists."""
    if isinstance(record, tuple) and hasattr(record, "_fields"):
        return {name: plain(getattr(record, name)) for name in record._fields}
    if isinstance(record, (list, tuple)):
        return [plain(item) for item in record]
    if isinstance(record, dict):
        return {str(name): plain(value) for name, value in record.items()}
    if isinstance(record, (set, frozenset)):
        return sorted(plain(item) for item in record)
    return record.hex() if isinstance(record, bytes) else record
