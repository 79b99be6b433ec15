"""The scripted model as a process of its own: recorded answers behind an OpenAI-like endpoint.

It answers `POST /v1/chat/completions` with the recorded assistant message of the run and turn that the headers name, if the
transcript it is sent is what the recording says; else with HTTP 422 and the first difference. Each request is noted in a log
before it is answered, one JSON object a line, so that it can be told afterwards which turns were asked more than once.

Faults and latency are drawn from the seed, the run, the turn and how often this turn was asked: the same play meets the same
faults however its requests interleave.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from examples.airline_retail.http1 import Request, Response, Server
from examples.airline_retail.recording import (
    DATA_DIR,
    DOMAINS,
    BadRecording,
    Recording,
    Truth,
    load_recordings,
    load_tools,
    load_truths,
    prompts_for,
)
from examples.airline_retail.script import Json, Script, Unexpected, completion

STOP_DEADLINE_S = 5.0
LATENCY_CAP_S = 60.0

Fault = Literal["rate_limited", "server_error", "timeout", "hang_up"]


@dataclass(frozen=True)
class Latency:
    """How long an answer takes: `0`, a constant, evenly between two bounds, or exponential with a mean. Milliseconds."""

    kind: Literal["constant", "uniform", "exponential"] = "constant"
    low_ms: float = 0.0
    high_ms: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Latency":
        """`20`, `uniform:20:80` or `exponential:50`. Raises ValueError."""
        kind, *bounds = text.split(":") if ":" in text else ("constant", text)
        values = [float(bound) for bound in bounds]
        if any(not 0 <= value <= LATENCY_CAP_S * 1000 for value in values):
            raise ValueError(f"a latency lies between 0 and {LATENCY_CAP_S * 1000:.0f} ms")
        match kind, values:
            case "constant" | "exponential", [value]:
                return cls(kind, value, value)
            case "uniform", [low, high] if low <= high:
                return cls("uniform", low, high)
        raise ValueError("write MS, uniform:LOW:HIGH or exponential:MEAN")

    def draw_s(self, chance: random.Random) -> float:
        if self.kind == "exponential":
            drawn = chance.expovariate(1 / self.low_ms) if self.low_ms else 0.0
        else:
            drawn = chance.uniform(self.low_ms, self.high_ms)
        return min(drawn / 1000, LATENCY_CAP_S)


@dataclass(frozen=True)
class Faults:
    """How often a request meets which fault; probabilities that add up to at most 1. `hold_s`: how long a timeout hangs."""

    rate_limited: float = 0.0
    server_error: float = 0.0
    timeout: float = 0.0
    hang_up: float = 0.0
    hold_s: float = 300.0

    def __post_init__(self) -> None:
        shares = (self.rate_limited, self.server_error, self.timeout, self.hang_up)
        if any(share < 0 for share in shares) or sum(shares) > 1:
            raise ValueError("fault probabilities lie between 0 and 1 and add up to at most 1")

    def draw(self, chance: random.Random) -> Fault | None:
        drawn = chance.random()
        kinds: tuple[Fault, ...] = ("rate_limited", "server_error", "timeout", "hang_up")
        for kind in kinds:
            drawn -= getattr(self, kind)
            if drawn < 0:
                return kind
        return None


class RequestLog:
    """An append-only file of JSON lines; each is one write, so lines stay whole beside other writers and after a kill."""

    def __init__(self, path: Path | None) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = None if path is None else os.open(path, flags, 0o644)

    def append(self, entry: Json) -> None:
        if self._file is not None:
            os.write(self._file, json.dumps(entry, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


class Model:
    """The handler. `now` is seconds since the epoch; `sleep` waits."""

    def __init__(
        self,
        script: Script,
        log: RequestLog,
        *,
        latency: Latency | None = None,
        faults: Faults | None = None,
        seed: int = 0,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._script = script
        self._log = log
        self._latency = latency or Latency()
        self._faults = faults or Faults()
        self._seed = seed
        self._now = now
        self._sleep = sleep
        self._asked: Counter[tuple[str, int]] = Counter()

    async def handle(self, request: Request) -> Response | None:
        """Answers one request; None hangs up."""
        if request.method == "GET" and request.path == "/healthz":
            return _json(200, {"status": "ok"})
        if request.path != "/v1/chat/completions":
            return _error(404, "not_found", f"there is no {request.path}; this is POST /v1/chat/completions")
        if request.method != "POST":
            return _error(405, "method_not_allowed", "POST a chat completion request")
        try:
            body = json.loads(request.body)
            run_id, turn = _place(request.headers, body)
        except (ValueError, AttributeError) as error:
            return _error(400, "bad_request", f"the request cannot be read: {error}")
        return await self._answer(run_id, turn, request.headers, body)

    async def _answer(self, run_id: str, turn: int, headers: dict[str, str], body: Json) -> Response | None:
        self._asked[run_id, turn] += 1
        ask = self._asked[run_id, turn]
        chance = random.Random(f"{self._seed}:{run_id}:{turn}:{ask}")
        fault = self._faults.draw(chance)
        latency_s = self._latency.draw_s(chance)
        answer_id = f"chatcmpl-{run_id}-t{turn}-{ask}-{os.getpid()}"
        response = _fault_response(fault) if fault else self._recorded(run_id, turn, body, answer_id)
        entry = {
            "at": self._now(),
            "run": run_id,
            "turn": turn,
            "ask": ask,
            "attempt": headers.get("x-turnlog-attempt"),
        }
        outcome = {"status": response.status if response else None, "fault": fault, "answer": answer_id}
        self._log.append(entry | {"digest": _digest(body)} | outcome)
        await self._sleep(self._faults.hold_s if fault == "timeout" else latency_s)
        return response

    def _recorded(self, run_id: str, turn: int, body: Json, answer_id: str) -> Response:
        if body.get("stream"):
            return _error(400, "unsupported", "this model does not stream")
        try:
            step = self._script.step(run_id, turn, body)
        except Unexpected as error:
            return _error(422, "unexpected_request", f"{run_id}, turn {turn}: {error}")
        return _json(200, completion(step, body, answer_id, int(self._now())))


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        script = _script(options.runs, options.truth)
        faults = Faults(options.rate_limited, options.server_error, options.timeout, options.hang_up, options.hold_s)
    except (BadRecording, OSError, ValueError) as error:
        print(f"model server: {error}", file=sys.stderr)
        return 2
    log = RequestLog(options.log)
    model = Model(script, log, latency=options.latency, faults=faults, seed=options.seed)
    try:
        return asyncio.run(_serve(model, options.host, options.port, len(script.recordings)))
    finally:
        log.close()


async def _serve(model: Model, host: str, port: int, recordings: int) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = Server(model.handle)
    try:
        await server.start(host, port)
    except OSError as error:
        print(f"model server: cannot listen on {host}:{port}: {error.strerror}", file=sys.stderr)
        return 1
    ready = {"base_url": f"http://{host}:{server.port}/v1", "recordings": recordings, "pid": os.getpid()}
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(ready), flush=True)
    await stop.wait()
    await server.stop(STOP_DEADLINE_S)
    return 0


def _script(runs: list[Path], truths: list[Path]) -> Script:
    recordings: dict[str, Recording] = {}
    known: dict[str, Truth] = {}
    for path in runs or [DATA_DIR / "sample.jsonl"]:
        recordings |= load_recordings(path)
    for path in truths if runs else [DATA_DIR / "sample_truth.jsonl"]:
        known |= load_truths(path)
    prompts = prompts_for(recordings.values())
    return Script(recordings, known, prompts, {domain: load_tools(domain) for domain in DOMAINS})


def _place(headers: dict[str, str], body: Json) -> tuple[str, int]:
    """Run and turn: what the headers say, else the body's `user`, and as many turns as the transcript has answers."""
    run_id = headers.get("x-turnlog-run") or body.get("user")
    if not run_id:
        raise ValueError("neither a header x-turnlog-run nor `user` in the body names the run")
    answers = sum(1 for message in body.get("messages") or [] if message.get("role") == "assistant")
    return str(run_id), int(headers.get("x-turnlog-turn", answers))


def _fault_response(fault: Fault) -> Response | None:
    match fault:
        case "rate_limited":
            response = _error(429, "rate_limit_exceeded", "slow down (a fault by configuration)")
            return Response(response.status, response.body, response.headers | {"retry-after-ms": "50"})
        case "server_error":
            return _error(500, "server_error", "internal error (a fault by configuration)")
        case "timeout" | "hang_up":
            return None


def _json(status: int, value: Json) -> Response:
    return Response(status, json.dumps(value).encode(), {"content-type": "application/json"})


def _error(status: int, code: str, message: str) -> Response:
    return _json(status, {"error": {"message": message, "type": code, "param": None, "code": code}})


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


_EPILOG = """\
Prints one JSON line when it listens ({"base_url": ..., "pid": ...}); GET /healthz answers 200; SIGTERM ends it in order.
Without --runs it plays the sample. Try it:

  python -m examples.airline_retail.model_server --port 8089
  curl -s localhost:8089/v1/chat/completions -d '{"user": "p.tau-airline-gpt4o-t041-r0", "messages": []}'

which answers 422, because that is not what was said so far. With faults, for a test of patience:

  ... --latency uniform:20:80 --rate-limited 0.05 --server-error 0.05 --timeout 0.01 --seed 7 --log requests.jsonl
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.airline_retail.model_server",
        description="Recorded answers behind an OpenAI Chat Completions endpoint; refuses what the recording does not lead to.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--runs", type=Path, action="append", default=[], metavar="RUNS.jsonl", help="recordings; may be repeated")
    add("--truth", type=Path, action="append", default=[], metavar="TRUTH.jsonl", help="what their tools must give")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=0, help="port to listen on; 0 takes a free one (default)")
    add("--log", type=Path, metavar="FILE", help="append one JSON line per request to this file")
    add("--latency", type=_latency, metavar="MS", help="milliseconds, or uniform:LOW:HIGH, or exponential:MEAN")
    add("--rate-limited", type=float, default=0.0, metavar="P", help="share of requests answered with HTTP 429")
    add("--server-error", type=float, default=0.0, metavar="P", help="share of requests answered with HTTP 500")
    add("--timeout", type=float, default=0.0, metavar="P", help="share of requests held for --hold-s and then cut off")
    add("--hang-up", type=float, default=0.0, metavar="P", help="share of requests whose connection is cut off")
    add("--hold-s", type=float, default=300.0, metavar="S", help="how long a timeout holds (default: %(default)s)")
    add("--seed", type=int, default=0, help="what faults and latencies are drawn from (default: %(default)s)")
    return parser


def _latency(text: str) -> Latency:
    try:
        return Latency.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
