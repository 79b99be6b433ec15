"""Jars by lock: nothing that differs from it is ever used, whatever the repository or the disk brings."""

from __future__ import annotations

import hashlib
import http.server
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnlog.local import jars
from turnlog.local.errors import BadDownload, NoNetwork
from turnlog.local.jars import KAFKA_LOCK, Artifact, Lock, cache_dir, fetch
from turnlog.local.ports import free_ports

CONTENT = b"not really a jar"
PATH = "org/example/tool/1.0/tool-1.0.jar"


def lock_of(content: bytes) -> Lock:
    artifact = Artifact("org.example:tool:1.0", len(content), hashlib.sha256(content).hexdigest())
    return Lock("tool", "1.0", (artifact.coordinate,), (artifact,))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """A Maven repository on loopback; the dictionary is what it holds."""
    files: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = files.get(self.path.lstrip("/"))
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("TURNLOG_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_address[1]}/")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(jars, "ATTEMPTS", 2)
        yield files
        server.shutdown()
        thread.join()


def test_it_fetches_once_and_then_needs_no_network(
    served: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served[PATH] = CONTENT
    said: list[str] = []
    (path,) = fetch(lock_of(CONTENT), cache=tmp_path, progress=said.append)
    assert path.read_bytes() == CONTENT
    assert "1 files" in said[0]
    served.clear()
    assert fetch(lock_of(CONTENT), cache=tmp_path, progress=pytest.fail) == [path]
    assert [entry.name for entry in path.parent.iterdir() if entry.name != ".lock"] == [path.name]


def test_a_damaged_file_in_the_cache_is_fetched_again(served: dict[str, bytes], tmp_path: Path) -> None:
    served[PATH] = CONTENT
    (path,) = fetch(lock_of(CONTENT), cache=tmp_path)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch(lock_of(CONTENT), cache=tmp_path) == [path]
    assert path.read_bytes() == CONTENT


def test_other_bytes_than_the_lock_names_are_refused(served: dict[str, bytes], tmp_path: Path) -> None:
    served[PATH] = b"not what we lock"
    assert len(served[PATH]) == len(CONTENT)
    with pytest.raises(BadDownload, match=r"org\.example:tool:1\.0 came with other bytes"):
        fetch(lock_of(CONTENT), cache=tmp_path)
    assert not list(tmp_path.rglob("*.jar"))


def test_a_missing_artifact_is_named(served: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(BadDownload, match=r"No repository has org\.example:tool:1\.0"):
        fetch(lock_of(CONTENT), cache=tmp_path)


def test_without_network_it_says_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "ATTEMPTS", 1)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("TURNLOG_MAVEN_REPOSITORY", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(NoNetwork) as failed:
        fetch(lock_of(CONTENT), cache=tmp_path)
    assert "TURNLOG_KAFKA__BOOTSTRAP_SERVERS" in failed.value.remedy


def test_the_committed_lock_is_whole() -> None:
    lock = Lock.read(KAFKA_LOCK)
    names = [artifact.coordinate.rsplit(":", 1)[0] for artifact in lock.artifacts]
    assert lock.roots[0] == f"org.apache.kafka:kafka_2.13:{lock.version}"
    assert len(set(names)) == len(names)
    # jgo mixes versions when it resolves both roots together; a broker with another kafka-clients does not start.
    assert f"org.apache.kafka:kafka-clients:{lock.version}" in {artifact.coordinate for artifact in lock.artifacts}
    assert all(len(artifact.sha256) == 64 and artifact.size > 0 for artifact in lock.artifacts)


@pytest.mark.parametrize(
    ("coordinate", "filename"),
    [
        ("g:a:1", "a-1.jar"),
        ("g:a:1:tar.gz", "a-1.tar.gz"),
        ("g:a:1:tar.gz:all", "a-1-all.tar.gz"),
    ],
)
def test_file_names(coordinate: str, filename: str) -> None:
    assert Artifact(coordinate, 1, "").filename == filename


def test_where_the_cache_is() -> None:
    assert cache_dir({"TURNLOG_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/turnlog")
    assert cache_dir({}) == Path.home() / ".cache" / "turnlog"
