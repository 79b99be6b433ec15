"""Why there is no answer: the stable words of `ModelFailure.error`, and the only way providers build one.

The words are recorded in the journal and read by people, policies and metrics, so a word never changes its meaning.
`retryable` says whether asking the same again may help; a provider's own word on that (`x-should-retry`) goes first where
the table does not know better. Retrying itself is the rules' business: they set a timer, recorded, with backoff.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from turnlog.core.events import ModelFailure
from turnlog.core.limits import ERROR_CHARS, cut
from turnlog.models.text import scrub


class Word(NamedTuple):
    retryable: bool
    meaning: str


WORDS: Final[dict[str, Word]] = {
    # The agent or the installation must change first.
    "unknown_provider": Word(False, "no provider is configured under the part of `model` before the first slash"),
    "bad_settings": Word(False, "the agent's model name, model_settings or a tool's parameters do not make a request"),
    "authentication": Word(False, "the provider refuses the key or what it may do (401, 403)"),
    "quota_exhausted": Word(False, "the account has no credit left (402, insufficient_quota)"),
    "bad_request": Word(False, "the provider refuses the request as it is (other 4xx, redirects)"),
    "context_too_long": Word(False, "the conversation does not fit the model's context window"),
    # The provider is not able to answer now.
    "rate_limited": Word(True, "too many requests or tokens at this time (429)"),
    "overloaded": Word(True, "the provider has no capacity at this time (503, 529)"),
    "provider_error": Word(True, "the provider failed (408, 409, 425, other 5xx, an error inside a 200)"),
    "too_busy": Word(True, "this process has too many model calls waiting for their turn to be sent"),
    "closed": Word(True, "this process is closing its providers; nothing was sent"),
    # The way there and back.
    "unreachable": Word(True, "no connection: name, address, TLS or proxy"),
    "connection_lost": Word(True, "the connection broke before the answer was whole"),
    "timeout": Word(True, "no whole answer within the agent's model_timeout_ms"),
    # What came is no answer.
    "bad_response": Word(True, "status 200, but not the shape of an answer"),
    "response_too_large": Word(False, "more bytes than the provider's max_response_bytes"),
    "incomplete": Word(True, "the answer does not say that it was finished"),
    "truncated": Word(False, "the answer was cut at the token limit; a cut answer is not an answer"),
    "content_filter": Word(False, "the provider's content filter took the request or the answer away"),
    # Ours.
    "internal_error": Word(True, "a defect in the provider's code; the process log has the traceback"),
    "script_failed": Word(False, "a scripted model has no answer for this turn, or its script raised"),
}


def failure(word: str, message: str, *, retryable: bool | None = None, retry_after_ms: int = 0) -> ModelFailure:
    """A failure under a word of the table (KeyError for any other); `message` is scrubbed and cut to 2,000 characters.

    `retryable` overrides the table only where the provider itself said so. A failure that is not retryable has no pause.
    """
    verdict = WORDS[word].retryable if retryable is None else retryable
    return ModelFailure(word, cut(scrub(message), ERROR_CHARS), verdict, retry_after_ms if verdict else 0)
