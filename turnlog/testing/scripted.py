"""Models without a model: scripted answers, recorded runs, and ready-made scripts for tests, benchmarks and first steps.

A script is a pure function of the request. What a played run answers therefore depends on the turn alone: asked again after a
crash, it says the same again, as a recorded answer must.

In a service they are on only by setting: `TURNLOG_MODELS__SCRIPTED=true`, or with faults and latency
`TURNLOG_MODELS__SCRIPTED__LATENCY_MS=20`, `__FAIL=0.1`, `__LOSE=0.05`, `__SEED=7`. The part of `agent.model` after the slash
names the script: `scripted/standard_work`, `scripted/echo`.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from pydantic import Field

from turnlog.core.agents import Usage
from turnlog.core.events import ModelAnswer, ModelFailure, RecordedCall
from turnlog.core.transcript import ModelRequest, ToolMessage, UserMessage
from turnlog.models.errors import failure
from turnlog.models.http import HttpCaller
from turnlog.models.provider import ANSWERED, Ask, Done
from turnlog.models.settings import KindSettings

log = logging.getLogger(__name__)

Script = Callable[[ModelRequest], ModelAnswer | ModelFailure]

# ---------------------------------------------------------------- scripts


def standard_work(first: str = "bench_a", second: str = "bench_b") -> Script:
    """The work of the benchmarks: in each of four turns two parallel calls, one of either tool; in the fifth the answer.

    Built once, looked up by turn: an ask costs well under a microsecond here.
    """

    def pair(turn: int) -> ModelAnswer:
        calls = (
            RecordedCall(f"call_{turn}_0", first, f'{{"n":{2 * turn}}}'),
            RecordedCall(f"call_{turn}_1", second, f'{{"n":{2 * turn + 1}}}'),
        )
        return ModelAnswer(None, calls, "tool_calls", "standard_work", f"standard-{turn}", Usage(100, 20))

    last = ModelAnswer("done", (), "stop", "standard_work", "standard-4", Usage(100, 5))
    answers = (*(pair(turn) for turn in range(4)), last)

    def script(request: ModelRequest) -> ModelAnswer:
        return answers[request.turn % 5]  # a conversation that goes on begins the same work again

    return script


_CALL_LINE = re.compile(r"^\s*call\s+(\S+)[ \t]*(.*?)\s*$", re.MULTILINE)


def echo(request: ModelRequest) -> ModelAnswer:
    """A model to play with and no key needed: says what the user said last.

    A line `call NAME {"some": "json"}` of the user asks for that tool, several lines for several at once; what the tools
    gave is then the answer. Arguments are handed over as written, so a bad call can be tried, too; none means `{}`.
    """
    results = _trailing_results(request)
    if results:
        return _answer(request, "\n".join(_result_line(each) for each in results))
    said = next((each.text for each in reversed(request.messages) if isinstance(each, UserMessage)), "")
    calls = tuple(
        RecordedCall(f"call_t{request.turn}_{position}", found[1], found[2] or "{}")
        for position, found in enumerate(_CALL_LINE.finditer(said))
    )
    return _answer(request, None, calls) if calls else _answer(request, said)


def _trailing_results(request: ModelRequest) -> list[ToolMessage]:
    trailing = itertools.takewhile(lambda each: isinstance(each, ToolMessage), reversed(request.messages))
    return [each for each in trailing if isinstance(each, ToolMessage)][::-1]


def _result_line(result: ToolMessage) -> str:
    return f"{result.tool} {'failed' if result.failed else 'says'}: {result.content}"


def _answer(request: ModelRequest, text: str | None, calls: tuple[RecordedCall, ...] = ()) -> ModelAnswer:
    finish = "tool_calls" if calls else "stop"
    return ModelAnswer(text, calls, finish, "echo", f"echo-{request.run_id}-{request.turn}", Usage())


def played(runs: Mapping[str, Sequence[ModelAnswer | ModelFailure]]) -> Script:
    """A script that plays recorded runs, by run id: turn i gives the i-th answer. A run or turn that was not recorded is
    `script_failed`, never a guess."""

    def script(request: ModelRequest) -> ModelAnswer | ModelFailure:
        answers = runs.get(request.run_id)
        if answers is None:
            return failure("script_failed", f"no run {request.run_id!r} was recorded")
        if not 0 <= request.turn < len(answers):
            return failure(
                "script_failed", f"run {request.run_id!r} has {len(answers)} recorded turns, not turn {request.turn}"
            )
        return answers[request.turn]

    return script


def recorded_answers(messages: Iterable[Mapping[str, Any]]) -> tuple[ModelAnswer, ...]:
    """Answers of recorded assistant messages `{"content": ..., "tool_calls": [{"id", "name", "arguments"}]}`, as in recorded
    trajectories. Texts and arguments are taken as they are; KeyError for a call that lacks a part."""
    return tuple(_recorded(message) for message in messages)


def _recorded(message: Mapping[str, Any]) -> ModelAnswer:
    calls = tuple(RecordedCall(each["id"], each["name"], each["arguments"]) for each in message.get("tool_calls") or ())
    return ModelAnswer(message.get("content"), calls, "tool_calls" if calls else "stop")


# ---------------------------------------------------------------- faults and time


class Faults(NamedTuple):
    """What goes wrong, and how often. Whether it does is a function of seed, run, turn and attempt: the same in any order of
    threads, and another attempt has another chance."""

    seed: int = 0
    fail: float = 0.0
    """Share of asks that fail as `provider_error` without reaching the script."""
    lose: float = 0.0
    """Share of asks that reach the script but whose reply is lost: `timeout`, after the agent's model_timeout_ms."""

    def of(self, request: ModelRequest) -> str:
        """`fail`, `lose` or the empty string."""
        place = f"{self.seed}:{request.run_id}:{request.turn}:{request.attempt}".encode()
        chance = int.from_bytes(hashlib.blake2b(place, digest_size=7).digest()) / 2**56
        if chance < self.fail:
            return "fail"
        return "lose" if chance < self.fail + self.lose else ""


class Delay(Protocol):
    """How a scripted provider waits. The default is a thread with a heap; a simulation hands in its own clock."""

    def after(self, seconds: float, act: Callable[[], None]) -> Ask:
        """Call `act` once, not before `seconds` from now, from any thread. Cancelling prevents it."""

    def close(self) -> None:
        """Drop what is still to come."""


class _Due:
    __slots__ = ("act",)

    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class ThreadDelay:
    """One daemon thread for all delays of a provider, started with the first. `act` must be quick."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._heap: list[tuple[float, int, _Due]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def after(self, seconds: float, act: Callable[[], None]) -> Ask:
        due = _Due(act)
        with self._wake:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._numbers), due))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="turnlog-scripted", daemon=True)
                self._thread.start()
            self._wake.notify()
        return due

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._heap.clear()
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _run(self) -> None:
        while (due := self._next()) is not None:
            act = due.act
            if act is None:
                continue
            try:
                act()
            except Exception:  # the thread serves every other delay; the callback's defect is its owner's
                log.exception("the callback of a scripted model raised")

    def _next(self) -> _Due | None:
        """The next delay that is over; None when closed."""
        with self._wake:
            while not self._closed:
                if not self._heap:
                    self._wake.wait()
                    continue
                wait_s = self._heap[0][0] - time.monotonic()
                if wait_s <= 0:
                    return heapq.heappop(self._heap)[2]
                self._wake.wait(wait_s)
        return None


# ---------------------------------------------------------------- the provider


SCRIPTS: Final[dict[str, Script]] = {"standard_work": standard_work(), "echo": echo}
"""What `scripted/<name>` names when the provider is made from settings."""


class ScriptedProvider:
    """A `Provider` that answers from scripts, named by the part of `agent.model` after the first slash.

    Without latency and fault the answer is given inside `ask`, in the caller's thread. Else after `latency_ms`, or as a
    `timeout` once `agent.model_timeout_ms` is over, whichever is first. `asked` counts the asks that reached a script.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script] | Script,
        *,
        latency_ms: float = 0.0,
        faults: Faults | None = None,
        delay: Delay | None = None,
    ) -> None:
        self._scripts = scripts if isinstance(scripts, Mapping) else None
        self._only = None if isinstance(scripts, Mapping) else scripts
        self.latency_ms = latency_ms
        self.faults = faults
        self._delay = delay or ThreadDelay()
        self._closed = False
        self.asked = 0

    def ask(self, request: ModelRequest, done: Done) -> Ask:
        if self._closed:
            done(failure("closed", "the scripted provider is closed"))
            return ANSWERED
        fault = self.faults.of(request) if self.faults is not None else ""
        answer = failure("provider_error", "a fault by seed") if fault == "fail" else self._answer(request)
        wait_ms = inf if fault == "lose" else self.latency_ms
        if wait_ms <= 0:
            done(answer)
            return ANSWERED
        limit_ms = request.agent.model_timeout_ms
        if wait_ms >= limit_ms:
            wait_ms, answer = limit_ms, failure("timeout", f"no whole answer within {limit_ms / 1000:g} s")
        return self._delay.after(wait_ms / 1000, lambda: done(answer))

    def close(self) -> None:
        self._closed = True
        self._delay.close()

    def _answer(self, request: ModelRequest) -> ModelAnswer | ModelFailure:
        self.asked += 1
        script = self._only or self._named(request.agent.model)
        if script is None:
            known = ", ".join(sorted(self._scripts or ()))
            return failure("script_failed", f"model {request.agent.model!r}: no such script (there are: {known})")
        try:
            return script(request)
        except Exception as error:  # noqa: BLE001 - a script is a stranger's code, and a provider never raises
            return failure("script_failed", repr(error))

    def _named(self, model: str) -> Script | None:
        return None if self._scripts is None else self._scripts.get(model[model.find("/") + 1 :])


class ScriptedSettings(KindSettings):
    """`TURNLOG_MODELS__SCRIPTED__...`"""

    latency_ms: float = Field(default=0.0, ge=0, le=3_600_000)
    seed: int = 0
    fail: float = Field(default=0.0, ge=0, le=1)
    lose: float = Field(default=0.0, ge=0, le=1)


def make(name: str, settings: Mapping[str, Any], http: HttpCaller) -> ScriptedProvider:
    """The provider kind `scripted` (see `turnlog.models.provider.ProviderKind`)."""
    given = ScriptedSettings.model_validate(dict(settings))
    faults = Faults(given.seed, given.fail, given.lose) if given.fail or given.lose else None
    return ScriptedProvider(SCRIPTS, latency_ms=given.latency_ms, faults=faults)
