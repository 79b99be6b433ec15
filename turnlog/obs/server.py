"""The small HTTP server of a service: `/health/live`, `/health/ready`, `/metrics`. Daemon threads, standard library only."""

from __future__ import annotations

import json
import logging
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from turnlog.obs.health import Health
from turnlog.obs.metrics import Metrics

_log = logging.getLogger(__name__)
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ObsServer:
    """Serves until `close`. `port` is the one in use (the one asked for, or the free one that was found)."""

    def __init__(self, health: Health, metrics: Metrics, host: str, port: int) -> None:
        self._server = ThreadingHTTPServer((host, port), _handler(health, metrics))
        self._server.daemon_threads = True
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="health")
        self._thread.start()

    def close(self) -> None:
        """Stop serving; returns within half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)


def serve(
    health: Health, metrics: Metrics, host: str = "127.0.0.1", port: int = 0, port_file: Path | None = None
) -> ObsServer:
    """Start the server, say where it is in the log and, if asked, in a file (written whole or not at all).

    Raises OSError when the port is taken."""
    server = ObsServer(health, metrics, host, port)
    _log.info("health and metrics on port %d", server.port, extra={"host": host, "port": server.port})
    if port_file is not None:
        draft = port_file.with_name(f"{port_file.name}.{os.getpid()}")
        draft.write_text(f"{server.port}\n")
        draft.replace(port_file)
    return server


def _handler(health: Health, metrics: Metrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # a client that says nothing does not hold its thread for ever

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, _METRICS_TYPE, metrics.text())
            elif path == "/health/live":
                self._verdict("live", health.live())
            elif path == "/health/ready":
                self._verdict("ready", health.ready())
            else:
                self._answer(404, "application/json", b'{"error":"try /health/live, /health/ready or /metrics"}')

        def _verdict(self, word: str, reasons: dict[str, str]) -> None:
            body = json.dumps({word: not reasons, "reasons": reasons}).encode()
            self._answer(503 if reasons else 200, "application/json", body)

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Probes come every few seconds; they are not news."""

    return Handler
