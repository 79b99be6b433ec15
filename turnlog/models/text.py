"""Texts between a transcript and a provider's wire: surrogates, fences, tool names. Pure, shared by all providers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

_SURROGATE = re.compile("[\ud800-\udfff]")
_WIRE_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_WIRE = re.compile(r"[^a-zA-Z0-9_-]")
_CLOSING_TAG = re.compile(r"<(?=\s*/\s*tool_error)", re.IGNORECASE)


def scrub(text: str) -> str:
    """Text for people and models as valid UTF-8: each lone surrogate becomes U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def escape_surrogates(text: str) -> str:
    """Argument text as valid UTF-8: each lone surrogate becomes its ASCII escape `\\udXXX`.

    Inside a JSON string, the only place of a JSON text where one can stand, the escape means the very same value, so the
    arguments and with them the call's key stay what the model asked for.
    """
    return text if text.isascii() else _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def fence_error(tool: str, text: str) -> str:
    """The error text of a tool, marked so that a model can tell it from instructions.

    What a tool says in an error may be written by whoever the tool talked to. A closing tag inside the text loses its
    bracket (`&lt;/tool_error>`), so nothing inside can step out of the fence; the rest is verbatim. The tool's name comes
    from a manifest or from the model and is reduced to characters that cannot leave the attribute.
    """
    name = re.sub(r"[^\w./:-]", "_", scrub(tool))
    return f'<tool_error tool="{name}">\n{_CLOSING_TAG.sub("&lt;", scrub(text))}\n</tool_error>'


class ToolNames(NamedTuple):
    """Tool names of one run as a wire allows them (`^[a-zA-Z0-9_-]{1,64}$`), and back.

    A function of the run's menu only, so every turn and every build names them the same. Names that the wire allows stay as
    they are; others get `_` for each foreign character and a hash of the whole name, so `a.b` and `a:b` stay apart.
    """

    to_wire: dict[str, str]
    from_wire: dict[str, str]

    @classmethod
    def of_menu(cls, names: Iterable[str]) -> ToolNames:
        to_wire: dict[str, str] = {}
        foreign = []
        for name in names:
            if _WIRE_NAME.fullmatch(name):
                to_wire[name] = name
            else:
                foreign.append(name)
        taken = set(to_wire)
        for name in foreign:
            if name not in to_wire:
                to_wire[name] = _free_name(name, taken)
                taken.add(to_wire[name])
        return cls(to_wire, {wire: name for name, wire in to_wire.items()})

    def wire(self, name: str) -> str:
        """The wire's name. Also for names outside the menu: a model that made one up must see it again in its history."""
        known = self.to_wire.get(name)
        if known is not None:
            return known
        return name if _WIRE_NAME.fullmatch(name) else _free_name(name, self.from_wire)

    def menu(self, wire: str) -> str:
        """The menu's name of what a model asked for; a name it made up stays as it is, for the rules to refuse."""
        return self.from_wire.get(wire, wire)


def _free_name(name: str, taken: Iterable[str]) -> str:
    base = _NOT_WIRE.sub("_", name)[:55]
    salt = 0
    while True:  # ends: each round has another hash, and `taken` is a run's menu
        seed = name if salt == 0 else f"{name}#{salt}"
        candidate = f"{base}_{hashlib.sha256(seed.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        if candidate not in taken:
            return candidate
        salt += 1
