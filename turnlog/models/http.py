"""HTTP for all providers: one daemon thread with one asyncio loop and one httpx client.

Bounds, one each: connections (the sum of the gates), calls at once (a gate per provider), calls waiting for a gate, seconds
per call, bytes per response. Nothing is retried here, and no redirect is followed: a POST with a key goes where it was
configured to go.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple, cast
from urllib.request import getproxies

import httpx

from turnlog.core.events import ModelFailure
from turnlog.models.errors import failure
from turnlog.models.lanes import Lanes
from turnlog.models.statuses import failure_of_response

log = logging.getLogger(__name__)

ERROR_BODY_BYTES: Final = 65_536
"""What is read of the body of a refusal."""
CONNECT_TIMEOUT_S: Final = 10.0
"""A host that does not even connect is `unreachable`, long before the model's own deadline."""
KEEP_IDLE_S: Final = 60.0

_LOOPBACK: Final = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class HttpCall(NamedTuple):
    """One POST. `timeout_s` runs from the moment the call passes its gate; the wait before is bounded by the gate's queue."""

    url: str
    headers: Mapping[str, str]
    content: bytes
    timeout_s: float
    max_response_bytes: int


class HttpReply(NamedTuple):
    """A whole response with status 200."""

    body: bytes


class Gate:
    """How many calls of one provider are under way, and how many wait. Made before, used only inside the loop's thread."""

    def __init__(self, concurrency: int, waiting: int) -> None:
        self.concurrency = concurrency
        self.waiting = waiting
        self.inside = 0
        self.semaphore = asyncio.Semaphore(concurrency)

    @property
    def full(self) -> bool:
        return self.inside >= self.concurrency + self.waiting


class HttpAsk:
    """A call under way. After `cancel` returned, `done` is not called any more, unless another thread is inside it already."""

    def __init__(self, caller: HttpCaller, done: Callable[[HttpReply | ModelFailure], None]) -> None:
        self._caller = caller
        self._done = done
        self._lock = threading.Lock()
        self._over = False
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        self._caller.drop(self)

    @property
    def over(self) -> bool:
        return self._over

    def finish(self, outcome: HttpReply | ModelFailure) -> None:
        """Hand the outcome over, once."""
        with self._lock:
            if self._over:
                return
            self._over = True
        try:
            self._done(outcome)
        except Exception:  # the thread serves every other call; the callback's defect is its owner's
            log.exception("the callback of a model call raised")


class HttpCaller:
    """Sends calls from any thread; their outcomes arrive in its own thread, where callbacks must be quick (enqueue, return).

    The thread starts with the first call, so a process may still fork before. `close` may be called twice.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: httpx.AsyncClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def gate(self, concurrency: int, waiting: int) -> Gate:
        """A bound of its own for one provider; to be made before the first call (the pool is sized by the sum)."""
        self._connections += concurrency
        return Gate(concurrency, waiting)

    def post(self, gate: Gate, call: HttpCall, done: Callable[[HttpReply | ModelFailure], None]) -> HttpAsk:
        """Start a call and return at once. `done` gets the reply or the failure exactly once, unless cancelled or closed
        meanwhile; after `close` it gets `closed` at once, in the caller's thread."""
        ask = HttpAsk(self, done)
        with self._lock:
            if not self._closed:
                self._running_loop().call_soon_threadsafe(self._begin, ask, gate, call)
                return ask
        ask.finish(failure("closed", "the model providers of this process are closed"))
        return ask

    def drop(self, ask: HttpAsk) -> None:
        """Stop the work of a cancelled call: its connection is closed, so the provider may notice."""

        def stop() -> None:
            if ask.task is not None:
                ask.task.cancel()

        with self._lock:
            if self._loop is not None and not self._closed:
                self._loop.call_soon_threadsafe(stop)

    def close(self, timeout_s: float = 5.0) -> None:
        """Abandon what is under way without a callback (the journal still says it is pending), close the connections, end
        the thread; waits at most `timeout_s` for it. Not to be called from a callback."""
        with self._lock:
            already, self._closed = self._closed, True
            loop, thread = self._loop, self._thread
            if loop is not None and not already:
                asyncio.run_coroutine_threadsafe(self._shut(), loop)
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                log.warning("model calls did not end within %s s of closing", timeout_s)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name="turnlog-models", daemon=True)
            self._thread.start()
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    async def _shut(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
        asyncio.get_running_loop().stop()

    def _begin(self, ask: HttpAsk, gate: Gate, call: HttpCall) -> None:
        if ask.over or self._closed:
            return
        if gate.full:
            ask.finish(
                failure("too_busy", f"{gate.waiting} model calls wait already for one of {gate.concurrency} at once")
            )
            return
        gate.inside += 1
        task = asyncio.get_running_loop().create_task(self._send(ask, gate, call))
        ask.task = task
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            gate.inside -= 1
            self._tasks.discard(task)

        task.add_done_callback(ended)

    async def _send(self, ask: HttpAsk, gate: Gate, call: HttpCall) -> None:
        async with gate.semaphore:
            outcome = await self._outcome(call)
        ask.finish(outcome)

    async def _outcome(self, call: HttpCall) -> HttpReply | ModelFailure:
        """Every way a call can end, as a value. The only place where httpx's errors are translated."""
        try:
            async with asyncio.timeout(call.timeout_s):
                return await self._exchange(call)
        except TimeoutError:
            return failure("timeout", f"no whole answer within {call.timeout_s:g} s")
        except httpx.HTTPError as error:
            return failure(_word_of(error), f"{_host(call.url)}: {_said(error)}")
        except Exception as error:
            log.exception("a model call failed in an unexpected way")
            return failure("internal_error", _said(error))

    async def _exchange(self, call: HttpCall) -> HttpReply | ModelFailure:
        request = self._ready_client().stream("POST", call.url, headers=call.headers, content=call.content)
        async with request as response:
            if response.status_code != 200:
                body = await _read(response, ERROR_BODY_BYTES)
                return failure_of_response(response.status_code, response.headers, body[:ERROR_BODY_BYTES], time.time())
            body = await _read(response, call.max_response_bytes)
            if len(body) > call.max_response_bytes:
                return failure("response_too_large", f"the response is longer than {call.max_response_bytes} bytes")
            return HttpReply(body)

    def _ready_client(self) -> httpx.AsyncClient:
        if self._client is None:
            direct = Lanes(KEEP_IDLE_S)
            self._client = httpx.AsyncClient(
                # The deadline of a call is asyncio's; of httpx's own only the connect bound says something more.
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
                limits=httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections),
                # With a proxy in the environment httpx's own pool goes through it; without one there is no need for that pool.
                transport=None if getproxies() else direct,
                # A proxy from the environment never makes sense for a model on this machine.
                mounts=dict.fromkeys(_LOOPBACK, direct),
                follow_redirects=False,
            )
        return self._client


async def _read(response: httpx.Response, most: int) -> bytes:
    """The body, or a little more than `most` bytes of it."""
    body = bytearray()
    stream = cast(AsyncGenerator[bytes, None], response.aiter_bytes())  # httpx declares less than it gives
    async with aclosing(stream) as chunks:  # closed here, not by the collector in the middle of something else
        async for chunk in chunks:
            body += chunk
            if len(body) > most:
                break
    return bytes(body)


def _word_of(error: httpx.HTTPError) -> str:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError() | httpx.UnsupportedProtocol():
            return "unreachable"
        case httpx.DecodingError():
            return "bad_response"
        case httpx.TimeoutException():
            return "timeout"
    return "connection_lost"


def _said(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _host(url: str) -> str:
    return httpx.URL(url).netloc.decode("ascii", "replace").rpartition("@")[2]
