"""The supervisor against small stand-ins for services, and a cluster that is only a name."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnlog.local.errors import ChildFailed, LocalError, SystemRunning
from turnlog.local.process import ProcessName
from turnlog.local.service import Service, ServiceSpec
from turnlog.local.state import StateDir
from turnlog.local.supervisor import BOOTSTRAP_VARIABLE, System

# A service as the supervisor sees one: it writes its port to a file, answers health, and ends on SIGTERM.
SERVICE = """
import http.server, os, pathlib, sys
ready = 0 if sys.argv[1] == "never" else 1
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b'{"reasons": {"journal": "reading"}}')
    def log_message(self, *args):
        pass
print("hello from", os.environ["TURNLOG_KAFKA__BOOTSTRAP_SERVERS"], os.environ["TURNLOG_SECRET"][:4], flush=True)
if sys.argv[1] == "fail":
    sys.exit("cannot go on")
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
pathlib.Path(os.environ["TURNLOG_OBS__PORT_FILE"]).write_text(str(server.server_port))
server.serve_forever()
"""


@pytest.fixture(autouse=True)
def _named_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "somewhere:9092")
    monkeypatch.delenv("TURNLOG_SECRET", raising=False)


def service(name: str, how: str = "well", **options: float) -> ServiceSpec:
    return ServiceSpec(name, ("-c", SERVICE, how), ready_timeout_s=options.get("ready_timeout_s", 20))


def test_it_prepares_starts_and_stops_everything(tmp_path: Path) -> None:
    prepared: list[str] = []
    with System.start(
        tmp_path, [service("loop"), service("worker")], prepare=lambda env: prepared.append(env[BOOTSTRAP_VARIABLE])
    ) as system:
        assert prepared == ["somewhere:9092"]
        assert system.bootstrap == "somewhere:9092"
        pids = [child.pid for child in system.services]
        assert all(child.readiness()[0] for child in system.services)
        assert "hello from somewhere:9092" in system.child("loop").log_path.read_text()
        system.check()
    assert [ProcessName.of(pid) for pid in pids] == [None, None]


def test_the_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    with System.start(tmp_path) as first:
        pass
    with System.start(tmp_path) as second:
        pass
    assert first.env["TURNLOG_SECRET"] == second.env["TURNLOG_SECRET"]
    assert len(first.env["TURNLOG_SECRET"]) == 64
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_of_two_in_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    """Their loops would have one name, and throw each other out for ever."""
    with System.start(tmp_path):
        with pytest.raises(SystemRunning, match=rf"pid {os.getpid()}"):
            System.start(tmp_path)
        with pytest.raises(SystemRunning):  # the refusal took nothing away
            System.start(tmp_path)
    with System.start(tmp_path):
        pass


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LocalError, match=r"cannot be used: .*file"):
            System.start(path)
        assert StateDir(path / "broker").last_address() is None


def test_a_disk_that_refuses_while_it_runs_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher is a thread: what it does not tell, nobody hears, and nothing is mended any more."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with System.start(tmp_path, [service("loop")], restart=True) as system:
        monkeypatch.setattr(Service, "start", refused)
        os.kill(system.child("loop").pid, signal.SIGKILL)
        with pytest.raises(LocalError, match="No space left"):
            system.wait(20)


def test_a_start_that_fails_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed):
        System.start(tmp_path, [service("loop", "fail")])
    with System.start(tmp_path):
        pass


def test_a_kill_on_purpose_is_no_failure_and_start_brings_it_back(tmp_path: Path) -> None:
    with System.start(tmp_path, [service("loop")]) as system:
        loop = system.child("loop")
        before = loop.pid
        loop.kill()
        assert ProcessName.of(before) is None
        system.wait(0.5)  # the watcher looks twice
        loop.start()
        assert loop.readiness()[0]
        assert loop.pid != before
        system.check()


def test_a_death_is_a_failure_with_the_last_words(tmp_path: Path) -> None:
    with System.start(tmp_path, [service("loop")]) as system:
        os.kill(system.child("loop").pid, signal.SIGKILL)
        with pytest.raises(ChildFailed, match=r"loop ended, signal 9") as died:
            system.wait(10)
        assert "hello from" in died.value.detail


def test_a_death_is_mended_where_wished(tmp_path: Path) -> None:
    said: list[str] = []
    with System.start(tmp_path, [service("loop")], restart=True, progress=said.append) as system:
        loop = system.child("loop")
        before = loop.pid
        os.kill(before, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while (loop.pid == before or not loop.readiness()[0]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert loop.pid != before
        system.check()
    assert any("starting it again" in line for line in said)


def test_restarts_are_bounded(tmp_path: Path) -> None:
    with System.start(tmp_path, [service("loop")], restart=True) as system:
        loop = system.child("loop")
        deadline = time.monotonic() + 30
        while not system.failed.is_set() and time.monotonic() < deadline:
            if loop.alive:
                os.kill(loop.pid, signal.SIGKILL)
            time.sleep(0.02)
        with pytest.raises(ChildFailed):
            system.check()


def test_a_service_that_ends_at_once_fails_the_start_and_stops_the_others(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="worker ended before it was ready, exit status 1") as failed:
        System.start(tmp_path, [service("loop"), service("worker", "fail")])
    assert "cannot go on" in str(failed.value)
    assert not _processes_of(tmp_path)


def test_a_service_that_never_gets_ready_says_what_it_waits_for(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match=r"loop is not ready after 1 s \(journal: reading\)"):
        System.start(tmp_path, [service("loop", "never", ready_timeout_s=1)])
    assert not _processes_of(tmp_path)


OWNER = """
import sys, pathlib
from tests.unit.test_local_supervisor import service
from turnlog.local.supervisor import System, stopping_on_signals
with stopping_on_signals(), System.start(pathlib.Path(sys.argv[1]), [service("loop")]) as system:
    print(system.child("loop").pid, flush=True)
    system.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_children_go_with_their_owner(tmp_path: Path, number: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        text=True,
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(number)
    deadline = time.monotonic() + 5
    while ProcessName.of(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ProcessName.of(pid) is None


def _processes_of(folder: Path) -> list[int]:
    """Processes whose environment names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder / "logs").encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
