"""What a provider's server, or the way to it, can do to a question: each with its word, over real sockets on loopback."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from turnlog.core.agents import AgentSpec
from turnlog.core.events import ModelAnswer, ModelFailure
from turnlog.core.transcript import ModelRequest, UserMessage
from turnlog.models.provider import Ask, Providers
from turnlog.models.settings import ProviderSettings
from turnlog.testing.http_replay import Received, ReplayServer, Reply

WAIT_S = 30.0
ANSWER = json.dumps({"choices": [{"finish_reason": "stop", "message": {"content": "hello"}}]}).encode()


def model_request(run_id: str = "run-1", timeout_ms: int = 20_000) -> ModelRequest:
    agent = AgentSpec("a", "1", "", "local/some/model", model_timeout_ms=timeout_ms)
    return ModelRequest(run_id, 0, 1, agent, (), (UserMessage("hi"),), "0" * 64)


class Scene:
    """A server that answers as the test says, and providers that ask it."""

    def __init__(self) -> None:
        self.reply: Callable[[Received], Reply] = lambda _: Reply((ANSWER,))
        self.server = ReplayServer(self._reply_now)
        self.outcomes: queue.SimpleQueue[ModelAnswer | ModelFailure] = queue.SimpleQueue()
        self.release = threading.Event()
        self.providers: Providers | None = None

    def _reply_now(self, received: Received) -> Reply:
        return self.reply(received)

    def configure(self, **settings: Any) -> Providers:
        given = {"kind": "openai", "base_url": self.server.url, **settings}
        self.providers = Providers.from_settings({"local": ProviderSettings.model_validate(given)})
        return self.providers

    def ask(self, request: ModelRequest | None = None) -> Ask:
        return (self.providers or self.configure()).ask(request or model_request(), self.outcomes.put)

    def outcome(self, request: ModelRequest | None = None) -> ModelAnswer | ModelFailure:
        self.ask(request)
        return self.outcomes.get(timeout=WAIT_S)

    def failure(self, request: ModelRequest | None = None) -> ModelFailure:
        outcome = self.outcome(request)
        assert isinstance(outcome, ModelFailure)
        return outcome

    def close(self) -> None:
        self.release.set()
        if self.providers is not None:
            self.providers.close()
        self.server.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def test_the_simplest_answer(scene: Scene) -> None:
    scene.configure(api_key="sk-test\n", headers={"X-Team": "billing"})
    assert scene.outcome() == ModelAnswer("hello", (), "stop", "some/model")
    received = scene.server.received[0]
    assert received.headers["authorization"] == "Bearer sk-test"
    assert received.headers["x-team"] == "billing"
    assert received.headers["x-turnlog-run"] == "run-1"
    assert received.headers["x-turnlog-turn"] == "0"
    assert received.headers["x-turnlog-attempt"] == "1"
    assert json.loads(received.body) == {"model": "some/model", "messages": [{"role": "user", "content": "hi"}]}


def test_rate_limit_says_when_to_come_back(scene: Scene) -> None:
    scene.reply = lambda _: Reply((b'{"error":{"message":"slow down"}}',), 429, (("retry-after", "7"),))
    assert scene.failure() == ModelFailure("rate_limited", "HTTP 429: slow down", True, 7_000)


def test_server_error_with_a_page(scene: Scene) -> None:
    scene.reply = lambda _: Reply((b"<html><title>Bad gateway</title><p>upstream</p></html>",), 502)
    assert scene.failure() == ModelFailure("provider_error", "HTTP 502: Bad gateway upstream", True)


def test_a_refused_key_is_not_repeated(scene: Scene) -> None:
    scene.configure(api_key="sk-very-secret")
    scene.reply = lambda _: Reply((b'{"error":{"message":"Incorrect API key: sk-very-secret"}}',), 401)
    assert scene.failure() == ModelFailure("authentication", "HTTP 401: Incorrect API key: ***", False)


def test_redirects_are_not_followed(scene: Scene) -> None:
    scene.reply = lambda _: Reply((), 308, (("location", "https://elsewhere.example/v1"),))
    problem = scene.failure()
    assert (problem.error, problem.retryable) == ("bad_request", False)
    assert "https://elsewhere.example/v1" in problem.message
    assert len(scene.server.received) == 1


@pytest.mark.parametrize("pieces", [(), (ANSWER[:10], ANSWER[10:])], ids=["silent", "stops in the body"])
def test_too_slow(scene: Scene, pieces: tuple[bytes, ...]) -> None:
    scene.reply = lambda _: Reply(pieces, hold=scene.release)
    assert scene.failure(model_request(timeout_ms=50)) == ModelFailure("timeout", "no whole answer within 0.05 s", True)


@pytest.mark.parametrize(
    "reply",
    [
        Reply((ANSWER[:20],), missing=len(ANSWER) - 20),
        Reply((ANSWER[:20],), missing=len(ANSWER) - 20, reset=True),
        Reply((ANSWER[:20], ANSWER[20:]), missing=1, chunked=True),
        Reply(raw=b""),
        Reply(raw=b"SSH-2.0-OpenSSH_9.2\r\n"),
        Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}"),
    ],
    ids=["short", "reset", "no last chunk", "closed at once", "not HTTP", "two lengths"],
)
def test_broken_connection(scene: Scene, reply: Reply) -> None:
    scene.reply = lambda _: reply
    problem = scene.failure()
    assert (problem.error, problem.retryable) == ("connection_lost", True)
    assert problem.message.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>please log in</html>", b'{"choices": [{"finish_reason": "stop", "message": NaN}]}', b"\xff\xfe", b"[" * 100_000],
    ids=["empty", "page", "NaN", "not UTF-8", "deep"],
)  # fmt: skip
def test_garbage_with_status_200(scene: Scene, body: bytes) -> None:
    scene.reply = lambda _: Reply((body,) if body else ())
    problem = scene.failure()
    assert (problem.error, problem.retryable) == ("bad_response", True)
    assert len(problem.message) <= 2_000


def test_a_body_that_claims_to_be_gzip(scene: Scene) -> None:
    scene.reply = lambda _: Reply((ANSWER,), headers=(("content-encoding", "gzip"),))
    assert scene.failure().error == "bad_response"
    assert scene.server.received[0].headers["accept-encoding"] == "identity"


def test_a_huge_body_is_not_read_to_its_end(scene: Scene) -> None:
    scene.configure(max_response_bytes=1024)
    # The last piece never comes: only a reader that stops at the bound gets an outcome before the timeout.
    scene.reply = lambda _: Reply((b" " * 4096, ANSWER), hold=scene.release)
    assert scene.failure() == ModelFailure("response_too_large", "the response is longer than 1024 bytes", False)


def test_a_huge_error_page_is_cut(scene: Scene) -> None:
    scene.reply = lambda _: Reply((b"x" * 200_000,), 500)
    problem = scene.failure()
    assert (problem.error, len(problem.message)) == ("provider_error", 2_000)


def test_nobody_listens(scene: Scene) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        scene.configure(base_url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
        problem = scene.failure()
    assert (problem.error, problem.retryable) == ("unreachable", True)


def test_bad_settings_are_told_at_once(scene: Scene) -> None:
    request = model_request()
    request = request._replace(agent=request.agent._replace(model_settings='{"stream": true}'))
    assert scene.failure(request).error == "bad_settings"
    assert not scene.server.received


def test_calls_at_once_are_bounded_and_so_are_those_that_wait(scene: Scene) -> None:
    scene.configure(concurrency=2, waiting=1)
    arrived: queue.SimpleQueue[str] = queue.SimpleQueue()

    def reply(received: Received) -> Reply:
        arrived.put(received.headers["x-turnlog-run"])
        return Reply(hold=scene.release) if not scene.release.is_set() else Reply((ANSWER,))

    scene.reply = reply
    for number in range(3):
        scene.ask(model_request(f"run-{number}"))
    assert {arrived.get(timeout=WAIT_S), arrived.get(timeout=WAIT_S)} == {"run-0", "run-1"}
    assert scene.failure(model_request("run-3")).error == "too_busy"
    assert arrived.empty()
    scene.release.set()
    outcomes = [scene.outcomes.get(timeout=WAIT_S) for _ in range(3)]
    assert [type(each) for each in outcomes].count(ModelAnswer) == 1  # run-2; the held replies were empty
    assert arrived.get(timeout=WAIT_S) == "run-2"


def test_cancel_ends_the_connection_and_calls_nobody(scene: Scene) -> None:
    scene.configure(concurrency=1)
    arrived = threading.Event()

    def reply(received: Received) -> Reply:
        arrived.set()
        return Reply((ANSWER,), hold=None if received.headers["x-turnlog-run"] == "after" else scene.release)

    scene.reply = lambda received: reply(received)._replace(pieces=(ANSWER[:5], ANSWER[5:]))
    under_way = scene.ask(model_request("first"))
    waiting = scene.ask(model_request("second"))
    assert arrived.wait(WAIT_S)
    waiting.cancel()
    under_way.cancel()
    under_way.cancel()
    assert scene.outcome(model_request("after")) == ModelAnswer("hello", (), "stop", "some/model")
    assert scene.outcomes.empty()
    assert [each.headers["x-turnlog-run"] for each in scene.server.received] == ["first", "after"]


def test_close_abandons_what_is_under_way(scene: Scene) -> None:
    arrived = threading.Event()

    def reply(_: Received) -> Reply:
        arrived.set()
        return Reply(hold=scene.release)

    scene.reply = reply
    under_way = scene.ask()
    assert arrived.wait(WAIT_S)
    assert scene.providers is not None
    scene.providers.close()
    scene.providers.close()
    under_way.cancel()
    assert scene.outcomes.empty()
    assert scene.failure().error == "closed"


def test_a_callback_that_raises_harms_nobody(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: ModelAnswer | ModelFailure) -> None:
        raise ZeroDivisionError("the callback's own")

    scene.configure(concurrency=1)
    assert scene.providers is not None
    scene.providers.ask(model_request(), broken)
    assert scene.outcome() == ModelAnswer("hello", (), "stop", "some/model")
    assert "the callback of a model call raised" in caplog.text


def test_connections_are_used_again(scene: Scene) -> None:
    scene.configure(concurrency=1)
    for _ in range(5):
        assert isinstance(scene.outcome(), ModelAnswer)
    assert scene.server.connections == 1


def test_a_connection_the_server_closed_while_idle_is_no_failure(scene: Scene) -> None:
    scene.configure(concurrency=1)
    scene.reply = lambda _: Reply((ANSWER,), close=True)
    for _ in range(3):
        assert isinstance(scene.outcome(), ModelAnswer)
        scene.server.ended.get(timeout=WAIT_S)  # else the next question could be on its way when the end arrives
