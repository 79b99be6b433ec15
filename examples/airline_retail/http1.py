"""A small HTTP/1.1 server over asyncio for loopback: keep-alive, bounds on everything, and an end in order.

h11 does the protocol (httpx, which Turnlog needs anyway, brings it); here are only the sockets. A handler gets a whole request
and gives a whole response, or None to hang up without one, as a server that dies would.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import h11

HEADER_BYTES = 64 * 1024
BODY_BYTES = 16 * 1024 * 1024
IDLE_S = 120.0
READ_BYTES = 64 * 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """`headers` by lower-case name; of repeated ones the last."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response | None]]


class TooLarge(Exception):
    """The request's body is over the bound."""


class Server:
    """Serves until `stop`. One per event loop; `port` is known after `start`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        if self._server is None:
            raise RuntimeError("the server is not started")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int) -> None:
        """Listens; port 0 takes a free one. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, backlog=1024)

    async def stop(self, deadline_s: float) -> None:
        """Accepts nothing more, closes what is idle, lets requests under way end until the deadline, then cuts them off."""
        if self._server is not None:
            self._server.close()
        tasks = [connection.end() for connection in self._connections]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=deadline_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer, self._handler)
        self._connections.add(connection)
        try:
            await connection.serve()
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the client went away, was idle for too long, or the server ends: there is nobody to tell
        finally:
            self._connections.discard(connection)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _Connection:
    """One connection, one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES)
        self._busy = False
        self._ending = False
        self._task = asyncio.current_task()

    def end(self) -> "asyncio.Task[None]":
        """Asks for the end: at once where no request is under way, else after its response."""
        if self._task is None:
            raise RuntimeError("a connection lives in a task")
        self._ending = True
        if not self._busy:
            self._task.cancel()
        return self._task

    async def serve(self) -> None:
        while await self._exchange():
            self._protocol.start_next_cycle()

    async def _exchange(self) -> bool:
        """Serves one request. False if it was the connection's last."""
        try:
            async with asyncio.timeout(IDLE_S):
                request = await self._request()
            if request is None:
                return False
            response = await self._handler(request)
        except h11.RemoteProtocolError as error:
            response = Response(error.error_status_hint, str(error).encode())
        except TooLarge:
            response = Response(413, b"the body is too large")
        except Exception:  # a handler's bug is one failed request and not the end of the server
            log.exception("the handler failed")
            response = Response(500, b"internal error")
        if response is None:
            self._writer.transport.abort()
            return False
        await self._respond(response)
        self._busy = False
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE and not self._ending

    async def _request(self) -> Request | None:
        """The next request, or None if the client closed the connection. Raises h11.RemoteProtocolError, TooLarge."""
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        self._busy = True
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
            if len(body) > BODY_BYTES:
                raise TooLarge
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        return Request(head.method.decode("ascii"), head.target.decode("ascii"), headers, bytes(body))

    async def _event(self) -> h11.Event:
        while True:
            event = self._protocol.next_event()
            if isinstance(event, h11.Event):
                return event
            if event is h11.PAUSED:
                raise h11.RemoteProtocolError("a request before the answer to the last one", 400)
            if self._protocol.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._protocol.receive_data(await self._reader.read(READ_BYTES))

    async def _respond(self, response: Response) -> None:
        if self._protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = {"content-length": str(len(response.body)), **response.headers}
        if self._ending or self._protocol.their_state is h11.ERROR:
            headers["connection"] = "close"
        await self._send(h11.Response(status_code=response.status, headers=list(headers.items())))
        await self._send(h11.Data(data=response.body))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        data = self._protocol.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()
