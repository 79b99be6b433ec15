"""Names and digests: how a run, a call and a request are named, and what goes into each name.

All of them are functions of recorded facts, so that any reader of the log computes the same names again.
Golden values stand in `tests/unit/test_core_ids.py`: a change here is a change of the protocol.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NewType

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


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def canonical_json(value: Any) -> str:
    """Canonical JSON (DESIGN.md §2): sorted names, no spaces, ASCII escapes (a lone surrogate survives as its escape).

    Raises ValueError for NaN and the infinities, TypeError for what is not JSON.
    """
    return _encode(value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def parse_json(text: str) -> Any:
    """The value of a JSON text; of duplicate names the last one counts. Raises ValueError, also for NaN, Infinity and nesting
    deeper than the interpreter's limit."""
    try:
        return _decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def canonical_arguments(raw: str) -> str:
    """The canonical form of a call's argument text: canonical JSON, or the JSON string of a text that is not JSON."""
    try:
        return canonical_json(parse_json(raw))
    except ValueError:
        return canonical_json(raw)


def call_key(run_id: str, turn: int, position: int, tool: str, arguments: str) -> CallKey:
    """The idempotency key of a call: `<run_id>:t<turn>:c<position>:<16 hex>`.

    In: where the call stands (run, turn, position in the recorded answer), the tool's name and its canonical arguments
    (sha256 over utf8(tool) + 0x00 + arguments). The same place and call give the same key on every attempt, owner and build.
    Out: the provider's call id (it repeats inside a run in a quarter of the recorded airline runs), time, attempt, agent.
    Why the place: agents repeat a call on purpose, so a hash of the content alone would merge two effects into one.
    """
    body = hashlib.sha256(tool.encode("utf-8", "surrogatepass") + b"\x00" + arguments.encode("ascii"))
    return CallKey(f"{run_id}:t{turn}:c{position}:{body.hexdigest()[:16]}")


def run_of_key(key: str) -> str:
    """The run a call key belongs to (run ids have no colon)."""
    return key.partition(":")[0]


EMPTY_DIGEST = "0" * 64


def chain_digest(previous: str, *parts: str | None) -> str:
    """Digest of a growing list: sha256 over the previous digest (hex) and the length-prefixed parts. Constant cost per item."""
    digest = hashlib.sha256(previous.encode())
    for part in parts:
        if part is None:
            digest.update(b"-")
            continue
        data = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def place(turn: int, position: int | None = None) -> str:
    """The name of a turn or call in logs, traces and UI: `turn:3` or `turn:3:call:0`."""
    return f"turn:{turn}" if position is None else f"turn:{turn}:call:{position}"
