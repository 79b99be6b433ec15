"""Examples round-trip, and their golden bytes never change."""

from __future__ import annotations

import pytest

from tests.record_samples import Example, examples
from turnlog.codec import Codec, to_plain
from turnlog.codec.schemas import TOP_LEVEL, file_id, folder
from turnlog.core.events import KINDS

CODEC = Codec()
EACH = pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)


@EACH
def test_json_round_trips(example: Example) -> None:
    assert to_plain(example.record) == example.plain


@EACH
def test_golden_bytes_are_read(example: Example) -> None:
    """Whatever a schema becomes: bytes that were once written are read, and mean the same."""
    assert CODEC.decode(example.golden, example.kind) == example.record


@EACH
def test_golden_bytes_are_written(example: Example) -> None:
    """As long as their schema is the current one; examples of older versions are read only."""
    if int.from_bytes(example.golden[1:5], "big") == file_id(example.kind.__name__):
        assert CODEC.encode(example.record).hex() == example.golden.hex()


@pytest.mark.parametrize("record", TOP_LEVEL)
def test_the_current_version_has_an_example(record: str) -> None:
    assert file_id(record).to_bytes(4, "big") in {example.golden[1:5] for example in examples()}


def test_every_record_and_every_kind_has_an_example() -> None:
    assert {example.kind.__name__ for example in examples()} == TOP_LEVEL.keys()
    events = [event for example in examples() for event in example.plain.get("events", ())]
    assert {event["kind"] for event in events} == KINDS.keys()


def test_no_golden_bytes_without_example() -> None:
    names = {path.stem for path in (folder() / "examples").glob("*.hex")}
    assert names == {example.name for example in examples()}
