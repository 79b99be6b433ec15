"""Names and digests: how a run, a call and a request are named, and what goes into each name.

All of them are functions of recorded facts, so that any reader of the log computes the same names again.
Golden values stand in `tests/unit/test_core_ids.py`: a change here is a change of the protocol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from math import isinf
from typing import Any, NamedTuple, NewType

from turnlog.core.limits import JSON_DEPTH, JSON_DIGITS, utf8_size

RunId = NewType("RunId", str)
CallKey = NewType("CallKey", str)

RUN_ID_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,128}")


def run_id_problem(run_id: str) -> str | None:
    """Why this is no run id, as a sentence for whoever sent it; None if it is one."""
    if not run_id:
        return "run_id is empty: give 1 to 128 characters of A-Z a-z 0-9 . _ -"
    if len(run_id) > 128:
        return f"run_id has {len(run_id)} characters: at most 128 are allowed"
    if not RUN_ID_PATTERN.fullmatch(run_id):
        return "run_id has characters outside A-Z a-z 0-9 . _ -"
    return None


_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _encode_made_once() -> Callable[[Any], str]:
    """`_encoder.encode`, with its C half made once and not once a value (2 of 3 µs). Without that half, the encoder itself.

    No markers for circular values: parsed JSON has none, and they would outlive a value that was refused.
    """
    try:
        parts = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, _encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", True, False, False
        )
    except (AttributeError, TypeError):
        return _encoder.encode
    return lambda value: "".join(parts(value, 0))


_encode = _encode_made_once()


def canonical_json(value: Any) -> str:
    """Canonical JSON: sorted names, no spaces, ASCII escapes (a lone surrogate survives as its escape).

    Raises ValueError for NaN and the infinities, TypeError for what is not JSON.
    """
    return _encode(value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if isinf(value):
        raise ValueError(f"{number:.40} is too large for a number")
    return value


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_OPENING = frozenset("{[")
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_LONG_NUMBER = re.compile(f"[0-9]{{{JSON_DIGITS + 1}}}")
_BRACKET = re.compile(r"[\[\]{}]")


def parse_json(text: str) -> Any:
    """The value of a JSON text; of duplicate names the last one counts.

    Raises ValueError for what is no JSON, for NaN, for numbers out of a float's range or of more than 600 digits, and for more
    than 128 levels. The bounds are ours because the interpreter's differ between versions, settings and depths of the stack,
    and what is JSON decides keys: they must be the same on every machine, for ever.
    """
    if len(text) > JSON_DIGITS or text.count("[") + text.count("{") > JSON_DEPTH:
        _refuse_excess(_STRING.sub("", text))
    if text[:1] in _OPENING:  # the common case, and half the cost: no white space around it
        value, end = _decoder.raw_decode(text)
        if end == len(text):
            return value
    return _decoder.decode(text)


def _refuse_excess(bare: str) -> None:
    """`bare` is a JSON text without its strings."""
    if _LONG_NUMBER.search(bare):
        raise ValueError(f"a number has more than {JSON_DIGITS} digits")
    if bare.count("[") + bare.count("{") <= JSON_DEPTH:
        return
    depth = 0
    for bracket in _BRACKET.findall(bare):
        depth += 1 if bracket in "[{" else -1
        if depth > JSON_DEPTH:
            raise ValueError(f"nested more than {JSON_DEPTH} levels deep")


class Arguments(NamedTuple):
    """A call's argument text as it was read. `value` is shared: look, but change nothing."""

    canonical: str
    """Canonical JSON, or the JSON string of a text that is not JSON."""
    value: Any
    is_json: bool


def read_arguments(raw: str) -> Arguments:
    """The text read once for its key and for its check (short ones are remembered for a while)."""
    return _remembered(raw) if len(raw) <= 4_096 else _read(raw)


def _read(raw: str) -> Arguments:
    try:
        value = parse_json(raw)
    except ValueError:
        return Arguments(canonical_json(raw), None, False)
    return Arguments(canonical_json(value), value, True)


_remembered = lru_cache(maxsize=256)(_read)


def canonical_arguments(raw: str) -> str:
    """The canonical form of a call's argument text: canonical JSON, or the JSON string of a text that is not JSON."""
    return read_arguments(raw).canonical


def call_key(run_id: str, turn: int, position: int, tool: str, arguments: str) -> CallKey:
    """The idempotency key of a call: `<run_id>:t<turn>:c<position>:<16 hex>`.

    In: where the call stands (run, turn, position in the recorded answer), the tool's name and its canonical arguments
    (sha256 over utf8(tool) + 0x00 + arguments). The same place and call give the same key on every attempt, owner and build.
    Out: the provider's call id (it repeats inside a run in a quarter of the recorded airline runs), time, attempt, agent.
    Why the place: agents repeat a call on purpose, so a hash of the content alone would merge two effects into one.
    """
    body = sha256(f"{tool}\0{arguments}".encode("utf-8", "surrogatepass")).hexdigest()
    return CallKey(f"{run_id}:t{turn}:c{position}:{body[:16]}")


def run_of_key(key: str) -> str:
    """The run a call key belongs to (run ids have no colon)."""
    return key.partition(":")[0]


def place_of_key(key: str) -> tuple[int, int]:
    """Turn and position that a call key names. Raises ValueError for what is no call key."""
    _, turn, position, _ = key.split(":")
    return int(turn.removeprefix("t")), int(position.removeprefix("c"))


EMPTY_DIGEST = "0" * 64


def chain_digest(previous: str, *parts: str | None) -> str:
    """Digest of a growing list: sha256 over the previous digest (hex) and the length-prefixed parts. Constant cost per item."""
    text = previous
    for part in parts:
        if part is None:
            text += "-"
        else:
            text += f"{len(part) if part.isascii() else utf8_size(part)}:{part}"
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def place(turn: int, position: int | None = None) -> str:
    """The name of a turn or call in logs, traces and UI: `turn:3` or `turn:3:call:0`."""
    return f"turn:{turn}" if position is None else f"turn:{turn}:call:{position}"
