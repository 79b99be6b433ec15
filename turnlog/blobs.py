"""Large values beside the log, named by their SHA-256: a directory. A blob is durable before anything names it."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from turnlog.core.errors import BadHistory


class DirectoryBlobs:
    """Blobs as files `<first two hex digits>/<sha256 hex>` under a directory. Written to a new name, synced, then renamed, so a
    crash leaves the whole blob or none. Safe for several processes; a directory is one host's unless it is on a shared file
    system, which is why the loop refuses it where several hosts share a group and nobody said so."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, data: bytes) -> str:
        """Store the bytes and return their name; they are on disk when this returns. Raises OSError."""
        digest = sha256(data).hexdigest()
        path = self._path(digest)
        if path.exists():
            return digest
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{digest}.{os.getpid()}.new")
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_directory(path.parent)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes of this name. Raises BadHistory when they are missing or are not what the name says."""
        try:
            data = self._path(digest).read_bytes()
        except OSError as problem:
            raise BadHistory(
                f"blob {digest} cannot be read: {problem.strerror}; restore it to the blob directory"
            ) from problem
        if sha256(data).hexdigest() != digest:
            raise BadHistory(f"blob {digest} is damaged: its content has another hash")
        return data

    def _path(self, digest: str) -> Path:
        return self._directory / digest[:2] / digest


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
