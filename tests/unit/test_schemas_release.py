"""Numbering: what changed gets the next number, what breaks gets none."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from turnlog.codec import release
from turnlog.codec.schemas import FIRST_FILE_ID, bare, published, released


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A repository like ours in which ToolResult can be changed in place."""
    schema: dict[str, Any] = copy.deepcopy(published("ToolResult"))
    (tmp_path / "records").mkdir()
    (tmp_path / "released").mkdir()
    monkeypatch.setattr(release, "folder", lambda: tmp_path)
    monkeypatch.setattr(release, "published", lambda name: schema if name == "ToolResult" else published(name))
    return schema


def run(tmp_path: Path, schema: dict[str, Any]) -> tuple[int, list[str]]:
    (tmp_path / "records" / "ToolResult.avsc").write_text(json.dumps(schema))
    told: list[str] = []
    return release.main(told.append), told


def test_nothing_changed(tmp_path: Path, changed: dict[str, Any]) -> None:
    assert run(tmp_path, changed) == (0, [])


def test_docs_need_no_number(tmp_path: Path, changed: dict[str, Any]) -> None:
    changed["doc"] = "Said better."
    assert run(tmp_path, changed) == (0, [])


def test_a_new_field_gets_the_next_number(tmp_path: Path, changed: dict[str, Any]) -> None:
    changed["fields"].append({"name": "host", "type": ["null", "string"], "default": None, "doc": "Where."})
    status, told = run(tmp_path, changed)
    assert (status, told) == (0, [f"{FIRST_FILE_ID + len(released()):#x}.ToolResult.avsc"])
    assert bare(json.loads((tmp_path / "released" / told[0]).read_text())) == bare(changed)


def test_a_break_gets_none(tmp_path: Path, changed: dict[str, Any]) -> None:
    changed["fields"].append({"name": "host", "type": "string", "doc": "Where."})
    status, told = run(tmp_path, changed)
    assert status == 1
    assert "ToolResult.host is new" in told[0]
    assert list((tmp_path / "released").iterdir()) == []
