"""Recorded OpenAI Chat exchanges (non-streaming), served again over real sockets with bodies cut at random.

The cassettes under `tests/data/cassettes` name their origin and license; `observed` is what each response must parse to.
"""

from __future__ import annotations

import gzip
import json
import queue
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnlog.core.agents import AgentSpec, MenuEntry
from turnlog.core.events import ModelAnswer, ModelFailure, RecordedCall
from turnlog.core.transcript import AssistantMessage, ModelRequest, ToolMessage, TranscriptMessage, UserMessage
from turnlog.models.openai_chat import RESERVED
from turnlog.models.provider import Providers
from turnlog.models.settings import ProviderSettings
from turnlog.testing.http_replay import Received, ReplayServer, Reply, pieces_of

CASSETTES = Path(__file__).parents[2] / "data" / "cassettes"


def exchanges() -> Iterator[Any]:
    for path in sorted(CASSETTES.glob("*openai-chat*.json")):
        for exchange in json.loads(path.read_bytes())["exchanges"]:
            if not exchange["response"]["sse"]:
                yield pytest.param(exchange, id=f"{path.stem}.{exchange['index']}")


def transcript(messages: list[dict[str, Any]]) -> tuple[str, tuple[TranscriptMessage, ...]]:
    """Instructions and transcript that a recorded request stands for."""
    instructions = ""
    said: list[TranscriptMessage] = []
    called: dict[str, str] = {}
    for message in messages:
        match message["role"]:
            case "system":
                instructions = message["content"]
            case "user":
                said.append(UserMessage(message["content"]))
            case "assistant":
                calls = [(each["id"], each["function"]) for each in message["tool_calls"]]
                called |= {provider_id: function["name"] for provider_id, function in calls}
                recorded = tuple(RecordedCall(each, made["name"], made["arguments"]) for each, made in calls)
                said.append(AssistantMessage(message.get("content"), recorded))
            case "tool":
                provider_id = message["tool_call_id"]
                said.append(ToolMessage(provider_id, called[provider_id], message["content"], False))
    return instructions, tuple(said)


def model_request(recorded: dict[str, Any]) -> ModelRequest:
    instructions, messages = transcript(recorded["messages"])
    functions = [tool["function"] for tool in recorded.get("tools", ())]
    menu = tuple(
        MenuEntry(each["name"], "t", "1", "t", each["description"], json.dumps(each["parameters"]))
        for each in functions
    )
    settings = json.dumps({name: value for name, value in recorded.items() if name not in RESERVED})
    agent = AgentSpec("a", "1", instructions, f"local/{recorded['model']}", settings, model_timeout_ms=30_000)
    return ModelRequest("run-1", 3, 1, agent, menu, messages, "ab" * 32)


def as_sent(recorded: dict[str, Any]) -> dict[str, Any]:
    """The recorded request with what Turnlog writes otherwise: content is null beside calls, not absent; no `strict`, no
    `stream: false`, no `n: 1`."""
    kept = {name: value for name, value in recorded.items() if name not in ("stream", "n")}
    kept["messages"] = [{"content": None} | message for message in recorded["messages"]]
    if "tools" in kept:
        functions = [{k: v for k, v in tool["function"].items() if k != "strict"} for tool in recorded["tools"]]
        kept["tools"] = [{"type": "function", "function": each} for each in functions]
    return kept


def ask(exchange: dict[str, Any], chance: random.Random) -> tuple[ModelAnswer | ModelFailure, Received]:
    """The recorded question, asked of a server that gives the recorded response."""
    response = exchange["response"]
    body = (CASSETTES / response["body_file"]).read_bytes()
    if response["headers"].get("content-encoding") == "gzip":  # recorded after unpacking; a server may compress unasked
        body = gzip.compress(body)
    framing = ("content-length", "transfer-encoding")
    headers = tuple((name, value) for name, value in response["headers"].items() if name not in framing)
    reply = Reply(pieces_of(body, chance), response["status"], headers, chunked=chance.random() < 0.5)
    server = ReplayServer(lambda _: reply)
    providers = Providers.from_settings(
        {"local": ProviderSettings.model_validate({"kind": "openai", "base_url": server.url})}
    )
    outcomes: queue.SimpleQueue[ModelAnswer | ModelFailure] = queue.SimpleQueue()
    try:
        providers.ask(model_request(exchange["request"]["json"]), outcomes.put)
        return outcomes.get(timeout=30), server.received[0]
    finally:
        providers.close()
        server.close()


@pytest.mark.parametrize("exchange", list(exchanges()))
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_recorded_exchange(exchange: dict[str, Any], seed: int) -> None:
    outcome, received = ask(exchange, random.Random(seed))
    assert json.loads(received.body) == as_sent(exchange["request"]["json"])
    assert received.path == "/chat/completions"
    assert received.headers["idempotency-key"] == "run-1:t3:abababababababab"
    observed = exchange["observed"]
    if exchange["response"]["status"] == 200:
        assert isinstance(outcome, ModelAnswer)
        calls = [call._asdict() for call in outcome.calls]
        expected = [
            {"provider_id": each["id"], "tool": each["name"], "arguments": each["arguments"]}
            for each in observed["tool_calls"]
        ]
        assert calls == expected
        assert (outcome.text or "") == observed["text"]
        assert outcome.finish == observed["stop"]
        usage = observed["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        assert outcome.usage == (usage["prompt_tokens"], usage["completion_tokens"], cached)
    else:
        assert isinstance(outcome, ModelFailure)
        assert observed["error"]["message"] in outcome.message
        status = exchange["response"]["status"]
        assert (outcome.error, outcome.retryable) == (
            ("rate_limited", True) if status == 429 else ("bad_request", False)
        )


def test_there_are_recorded_exchanges() -> None:
    assert len(list(exchanges())) >= 25
