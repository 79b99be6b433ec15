"""The scripted model: it answers what was recorded, refuses everything else, and behaves on the wire."""

import asyncio
import copy
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.airline_retail.http1 import Request, Response
from examples.airline_retail.model_server import Faults, Latency, Model, RequestLog
from examples.airline_retail.recording import (
    DATA_DIR,
    DOMAINS,
    Recording,
    Step,
    load_recordings,
    load_tools,
    load_truths,
    prompts_for,
)
from examples.airline_retail.script import Script, ToolResult, Unexpected, completion, transcript

RECORDINGS = load_recordings(DATA_DIR / "sample.jsonl")
TRUTHS = load_truths(DATA_DIR / "sample_truth.jsonl")
PROMPTS = prompts_for(RECORDINGS.values())
SCRIPT = Script(RECORDINGS, TRUTHS, PROMPTS, {domain: load_tools(domain) for domain in DOMAINS})
REFUSALS = RECORDINGS["tau-airline-gpt4o-t032-r0"]
"""Two of its calls are refused by the tool."""


def messages(recording: Recording, turn: int) -> Iterator[dict[str, Any]]:
    """The transcript as an OpenAI client sends it."""
    for message in transcript(recording, TRUTHS[recording.id], PROMPTS[recording.prompt_ref], turn):
        match message:
            case Step():
                yield completion(message, {}, "", 0)["choices"][0]["message"]
            case ToolResult(call, truth):
                assert truth is not None
                yield {"role": "tool", "tool_call_id": call.id, "content": truth.output}
            case (role, text):
                yield {"role": role, "content": text}


def request(recording: Recording, turn: int) -> dict[str, Any]:
    tools = load_tools(recording.domain)
    return {"model": "gpt-4o", "messages": list(messages(recording, turn)), "tools": tools}


def last_turn(recording: Recording) -> int:
    return len(recording.steps) - 1


@pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS)
def test_a_run_as_recorded_gets_every_answer(recording: Recording) -> None:
    for turn, step in enumerate(recording.steps):
        assert SCRIPT.step(f"p.{recording.id}", turn, request(recording, turn)) is step


def at(number: int, part: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        body["messages"][number][part] = value

    return change


def find(body: dict[str, Any], role: str, last: bool = True) -> dict[str, Any]:
    found: list[dict[str, Any]] = [message for message in body["messages"] if message["role"] == role]
    return found[-1 if last else 0]


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "other prompt": (at(0, "content", "Be nice."), "message 0, content: wanted .* got 'Be nice.'"),
    "no prompt": (lambda body: body["messages"].pop(0), "message 0, role"),
    "other user": (at(1, "content", "Hi"), "message 1, content"),
    "message too many": (lambda body: body["messages"].append({"role": "user", "content": "?"}), "wanted None"),
    "message too few": (lambda body: body["messages"].pop(), "got None"),
    "other result": (lambda body: find(body, "tool").update(content="{}"), "content: wanted .* got '{}'"),
    "other call id": (lambda body: find(body, "tool").update(tool_call_id="x"), "tool_call_id"),
    "answer lost": (lambda body: find(body, "assistant").update(tool_calls=[]), "calls: wanted"),
    "arguments normalised": (
        lambda body: find(body, "assistant")["tool_calls"][0]["function"].update(arguments="{}"),
        "calls: wanted",
    ),
    "tool missing": (lambda body: body["tools"].pop(), "tools offered"),
    "tool described otherwise": (lambda body: body["tools"][0]["function"].update(description="?"), "description of"),
    "tool with another schema": (lambda body: body["tools"][0]["function"].update(parameters={}), "parameters of"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_differs_from_the_recording_is_refused(name: str) -> None:
    change, complaint = CHANGES[name]
    recording = RECORDINGS["tau-airline-gpt4o-t028-r0"]
    turn = next(turn for turn in range(5, 99) if recording.steps[turn - 1].calls)
    body = copy.deepcopy(request(recording, turn))
    change(body)
    with pytest.raises(Unexpected, match=complaint):
        SCRIPT.step(f"p.{recording.id}", turn, body)


@pytest.mark.parametrize(
    ("run_id", "turn", "complaint"),
    [
        ("p.unknown", 0, "plays no recording"),
        ("nameless", 0, "plays no recording"),
        (f"p.{REFUSALS.id}", 16, "never recorded"),
        (f"p.{REFUSALS.id}", 3, "message"),
    ],
)
def test_what_was_never_recorded_is_refused(run_id: str, turn: int, complaint: str) -> None:
    with pytest.raises(Unexpected, match=complaint):
        SCRIPT.step(run_id, turn, request(REFUSALS, 2))


def test_what_varies_between_clients_is_not_compared() -> None:
    body = request(REFUSALS, last_turn(REFUSALS))
    body["messages"][0]["role"] = "developer"
    body["messages"][1]["content"] = [{"type": "text", "text": REFUSALS.opening}]
    body["tools"].reverse()
    next(tool["function"] for tool in body["tools"] if tool["function"]["name"] == "think")["parameters"] = {}
    for message in body["messages"]:
        if message.get("tool_calls"):
            message["content"] = ""
    SCRIPT.step(f"p.{REFUSALS.id}", last_turn(REFUSALS), body)


def test_a_refusal_may_come_fenced_but_not_changed() -> None:
    body = request(REFUSALS, last_turn(REFUSALS))
    refusal = next(m for m in body["messages"] if m["role"] == "tool" and m["content"].startswith("Error"))
    refusal["content"] = f"<tool_error>\n{refusal['content']}\n</tool_error>"
    SCRIPT.step(f"p.{REFUSALS.id}", last_turn(REFUSALS), body)
    refusal["content"] = "<tool_error>\nError\n</tool_error>"
    with pytest.raises(Unexpected, match="content"):
        SCRIPT.step(f"p.{REFUSALS.id}", last_turn(REFUSALS), body)


def test_without_a_truth_results_are_not_compared() -> None:
    body = request(REFUSALS, last_turn(REFUSALS))
    find(body, "tool")["content"] = "anything"
    Script(RECORDINGS, {}, PROMPTS, SCRIPT.tools).step(f"p.{REFUSALS.id}", last_turn(REFUSALS), body)


# Faults


@pytest.mark.parametrize(
    ("text", "latency"),
    [
        ("0", Latency()),
        ("20", Latency("constant", 20, 20)),
        ("uniform:20:80", Latency("uniform", 20, 80)),
        ("exponential:50", Latency("exponential", 50, 50)),
    ],
)
def test_latencies_are_written_so(text: str, latency: Latency) -> None:
    assert Latency.parse(text) == latency


@pytest.mark.parametrize("text", ["", "x", "-1", "uniform:80:20", "uniform:1", "99999999", "nan"])
def test_other_latencies_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"latency|write|float"):
        Latency.parse(text)


def asked(model: Model, turn: int = 0) -> Response | None:
    headers = {"x-turnlog-run": f"p.{REFUSALS.id}", "x-turnlog-turn": str(turn)}
    body = json.dumps(request(REFUSALS, turn)).encode()
    return asyncio.run(model.handle(Request("POST", "/v1/chat/completions", headers, body)))


async def no_sleep(_: float) -> None:
    return None


def test_faults_follow_from_the_seed_and_not_from_the_order(tmp_path: Path) -> None:
    def statuses(seed: int, turns: list[int]) -> dict[int, list[int | None]]:
        faults = Faults(rate_limited=0.2, server_error=0.2, timeout=0.1, hang_up=0.1)
        model = Model(SCRIPT, RequestLog(None), faults=faults, seed=seed, sleep=no_sleep)
        seen: dict[int, list[int | None]] = {}
        for turn in turns:
            response = asked(model, turn)
            seen.setdefault(turn, []).append(response.status if response else None)
        return dict(sorted(seen.items()))

    turns = list(range(10)) * 5
    first = statuses(1, turns)
    assert first == statuses(1, turns[::-1]) != statuses(2, turns)
    assert {status for row in first.values() for status in row} == {200, 429, 500, None}


def test_every_request_is_noted_before_it_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(path)
    seen: list[int] = []

    async def sleep(_: float) -> None:
        seen.append(len(path.read_text().splitlines()))

    model = Model(SCRIPT, log, now=lambda: 7.5, sleep=sleep)
    responses = [asked(model), asked(model)]
    log.close()
    first, second = map(json.loads, path.read_text().splitlines())
    assert seen == [1, 2]
    assert (first["run"], first["turn"], first["at"], first["status"]) == (f"p.{REFUSALS.id}", 0, 7.5, 200)
    assert (first["ask"], second["ask"]) == (1, 2)
    assert first["digest"] == second["digest"]
    assert [json.loads(r.body)["id"] for r in responses if r] == [first["answer"], second["answer"]]


# The wire


@pytest.fixture
def server() -> Iterator[str]:
    command = [sys.executable, "-W", "error", "-m", "examples.airline_retail.model_server"]
    with subprocess.Popen([*command, "--latency", "1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["base_url"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_a_client_gets_answers_and_errors_over_one_connection(server: str) -> None:
    recording = RECORDINGS["tau-airline-gpt4o-t041-r0"]
    with httpx.Client(base_url=server, trust_env=False) as client:
        for turn, step in enumerate(recording.steps):
            headers = {"x-turnlog-run": f"p.{recording.id}", "x-turnlog-turn": str(turn)}
            answer = client.post("/chat/completions", json=request(recording, turn), headers=headers)
            choice = answer.json()["choices"][0]
            assert (answer.status_code, choice["message"]["content"]) == (200, step.content)
            assert choice["finish_reason"] == ("tool_calls" if step.calls else "stop")
        named_by_user = request(recording, 1) | {"user": f"p.{recording.id}"}
        assert client.post("/chat/completions", json=named_by_user).status_code == 200
        refused = client.post("/chat/completions", json=request(recording, 2), headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "unexpected_request")
        assert client.post("/chat/completions", content=b"{").status_code == 400
        assert client.post("/chat/completions", json={"messages": []}).status_code == 400
        assert client.post("/chat/completions", json=named_by_user | {"stream": True}).status_code == 400
        assert client.get("/chat/completions").status_code == 405
        assert client.get("/models").status_code == 404
        assert client.post("/chat/completions", content=b"x" * (17 << 20)).status_code == 413


def test_what_is_not_http_gets_a_400_and_the_server_goes_on(server: str) -> None:
    address = (httpx.URL(server).host, httpx.URL(server).port or 0)
    for nonsense in (b"\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000):
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            assert b" 4" in connection.makefile("rb").readline()
    assert httpx.get(str(httpx.URL(server).join("/healthz")), trust_env=False).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--runs", "no-such-file"], "no-such-file"), (["--rate-limited", "2"], "add up"), (["--latency", "x"], "float")],
)
def test_a_wrong_option_is_explained(arguments: list[str], complaint: str) -> None:
    command = [sys.executable, "-m", "examples.airline_retail.model_server", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert complaint in done.stderr
