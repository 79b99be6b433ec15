"""What a tool returned, as the text the model reads.

A string travels verbatim (lone surrogates become U+FFFD: UTF-8 cannot carry them). Everything else becomes canonical JSON:
plain values directly, and what pydantic can write: its models, dataclasses, datetime, Decimal (as a string), UUID, enums, sets.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_jsonable_python

from turnlog.core.events import Outcome
from turnlog.core.ids import canonical_json
from turnlog.core.limits import VALUE_BYTES
from turnlog.tools.failures import Verdict, outcome_of, sound

_BAD: Final = Verdict("bad_result", retryable=False)
_TOO_LARGE: Final = Verdict("result_too_large", retryable=False)
_BROKEN: Final = Verdict("broken_tool", retryable=False)


def succeeded(value: Any, tool: str, worker: str = "") -> Outcome:
    """The outcome for a returned value: ok, or an error that tells the tool's team what is wrong with it. Never raises.

    In every error here the call did happen: the text says so, and no other attempt is asked for.
    """
    if type(value) is str:
        text = value
    elif inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return outcome_of(
            _BROKEN, f"The tool {tool!r} is no async function but returned an awaitable. It did not run.", worker
        )
    else:
        try:
            text = str(value) if isinstance(value, str) else _as_json(value)
        except (ValueError, TypeError, RecursionError, PydanticSerializationError) as problem:
            return outcome_of(_BAD, f"The result of {tool!r} is not JSON: {problem}. The call did happen.", worker)
    if text.isascii():
        size = len(text)
    else:
        text = sound(text)
        size = len(text.encode())
    if size > VALUE_BYTES:
        said = f"The result of {tool!r} has {size} bytes, at most {VALUE_BYTES} are allowed. The call did happen."
        return outcome_of(_TOO_LARGE, said, worker)
    return Outcome("ok", text, "", False, False, worker)


def _as_json(value: Any) -> str:
    try:
        return canonical_json(value)
    except TypeError:  # something json does not know; NaN is a ValueError and stays one
        return canonical_json(to_jsonable_python(value, inf_nan_mode="constants", by_alias=False))
