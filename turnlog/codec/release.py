"""Numbers the current schemas: `python -m turnlog.codec.release`.

Each record whose current schema has no number yet is checked against all its versions and gets the next one. Run it after
every change of schemas/records, and commit both. A number that went out with a release is never changed nor deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from turnlog.codec.compatible import breaks
from turnlog.codec.schemas import FIRST_FILE_ID, TOP_LEVEL, bare, folder, published, released


def unnumbered() -> list[str]:
    """Records whose current schema is none of the released versions, docs aside."""
    known: dict[str, list[object]] = {name: [] for name in TOP_LEVEL}
    for version in released().values():
        known.setdefault(version.record, []).append(bare(version.schema))
    return [name for name in TOP_LEVEL if bare(published(name)) not in known[name]]


def broken(record: str) -> list[str]:
    """How the current schema of a record breaks with any of its released versions."""
    versions = [version for version in released().values() if version.record == record]
    return [f"{version.id:#x}: {fault}" for version in versions for fault in breaks(version.schema, published(record))]


def main(tell: Callable[[str], object] = lambda line: sys.stdout.write(line + "\n")) -> int:
    """Writes the new numbers; 1, and nothing written, when a schema breaks with a released version."""
    fresh = unnumbered()
    faults = [fault for record in fresh for fault in broken(record)]
    for fault in faults:
        tell(fault)
    if faults:
        return 1
    for number, record in enumerate(fresh, max(released(), default=FIRST_FILE_ID - 1) + 1):
        tell(f"{_write(number, record).name}")
    return 0


def _write(number: int, record: str) -> Path:
    path = folder() / "released" / f"{number:#010x}.{record}.avsc"
    path.write_text((folder() / "records" / f"{record}.avsc").read_text("utf-8"), "utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
