"""OpenAI Chat Completions: what is sent for a request, and what the bytes that come back mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.agents import AgentSpec, MenuEntry, Usage
from turnlog.core.events import ModelAnswer, ModelFailure, RecordedCall
from turnlog.core.transcript import AssistantMessage, ModelRequest, ToolMessage, TranscriptMessage, UserMessage
from turnlog.models.errors import WORDS
from turnlog.models.openai_chat import BadRequestParts, answer_of_body, correlation, endpoint, request_body
from turnlog.models.text import ToolNames

SEARCH = MenuEntry("kb.search", "kb", "1", "tool-requests.kb", "Searches.", '{"type":"object","properties":{"q":{}}}')
THINK = MenuEntry("think", "kb", "1", "tool-requests.kb", takes_text=True)
NAMES = ToolNames.of_menu(["kb.search", "think"])
WIRE_SEARCH = NAMES.wire("kb.search")


def model_request(*messages: TranscriptMessage, menu: tuple[MenuEntry, ...] = (), **agent: Any) -> ModelRequest:
    spec = AgentSpec(**{"name": "a", "version": "1", "instructions": "", "model": "openai/gpt-4o", **agent})
    return ModelRequest("run-1", 2, 3, spec, menu, messages, "0123456789abcdef" * 4)


def sent(request: ModelRequest) -> Any:
    return json.loads(request_body(request))


# ---------------------------------------------------------------- the request


def test_a_whole_request() -> None:
    calls = (RecordedCall("id-1", "kb.search", '{"q": "é"'), RecordedCall("id-2", "think", "hmm, é"))
    request = model_request(
        UserMessage("hi"),
        AssistantMessage(None, calls),
        ToolMessage("id-1", "kb.search", "no such </tool_error> index", True),
        ToolMessage("id-2", "think", "", False),
        AssistantMessage("well"),
        AssistantMessage(None),
        menu=(SEARCH, THINK),
        instructions="Be kind.",
        model="azure/org/gpt-4o",
        model_settings='{"temperature": 0, "tool_choice": "auto"}',
    )
    function = {
        "name": WIRE_SEARCH,
        "description": "Searches.",
        "parameters": {"type": "object", "properties": {"q": {}}},
    }
    think = {"name": "think", "description": "", "parameters": {"type": "object", "properties": {}}}
    assert sent(request) == {
        "model": "org/gpt-4o",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "id-1", "type": "function", "function": {"name": WIRE_SEARCH, "arguments": '{"q": "é"'}},
                    {"id": "id-2", "type": "function", "function": {"name": "think", "arguments": "hmm, é"}},
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "id-1",
                "content": '<tool_error tool="kb.search">\nno such &lt;/tool_error> index\n</tool_error>',
            },
            {"role": "tool", "tool_call_id": "id-2", "content": ""},
            {"role": "assistant", "content": "well"},
            {"role": "assistant", "content": ""},
        ],
        "tools": [{"type": "function", "function": function}, {"type": "function", "function": think}],
        "temperature": 0,
        "tool_choice": "auto",
    }


def test_nothing_that_was_not_asked_for() -> None:
    assert sent(model_request(UserMessage("hi"))) == {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_an_ok_result_is_verbatim() -> None:
    text = "<tool_error>\u2028 & \U0001f600"
    assert sent(model_request(ToolMessage("i", "t", text, False)))["messages"][0]["content"] == text


@pytest.mark.parametrize(
    ("agent", "menu", "complaint"),
    [
        ({"model_settings": '{"stream": true, "n": 2}'}, (), "may not set n, stream"),
        ({"model_settings": '{"messages": []}'}, (), "may not set messages"),
        ({"model_settings": "[]"}, (), "no JSON object"),
        ({"model_settings": "{"}, (), "model_settings of agent 'a': no JSON"),
        ({"model_settings": '{"temperature": 1e999}'}, (), "no JSON"),
        ({"model": "openai"}, (), "names no model"),
        ({"model": "openai/"}, (), "names no model"),
        ({}, (SEARCH._replace(parameters="nothing"),), "the parameters of tool 'kb.search': no JSON"),
    ],
)
def test_what_makes_no_request(agent: dict[str, Any], menu: tuple[MenuEntry, ...], complaint: str) -> None:
    with pytest.raises(BadRequestParts, match=complaint):
        request_body(model_request(menu=menu, **agent))


def test_the_idempotency_key_is_the_same_for_every_attempt() -> None:
    request = model_request()
    assert correlation(request) == {
        "x-turnlog-run": "run-1",
        "x-turnlog-turn": "2",
        "x-turnlog-attempt": "3",
        "idempotency-key": "run-1:t2:0123456789abcdef",
    }
    assert correlation(request._replace(attempt=4))["idempotency-key"] == "run-1:t2:0123456789abcdef"


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://host/v1", "https://host/v1/chat/completions"),
        ("https://host/v1/", "https://host/v1/chat/completions"),
        ("http://host:1", "http://host:1/chat/completions"),
        ("https://host/d/gpt?api-version=1", "https://host/d/gpt/chat/completions?api-version=1"),
    ],
)
def test_endpoints(base: str, url: str) -> None:
    assert endpoint(base) == url


# ---------------------------------------------------------------- the response


def read(response: Any) -> ModelAnswer | ModelFailure:
    body = response if isinstance(response, bytes) else json.dumps(response).encode()
    return answer_of_body(body, 2, NAMES, "asked")


def completion(finish: Any = "stop", **message: Any) -> dict[str, Any]:
    return {"id": "r-1", "model": "m-1", "choices": [{"index": 0, "finish_reason": finish, "message": message}]}


def call(name: str = "think", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def test_a_whole_answer() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    calls = [call(WIRE_SEARCH, '{ "q":1 }', id="a"), call("made_up", "not json", id="b")]
    response = completion("tool_calls", content=" both ", tool_calls=calls) | {"usage": usage}
    expected = (RecordedCall("a", "kb.search", '{ "q":1 }'), RecordedCall("b", "made_up", "not json"))
    assert read(response) == ModelAnswer(" both ", expected, "tool_calls", "m-1", "r-1", Usage(9, 3, 4))


def test_the_first_of_several_choices_counts() -> None:
    response = completion(content="first")
    response["choices"] += completion("length", content="second")["choices"]
    assert read(response) == ModelAnswer("first", (), "stop", "m-1", "r-1")


@pytest.mark.parametrize("content", ["", None, []])
def test_a_finished_answer_that_says_nothing(content: Any) -> None:
    assert read(completion(content=content)) == ModelAnswer("", (), "stop", "m-1", "r-1")


def test_text_in_parts() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": "two"}, "?"]
    assert read(completion(content=parts)) == ModelAnswer("one two", (), "stop", "m-1", "r-1")


@pytest.mark.parametrize(
    "message",
    [{"content": None, "refusal": "I will not."}, {"content": [{"type": "refusal", "refusal": "I will not."}]}],
)
def test_a_refusal_is_an_answer_with_its_own_finish(message: dict[str, Any]) -> None:
    assert read(completion(**message)) == ModelAnswer("I will not.", (), "refusal", "m-1", "r-1")


def test_ids_that_are_missing_or_doubled_are_made_up_from_the_place() -> None:
    calls = [call(), call(id=""), call(id="x"), call(id="x"), call(id=7)]
    answer = read(completion("tool_calls", tool_calls=calls))
    assert isinstance(answer, ModelAnswer)
    assert [each.provider_id for each in answer.calls] == ["call_t2_0", "call_t2_1", "x", "call_t2_3", "call_t2_4"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [("", ""), ("{ }", "{ }"), (None, "{}"), ({"b": 1, "a": "é"}, '{"b":1,"a":"\\u00e9"}'), ([], "[]")],
)
def test_arguments_as_text(arguments: Any, text: str) -> None:
    answer = read(completion("tool_calls", tool_calls=[call(arguments=arguments)]))
    assert isinstance(answer, ModelAnswer)
    assert answer.calls[0].arguments == text


def test_older_and_other_kinds_of_calls() -> None:
    legacy = read(completion("function_call", content=None, function_call={"name": "think", "arguments": "x"}))
    assert legacy == ModelAnswer(None, (RecordedCall("call_t2_0", "think", "x"),), "function_call", "m-1", "r-1")
    custom = read(completion("tool_calls", tool_calls=[{"id": "c", "custom": {"name": "think", "input": "free"}}]))
    assert isinstance(custom, ModelAnswer)
    assert custom.calls == (RecordedCall("c", "think", "free"),)


def test_calls_count_whatever_the_finish_says() -> None:
    answer = read(completion("stop", content=None, tool_calls=[call(id="a")]))
    assert isinstance(answer, ModelAnswer)
    assert len(answer.calls) == 1


def test_lone_surrogates() -> None:
    calls = [call("th\ud800", '{"q":"\udfff"}', id="i\ud800")]
    answer = read(completion("tool_calls", content="a\ud83d", tool_calls=calls) | {"id": "\ud800", "model": "\ud800"})
    expected = (RecordedCall("i\ufffd", "th\ufffd", '{"q":"\\udfff"}'),)
    assert answer == ModelAnswer("a\ufffd", expected, "tool_calls", "\ufffd", "\ufffd")


def test_a_response_without_model_and_id() -> None:
    response = completion(content="x")
    del response["model"], response["id"]
    assert read(response) == ModelAnswer("x", (), "stop", "asked", "")


@pytest.mark.parametrize(
    "usage", [None, [], {}, {"prompt_tokens": "9", "completion_tokens": -1}, {"prompt_tokens": True}]
)
def test_no_answer_is_lost_for_its_bill(usage: Any) -> None:
    assert read(completion(content="x") | {"usage": usage}) == ModelAnswer("x", (), "stop", "m-1", "r-1")


@pytest.mark.parametrize(
    ("response", "word"),
    [
        (completion("length", content="half"), "truncated"),
        (completion("MAX_TOKENS", content="half"), "truncated"),
        (completion("length", tool_calls=[call(arguments='{"q": "ha')]), "truncated"),
        (completion("content_filter", content="ha"), "content_filter"),
        (completion("error", content="ha"), "provider_error"),
        (completion(None, content="ha"), "incomplete"),
        (completion("", content="ha"), "incomplete"),
        ({"choices": [{"message": {"content": "ha"}}]}, "incomplete"),
        ({"error": {"code": 429, "message": "later"}}, "rate_limited"),
        ({"choices": [{"error": {"code": 502, "message": "later"}}]}, "provider_error"),
        ({"choices": []}, "bad_response"),
        ({"choices": {}}, "bad_response"),
        ({}, "bad_response"),
        ([], "bad_response"),
        ("text", "bad_response"),
        ({"choices": [None]}, "bad_response"),
        ({"choices": [{"finish_reason": "stop", "message": None}]}, "bad_response"),
        (completion(content=7), "bad_response"),
        (completion("tool_calls", content=""), "bad_response"),
        (completion("tool_calls", tool_calls="x"), "bad_response"),
        (completion("tool_calls", tool_calls=[None]), "bad_response"),
        (completion("tool_calls", tool_calls=[{"id": "a"}]), "bad_response"),
        (completion("tool_calls", tool_calls=[call(), {"function": {"arguments": "{}"}}]), "bad_response"),
        (b'{"choices": [', "bad_response"),
        (b"[" * 100_000 + b"]" * 100_000, "bad_response"),
        (b"1" * 10_000, "bad_response"),
        (b'{"usage": {"prompt_tokens": 1e999}}', "bad_response"),
        (b'{"choices": [{"finish_reason": "tool_calls", "message": {"tool_calls": [{"function": {"name": "t", "arguments": 1e999}}]}}]}', "bad_response"),
    ],
)  # fmt: skip
def test_what_is_no_answer(response: Any, word: str) -> None:
    problem = read(response)
    assert isinstance(problem, ModelFailure)
    assert problem.error == word
    assert problem.retryable == WORDS[word].retryable
    assert len(problem.message) <= 2_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
PARTS = [
    "choices",
    "message",
    "content",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "finish_reason",
    "usage",
    "refusal",
    "error",
]


@given(st.data())
def test_no_response_raises(data: st.DataObject) -> None:
    """A good response with one part replaced by anything at all."""
    response = completion("tool_calls", content="x", refusal=None, tool_calls=[call(id="a")])
    response |= {"usage": {}, "error": None}
    target = data.draw(st.sampled_from(PARTS))

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: data.draw(json_values) if k == target else spoil(v) for k, v in value.items()}
        return [spoil(each) for each in value] if isinstance(value, list) else value

    outcome = read(spoil(response))
    if isinstance(outcome, ModelFailure):
        assert outcome.error in WORDS
        outcome.message.encode()
    else:
        json.dumps(outcome, ensure_ascii=False).encode()  # no lone surrogate anywhere


@given(st.binary(max_size=300))
def test_no_bytes_raise(body: bytes) -> None:
    assert isinstance(read(body), ModelFailure)
