"""What a refusal means: status, error body, and the headers that say when to come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.events import ModelFailure
from turnlog.models.errors import WORDS, failure
from turnlog.models.statuses import complaint_of, failure_in_answer, failure_of_response, retry_after_ms

NOW_S = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


def refusal(status: int, error: Any = None, **headers: str) -> ModelFailure:
    body = json.dumps({"error": error}).encode() if error is not None else b""
    given_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return failure_of_response(status, given_headers, body, NOW_S)


@pytest.mark.parametrize(
    ("status", "word", "retryable"),
    [
        (301, "bad_request", False),
        (400, "bad_request", False),
        (401, "authentication", False),
        (402, "quota_exhausted", False),
        (403, "authentication", False),
        (404, "bad_request", False),
        (408, "provider_error", True),
        (409, "provider_error", True),
        (413, "bad_request", False),
        (418, "bad_request", False),
        (422, "bad_request", False),
        (425, "provider_error", True),
        (429, "rate_limited", True),
        (500, "provider_error", True),
        (502, "provider_error", True),
        (503, "overloaded", True),
        (504, "provider_error", True),
        (529, "overloaded", True),
        (204, "bad_request", False),
    ],
)
def test_statuses(status: int, word: str, retryable: bool) -> None:
    problem = refusal(status)
    assert (problem.error, problem.retryable) == (word, retryable)
    assert problem.message == f"HTTP {status}: no message" or status == 301


@pytest.mark.parametrize(
    ("status", "error", "word"),
    [
        (429, {"code": "insufficient_quota", "message": "m"}, "quota_exhausted"),
        (429, {"type": "insufficient_quota", "code": None, "message": "m"}, "quota_exhausted"),
        (400, {"code": "context_length_exceeded", "message": "m"}, "context_too_long"),
        (400, {"message": "This model's maximum context length is 4096 tokens."}, "context_too_long"),
        (413, {"message": "prompt is too long: 210000 tokens"}, "context_too_long"),
        (500, {"message": "our context window service broke"}, "provider_error"),
        (400, {"code": "content_filter", "message": "m"}, "content_filter"),
        (400, {"code": "x", "innererror": {"code": "content_filter"}, "message": "m"}, "content_filter"),
        (400, {"code": "invalid_api_key", "message": "m"}, "authentication"),
        (404, {"code": "model_not_found", "message": "m"}, "bad_request"),
    ],
)
def test_error_codes_decide_before_the_status(status: int, error: Any, word: str) -> None:
    assert refusal(status, error).error == word


@pytest.mark.parametrize(
    ("headers", "pause_ms"),
    [
        ({}, 0),
        ({"retry-after": "3"}, 3_000),
        ({"retry-after": "0.25"}, 250),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30_000),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 -0000"}, 30_000),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:10 GMT"}, 0),
        ({"retry-after": "99999999"}, 3_600_000),
        ({"retry-after": "9" * 400}, 0),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "nan"}, 0),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": "Tue, 99 Nov 2023 22:13:50 GMT"}, 0),
        ({"retry-after-ms": "120.5", "retry-after": "3"}, 120),
        ({"retry-after-ms": "", "retry-after": "3"}, 3_000),
    ],
)
def test_when_to_come_back(headers: dict[str, str], pause_ms: int) -> None:
    assert retry_after_ms(headers, NOW_S) == pause_ms


def test_the_providers_own_word_on_retrying() -> None:
    assert refusal(429, x_should_retry="false", retry_after="9") == failure(
        "rate_limited", "HTTP 429: no message", retryable=False
    )
    assert refusal(400, x_should_retry="true", retry_after="9").retry_after_ms == 9_000
    # But not against what the error code says: no waiting brings credit back.
    assert not refusal(429, {"code": "insufficient_quota", "message": "m"}, x_should_retry="true").retryable


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"openai"}}', "openai"),
        (b'{"error":"ollama"}', "ollama"),
        (b'{"type":"error","error":{"type":"overloaded_error","message":"anthropic"}}', "anthropic"),
        (b'{"object":"error","message":"vllm","code":400}', "vllm"),
        (b'{"detail":"fastapi"}', "fastapi"),
        (b'{"detail":[{"loc":["body"],"msg":"missing"}]}', '{"detail":[{"loc":["body"],"msg":"missing"}]}'),
        (b'{"error":{"message":"router","metadata":{"raw":"behind it"}}}', "router (behind it)"),
        (b'"just a text"', "just a text"),
        (b"<html><head><title>502</title><style>b{}</style></head>  Bad\n gateway", "502 Bad gateway"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"null", "null"),
        (b"[]", "[]"),
        (b"", ""),
    ],
)
def test_where_a_message_stands(body: bytes, message: str) -> None:
    assert complaint_of(body).message == message


def test_an_error_inside_an_answer() -> None:
    assert failure_in_answer({"code": 429, "message": "m"}) == failure("rate_limited", "m")
    assert failure_in_answer({"code": "502", "message": "m"}) == failure("provider_error", "m")
    assert failure_in_answer("broken") == failure("provider_error", "broken")
    assert failure_in_answer({"code": "context_length_exceeded"}).error == "context_too_long"


@given(st.integers(201, 599), st.binary(max_size=200), st.dictionaries(st.just("retry-after"), st.text(max_size=40)))
def test_no_refusal_raises(status: int, body: bytes, headers: dict[str, str]) -> None:
    problem = failure_of_response(status, headers, body, NOW_S)
    assert problem.error in WORDS
    assert 0 <= problem.retry_after_ms <= 3_600_000


def test_failures_are_bounded_and_clean() -> None:
    problem = failure("bad_response", "\ud800" + "x" * 5_000)
    assert problem.message.startswith("\ufffdxxx")
    assert len(problem.message) == 2_000


def test_only_words_of_the_table_exist() -> None:
    with pytest.raises(KeyError):
        failure("whatever", "m")


def test_an_unhealable_failure_has_no_pause() -> None:
    assert failure("bad_request", "m", retry_after_ms=5).retry_after_ms == 0
