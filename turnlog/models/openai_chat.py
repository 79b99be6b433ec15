"""OpenAI Chat Completions, non-streaming, against any base URL.

Two pure halves and a thin provider between them: `request_body` makes the wire's request of a `ModelRequest`, `answer_of_body`
makes a `ModelAnswer` or a `ModelFailure` of response bytes. What a model said is never mended: texts and arguments are taken
over character by character, but for lone surrogates, which no valid UTF-8 can hold.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator

from turnlog import __version__
from turnlog.core.agents import AgentSpec, MenuEntry, Usage
from turnlog.core.events import ModelAnswer, ModelFailure, RecordedCall
from turnlog.core.ids import parse_json
from turnlog.core.transcript import AssistantMessage, ModelRequest, ToolMessage, TranscriptMessage, UserMessage
from turnlog.models.errors import failure
from turnlog.models.http import HttpCall, HttpCaller, HttpReply
from turnlog.models.provider import ANSWERED, Ask, Done
from turnlog.models.settings import KindSettings
from turnlog.models.statuses import failure_in_answer
from turnlog.models.text import ToolNames, escape_surrogates, fence_error, scrub

log = logging.getLogger(__name__)

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"

RESERVED: Final = frozenset({"messages", "model", "n", "stream", "stream_options", "tools", "functions"})
"""What `model_settings` may not say, because Turnlog says it."""

UNFINISHED: Final[dict[str, tuple[str, str]]] = {
    "length": ("truncated", "the answer was cut at the token limit"),
    "max_tokens": ("truncated", "the answer was cut at the token limit"),
    "content_filter": ("content_filter", "the provider's content filter stopped the answer"),
    "error": ("provider_error", "the provider broke off the answer"),
}
"""Finish reasons that make an answer none. A missing one does too (`incomplete`); every other one is a finished answer."""


class OpenAiSettings(KindSettings):
    """`TURNLOG_MODELS__<NAME>__...` for a provider of kind `openai`."""

    base_url: str = DEFAULT_BASE_URL
    """Up to and without `/chat/completions`; a query (Azure's `?api-version=`) is kept."""
    concurrency: int = Field(default=64, ge=1, le=4096)
    """Calls under way at once, and connections."""
    waiting: int = Field(default=10_000, ge=0)
    """Calls that may wait for one of them; one more fails as `too_busy`."""
    max_response_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        parts = urlsplit(value.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give an http:// or https:// URL with a host")
        return value.strip()

    @field_validator("api_key", mode="after")
    @classmethod
    def _is_header(cls, value: SecretStr) -> SecretStr:
        return SecretStr(_header_value(value))

    @field_validator("headers", mode="after")
    @classmethod
    def _are_headers(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        return {name.lower(): SecretStr(_header_value(each)) for name, each in value.items()}


def _header_value(secret: SecretStr) -> str:
    """The value without the line end that files and shells leave on keys. Raises ValueError for what no header can hold."""
    value = secret.get_secret_value().strip()
    if not (value.isascii() and (value.isprintable() or not value)):
        raise ValueError("has characters that cannot stand in an HTTP header")
    return value


def make(name: str, settings: Mapping[str, Any], http: HttpCaller) -> OpenAiChat:
    """The provider kind `openai` (see `turnlog.models.provider.ProviderKind`)."""
    return OpenAiChat(name, OpenAiSettings.model_validate(dict(settings)), http)


class OpenAiChat:
    """One server that speaks Chat Completions. A `Provider`."""

    def __init__(self, name: str, settings: OpenAiSettings, http: HttpCaller) -> None:
        self.name = name
        self._settings = settings
        self._http = http
        self._gate = http.gate(settings.concurrency, settings.waiting)
        self._url = endpoint(settings.base_url)
        self._secrets = tuple(
            each.get_secret_value()
            for each in (settings.api_key, *settings.headers.values())
            if len(each.get_secret_value()) >= 8
        )
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",  # an answer is a few KB, and a compressed one could unpack to any size
            "user-agent": f"turnlog/{__version__}",
        }
        if settings.api_key.get_secret_value():
            self._headers["authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
        self._headers |= {name: each.get_secret_value() for name, each in settings.headers.items()}

    def ask(self, request: ModelRequest, done: Done) -> Ask:
        call = self._call(request)
        if isinstance(call, ModelFailure):
            done(call)
            return ANSWERED

        def arrived(outcome: HttpReply | ModelFailure) -> None:
            result = outcome if isinstance(outcome, ModelFailure) else _read(outcome.body, request)
            done(self._without_secrets(result) if isinstance(result, ModelFailure) else result)

        return self._http.post(self._gate, call, arrived)

    def close(self) -> None:
        """Nothing of its own: the shared HTTP caller ends its calls."""

    def _call(self, request: ModelRequest) -> HttpCall | ModelFailure:
        try:
            body = request_body(request)
        except BadRequestParts as problem:
            return failure("bad_settings", str(problem))
        except Exception as error:  # a provider never raises: the run must hear of our defect, too
            log.exception("a model request could not be built")
            return failure("internal_error", repr(error))
        headers = {**correlation(request), **self._headers}
        timeout_s = max(request.agent.model_timeout_ms, 1) / 1000
        return HttpCall(self._url, headers, body, timeout_s, self._settings.max_response_bytes)

    def _without_secrets(self, problem: ModelFailure) -> ModelFailure:
        """Some servers repeat the key they refuse; a journal is no place for it."""
        message = problem.message
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return problem._replace(message=message)


def _read(body: bytes, request: ModelRequest) -> ModelAnswer | ModelFailure:
    try:
        return answer_of_body(body, request.turn, tool_names(request.menu), _wire_model(request.agent.model))
    except Exception as error:  # as above
        log.exception("a model response could not be read")
        return failure("internal_error", repr(error))


def endpoint(base_url: str) -> str:
    """The URL to post to."""
    parts = urlsplit(base_url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/chat/completions", fragment=""))


def correlation(request: ModelRequest) -> dict[str, str]:
    """Headers that let a provider, a proxy or a log tell which turn this is. The idempotency key leaves out the attempt: the
    same request of the same turn is the same question, however often it must be asked."""
    return {
        "x-turnlog-run": request.run_id,
        "x-turnlog-turn": str(request.turn),
        "x-turnlog-attempt": str(request.attempt),
        "idempotency-key": f"{request.run_id}:t{request.turn}:{request.digest[:16]}",
    }


# ---------------------------------------------------------------- the request


class BadRequestParts(ValueError):
    """The agent or a tool of the menu makes no request; says what to change."""


def request_body(request: ModelRequest) -> bytes:
    """The request as JSON bytes (ASCII). Raises BadRequestParts."""
    agent = request.agent
    body: dict[str, Any] = {"model": _wire_model(agent.model)}
    if not body["model"]:
        raise BadRequestParts(f"model {agent.model!r} names no model: write <provider>/<model>")
    body["messages"] = wire_messages(agent.instructions, request.messages, tool_names(request.menu))
    if request.menu:
        body["tools"] = _wire_tools(request.menu)
    body.update(_model_settings(agent))
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")


def _wire_model(model: str) -> str:
    return model.partition("/")[2]


@lru_cache(maxsize=256)
def tool_names(menu: tuple[MenuEntry, ...]) -> ToolNames:
    """Wire names of a run's tools. Cached: the menu is pinned, each turn asks again."""
    return ToolNames.of_menu(entry.name for entry in menu)


@lru_cache(maxsize=256)
def _wire_tools(menu: tuple[MenuEntry, ...]) -> list[dict[str, Any]]:
    names = tool_names(menu)
    return [
        {
            "type": "function",
            "function": {
                "name": names.wire(entry.name),
                "description": entry.description,
                "parameters": _json_object(entry.parameters, f"the parameters of tool {entry.name!r}"),
            },
        }
        for entry in menu
    ]


def _model_settings(agent: AgentSpec) -> dict[str, Any]:
    settings = _json_object(agent.model_settings, f"model_settings of agent {agent.name!r}")
    taken = sorted(RESERVED & settings.keys())
    if taken:
        raise BadRequestParts(f"model_settings of agent {agent.name!r} may not set {', '.join(taken)}: Turnlog does")
    return settings


def _json_object(text: str, what: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise BadRequestParts(f"{what}: no JSON ({error})") from None
    if not isinstance(value, dict):
        raise BadRequestParts(f"{what}: no JSON object")
    return value


def wire_messages(instructions: str, messages: Sequence[TranscriptMessage], names: ToolNames) -> list[dict[str, Any]]:
    """The transcript as the wire's messages, the instructions first where there are any."""
    system = [{"role": "system", "content": instructions}] if instructions else []
    return [*system, *(_wire_message(message, names) for message in messages)]


def _wire_message(message: TranscriptMessage, names: ToolNames) -> dict[str, Any]:
    match message:
        case UserMessage(text):
            return {"role": "user", "content": text}
        case ToolMessage(provider_id, tool, content, failed):
            shown = fence_error(tool, content) if failed else content
            return {"role": "tool", "tool_call_id": provider_id, "content": shown}
        case AssistantMessage(spoken, ()):
            return {"role": "assistant", "content": spoken or ""}  # null is allowed only beside calls
        case AssistantMessage(spoken, calls):
            return {"role": "assistant", "content": spoken, "tool_calls": [_wire_call(call, names) for call in calls]}
    raise TypeError(f"no transcript message: {message!r}")


def _wire_call(call: RecordedCall, names: ToolNames) -> dict[str, Any]:
    function = {"name": names.wire(call.tool), "arguments": call.arguments}
    return {"id": call.provider_id, "type": "function", "function": function}


# ---------------------------------------------------------------- the response


class _NoAnswer(Exception):
    """Not the shape of an answer; says where."""


class _Said(NamedTuple):
    """What an assistant message says."""

    text: str | None
    calls: tuple[RecordedCall, ...]
    refused: bool


def answer_of_body(body: bytes, turn: int, names: ToolNames, asked: str) -> ModelAnswer | ModelFailure:
    """The answer in the body of a 200, or why there is none. Never raises.

    Of several choices the first counts. A finished answer without text and calls is an answer with the empty text: the model
    chose to say nothing, and whoever needs more (a conversation, a parser) says so by its own rules. A refusal is an answer
    with the refusal as its text and `refusal` as its finish. `asked` stands in for a model name the response does not give.
    """
    try:
        value = parse_json(body.decode("utf-8-sig"))
    except ValueError as error:
        return failure("bad_response", f"no JSON: {_reason(error)}; the body begins {body[:200]!r}")
    try:
        return _answer(value, turn, names, asked)
    except _NoAnswer as problem:
        return failure("bad_response", f"{problem}; the body begins {body[:200]!r}")


def _reason(error: ValueError) -> str:
    """UnicodeDecodeError repeats the whole input in its own attributes, not in its text; both texts are short."""
    return str(error) or type(error).__name__


def _answer(value: Any, turn: int, names: ToolNames, asked: str) -> ModelAnswer | ModelFailure:
    response = _dict(value, "the response")
    if response.get("error"):
        return failure_in_answer(response["error"])
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _NoAnswer("choices: no list with an item")
    choice = _dict(choices[0], "choices.0")
    if choice.get("error"):
        return failure_in_answer(choice["error"])
    finish = choice.get("finish_reason")
    if not isinstance(finish, str) or not finish:
        return failure("incomplete", "the answer has no finish_reason")
    if finish.lower() in UNFINISHED:
        return failure(*UNFINISHED[finish.lower()])
    said = read_message(_dict(choice.get("message"), "choices.0.message"), turn, names)
    if finish in ("tool_calls", "function_call") and not said.calls and not said.text:
        raise _NoAnswer(f"finish_reason is {finish}, but there are no calls")
    return ModelAnswer(
        said.text,
        said.calls,
        "refusal" if said.refused else scrub(finish),
        scrub(_text(response.get("model")) or asked),
        scrub(_text(response.get("id"))),
        _usage(response.get("usage")),
    )


def read_message(message: Mapping[str, Any], turn: int, names: ToolNames) -> _Said:
    """Text and calls of an assistant message. Raises _NoAnswer, but never reads half a call."""
    text = _content(message.get("content"))
    refusal = _content(message.get("refusal")) or _refusal_parts(message.get("content"))
    refused = bool(refusal) and not text
    calls = _calls(message, turn, names)
    if refused:
        text = refusal
    if text is None and not calls:
        text = ""
    return _Said(text, calls, refused)


def _content(content: Any) -> str | None:
    """A text, or the texts of a list of parts joined; None where there is none."""
    match content:
        case None:
            return None
        case str():
            return scrub(content)
        case list():
            texts = [_text(part.get("text")) for part in content if isinstance(part, dict)]
            return scrub("".join(texts)) if texts else None
    raise _NoAnswer("choices.0.message.content: no text")


def _refusal_parts(content: Any) -> str | None:
    if not isinstance(content, list):
        return None
    return scrub("".join(_text(part.get("refusal")) for part in content if isinstance(part, dict)))


def _calls(message: Mapping[str, Any], turn: int, names: ToolNames) -> tuple[RecordedCall, ...]:
    items = message.get("tool_calls")
    if not items:
        legacy = message.get("function_call")
        items = [{"function": legacy}] if legacy else []
    if not isinstance(items, list):
        raise _NoAnswer("choices.0.message.tool_calls: no list")
    taken: set[str] = set()
    return tuple(_call(item, position, turn, names, taken) for position, item in enumerate(items))


def _call(item: Any, position: int, turn: int, names: ToolNames, taken: set[str]) -> RecordedCall:
    where = f"choices.0.message.tool_calls.{position}"
    call = _dict(item, where)
    function = _dict(call.get("function") or call.get("custom"), f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str):
        raise _NoAnswer(f"{where}.function.name: no text")
    provider_id = scrub(_text(call.get("id")))
    if not provider_id or provider_id in taken:
        # The wire joins results to calls by this id, so within one answer it must be there and be unique.
        provider_id = f"call_t{turn}_{position}"
    taken.add(provider_id)
    arguments = function.get("arguments", function.get("input"))
    return RecordedCall(provider_id, names.menu(scrub(name)), _arguments(arguments))


def _arguments(arguments: Any) -> str:
    """The argument text untouched. Servers that hand over the value itself get its JSON; none at all is the empty object."""
    if isinstance(arguments, str):
        return escape_surrogates(arguments)
    return "{}" if arguments is None else json.dumps(arguments, separators=(",", ":"), allow_nan=False)


def _usage(usage: Any) -> Usage:
    """Token counts; what is missing or absurd counts as 0, since no answer is thrown away for its bill."""
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return 0
    return int(value)


def _dict(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _NoAnswer(f"{where}: no object")
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
