"""From a provider's refusal to a `ModelFailure`: HTTP status, error body and the headers that say when to come back.

One place for all providers, because their error bodies differ in little more than where the message stands. What an error
*code* says goes before what the status says: `insufficient_quota` comes as a 429 that no waiting heals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

from turnlog.core.events import ModelFailure
from turnlog.core.ids import parse_json
from turnlog.models.errors import WORDS, failure

RETRY_AFTER_CAP_MS: Final = 3_600_000
"""The longest pause a provider can ask for; what it asks beyond is cut to this."""

_STATUS_WORDS: Final[dict[int, str]] = {
    401: "authentication",
    402: "quota_exhausted",
    403: "authentication",
    408: "provider_error",
    409: "provider_error",
    425: "provider_error",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}

_CODE_WORDS: Final[dict[str, str]] = {
    "billing_hard_limit_reached": "quota_exhausted",
    "billing_not_active": "quota_exhausted",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
    "context_length_exceeded": "context_too_long",
    "insufficient_quota": "quota_exhausted",
    "invalid_api_key": "authentication",
}
"""Error codes and types that decide whatever the status is."""

_CONTEXT_MESSAGE: Final = re.compile(
    r"maximum context length|context length exceeded|context window|prompt is too long|too many tokens", re.IGNORECASE
)
"""Servers without an error code (vLLM, llama.cpp, proxies) say it in words; read on 400 and 413 only."""

PAGE_CHARS: Final = 8_000
"""How much of an error page is searched for words; also bounds the backtracking of the pattern below."""

_TAGS: Final = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)


class Complaint(NamedTuple):
    """What an error body says, wherever it says it."""

    codes: tuple[str, ...]
    message: str


def word_of_status(status: int) -> str:
    """The word of a status that is not 200, with no error code to go by."""
    if status in _STATUS_WORDS:
        return _STATUS_WORDS[status]
    return "provider_error" if status >= 500 else "bad_request"


def failure_of_response(status: int, headers: Mapping[str, str], body: bytes, now_s: float) -> ModelFailure:
    """The failure that a response other than 200 means. `headers` in lower case; `now_s` (seconds since the epoch) turns
    a Retry-After date into a pause. Never raises, whatever the body is."""
    complaint = complaint_of(body)
    message = f"HTTP {status}: {complaint.message or _redirect(status, headers) or 'no message'}"
    return _judged(status, complaint, message, headers, now_s)


def failure_in_answer(error: Any) -> ModelFailure:
    """The failure that an error object inside a 200 means (routers answer 200 first and hit the provider's error later)."""
    complaint = _complaint_in(error)
    status = next((int(code) for code in complaint.codes if re.fullmatch("[45][0-9][0-9]", code)), 500)
    return _judged(status, complaint, complaint.message or "an error without a message", {}, 0.0)


def _judged(status: int, complaint: Complaint, message: str, headers: Mapping[str, str], now_s: float) -> ModelFailure:
    known = next((_CODE_WORDS[code] for code in complaint.codes if code in _CODE_WORDS), None)
    if known is None and status in (400, 413) and _CONTEXT_MESSAGE.search(complaint.message):
        known = "context_too_long"
    word = known or word_of_status(status)
    retryable = WORDS[word].retryable
    advice = headers.get("x-should-retry", "").strip().lower()
    if advice == "false":
        retryable = False
    elif advice == "true" and known is None:
        retryable = True
    return failure(word, message, retryable=retryable, retry_after_ms=retry_after_ms(headers, now_s))


def retry_after_ms(headers: Mapping[str, str], now_s: float) -> int:
    """The pause a provider asks for, 0 if none: `retry-after-ms`, else `retry-after` in seconds or as an HTTP date."""
    pause = _number(headers.get("retry-after-ms", ""))
    if pause is None:
        after = headers.get("retry-after", "")
        seconds = _number(after)
        if seconds is None:
            seconds = _seconds_until(after, now_s)
        pause = seconds * 1000
    return int(min(max(pause, 0), RETRY_AFTER_CAP_MS))


def _number(text: str) -> float | None:
    text = text.strip()
    return float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text) else None


def _seconds_until(date: str, now_s: float) -> float:
    try:
        when = parsedate_to_datetime(date)
    except (ValueError, TypeError):
        return 0.0
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now_s


def complaint_of(body: bytes) -> Complaint:
    """What an error body says: JSON of any provider's shape, else the words of a page without its tags."""
    text = body.decode("utf-8", "replace")
    page = " ".join(_TAGS.sub(" ", text[:PAGE_CHARS]).split())
    try:
        found = _complaint_in(parse_json(text))
    except ValueError:
        return Complaint((), page)
    return found if found.message else found._replace(message=page)


def _complaint_in(value: Any) -> Complaint:
    """OpenAI, Azure, Anthropic: `{"error": {...}}`; Ollama: `{"error": "..."}`; vLLM, Mistral: at the top; FastAPI: `detail`.
    No message where none of them is a text: the caller shows the body itself."""
    outer = value if isinstance(value, dict) else {"message": value}
    error = outer.get("error", outer)
    inner = error if isinstance(error, dict) else {"message": error}
    codes = [str(inner[name]) for name in ("code", "type", "status") if isinstance(inner.get(name), str | int)]
    nested = inner.get("innererror")
    if isinstance(nested, dict) and isinstance(nested.get("code"), str):
        codes.append(nested["code"])
    message = next((inner[name] for name in ("message", "detail", "msg") if isinstance(inner.get(name), str)), "")
    return Complaint(tuple(codes), " ".join([message, *_upstream(inner)]).strip())


def _upstream(error: dict[str, Any]) -> list[str]:
    """Routers put what the provider behind them said under `metadata.raw`."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return [f"({raw})"] if isinstance(raw, str) else []


def _redirect(status: int, headers: Mapping[str, str]) -> str:
    if not 300 <= status < 400:
        return ""
    return f"the base URL redirects to {headers.get('location', 'nowhere')}; keys are not sent along, so configure that URL"
