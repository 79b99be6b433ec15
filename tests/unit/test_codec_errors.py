"""Every way in which bytes or values can be wrong has its own clear end."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.record_samples import examples
from turnlog.codec import REASONS, Codec, Registry, RegistryUnavailable, Unencodable, Unreadable
from turnlog.codec.schemas import FIRST_FILE_ID, published
from turnlog.core.agents import Usage
from turnlog.core.events import CallSettled, Event, RunCancelled
from turnlog.core.records import Command, JournalRecord, LedgerEntry, ToolResult

CODEC = Codec()
RESULT = ToolResult("run", "run:t0:c0:0123456789abcdef", 1, b"t" * 32, "ok", "Grüße")
GOOD = CODEC.encode(RESULT)
STEP = next(example.record for example in examples() if example.name == "JournalRecord.outcome_received")


def reason_of(data: bytes | None, kind: type = ToolResult, codec: Codec = CODEC) -> str:
    with pytest.raises(Unreadable) as caught:
        codec.decode(data, kind)
    assert caught.value.reason in REASONS
    assert 0 < len(caught.value.detail) < 600
    return caught.value.reason


def with_id(schema_id: int, data: bytes = GOOD) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data[5:]


class TestUnreadable:
    def test_null(self) -> None:
        assert reason_of(None) == "null_value"

    @pytest.mark.parametrize("data", [b"", b"\0", b"\0\x40\0\0", b'{"run_id": "x"}', b"\x01" + GOOD[1:]])
    def test_no_avro(self, data: bytes) -> None:
        assert reason_of(data) == "not_avro"

    @pytest.mark.parametrize("schema_id", [0, 1, FIRST_FILE_ID - 1, FIRST_FILE_ID + 5000, (1 << 32) - 1])
    def test_unknown_schema_id(self, schema_id: int) -> None:
        assert reason_of(with_id(schema_id)) == "unknown_schema_id"

    @pytest.mark.parametrize("cut", range(5, len(GOOD)))
    def test_truncated_anywhere(self, cut: int) -> None:
        assert reason_of(GOOD[:cut]) == "bad_bytes"

    def test_trailing_bytes(self) -> None:
        assert reason_of(GOOD + b"\0") == "bad_bytes"

    def test_invalid_utf8(self) -> None:
        assert reason_of(GOOD.replace("ü".encode(), b"\xff\xff")) == "bad_bytes"

    def test_surrogate_as_bytes(self) -> None:
        assert (
            reason_of(CODEC.encode(RESULT._replace(content="€")).replace("€".encode(), b"\xed\xa0\x80")) == "bad_bytes"
        )

    def test_negative_length(self) -> None:
        assert reason_of(GOOD[:5] + b"\x01" + GOOD[6:]) == "bad_bytes"

    def test_number_that_never_ends(self) -> None:
        assert reason_of(GOOD[:5] + b"\xff" * 40) == "bad_bytes"

    def test_neither_true_nor_false(self) -> None:
        at = len(GOOD) - 2
        assert reason_of(GOOD[:at] + b"\x07" + GOOD[at + 1 :]) == "bad_bytes"

    def test_no_such_branch(self) -> None:
        data = CODEC.encode(Command("c", "r", "start"))
        assert reason_of(data[:-1] + b"\x04", Command) == "bad_bytes"

    def test_another_record(self) -> None:
        assert reason_of(GOOD, LedgerEntry) == "wrong_record"

    @pytest.mark.parametrize("kind", [b"call_settlex", b"run_canceled", b"turn_started"])
    def test_kind_unknown_or_not_of_the_payload(self, kind: bytes) -> None:
        assert reason_of(CODEC.encode(STEP).replace(b"call_settled", kind), JournalRecord) == "unknown_event_kind"

    def test_event_without_payload_and_with_two(self) -> None:
        data = CODEC.encode(STEP._replace(events=(Event("run_cancelled", 1, payload=RunCancelled("x")),)))
        branch = b"\x02\x02x\x00"
        assert data.count(branch) == 1
        assert reason_of(data.replace(branch, b"\x00\x00"), JournalRecord) == "unknown_event_kind"
        assert reason_of(data.replace(branch, b"\x02\x02x\x02\x02y\x00"), JournalRecord) == "unknown_event_kind"

    @settings(max_examples=600, deadline=None)
    @given(data=st.data())
    def test_any_damage_is_unreadable_or_another_record(self, data: st.DataObject) -> None:
        example = data.draw(st.sampled_from(examples()))
        damaged = bytearray(example.golden)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(5, len(damaged) - 1))
            damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
            damaged.append(0)
        try:
            outcome: Any = CODEC.decode(bytes(damaged), example.kind)
        except Unreadable as error:
            outcome = error.reason
        assert isinstance(outcome, example.kind) or outcome in ("bad_bytes", "unknown_event_kind")


class TestUnencodable:
    def test_lone_surrogate_is_named(self) -> None:
        with pytest.raises(Unencodable, match=r"ToolResult\.content has a lone surrogate at character 2"):
            CODEC.encode(RESULT._replace(content="ab\ud83d"))

    def test_lone_surrogate_deep_inside(self) -> None:
        event = Event("call_settled", 1, payload=CallSettled("ok", "\udc00"))
        with pytest.raises(Unencodable, match=r"JournalRecord\.events\.0\.payload\.content has a lone surrogate"):
            CODEC.encode(STEP._replace(events=(event,)))

    def test_number_outside_64_bits(self) -> None:
        with pytest.raises(Unencodable, match=r"ToolResult\.attempt is a number outside 64 bits"):
            CODEC.encode(RESULT._replace(attempt=1 << 63))

    @pytest.mark.parametrize(
        "event", [Event("call_settled", 1, payload=RunCancelled("x")), Event("no_kind", 1), Event("run_failed", 1)]
    )
    def test_payload_not_of_its_kind(self, event: Event) -> None:
        with pytest.raises(Unencodable, match="an event of kind"):
            CODEC.encode(STEP._replace(events=(event,)))

    def test_what_is_no_top_level_record(self) -> None:
        with pytest.raises(TypeError, match="Usage"):
            CODEC.encode(Usage())


class FakeRegistry:
    """A registry by hand: ids to schemas; `down` makes it not answer."""

    def __init__(self, schemas: dict[int, Any]) -> None:
        self.schemas = schemas
        self.down = False
        self.asked = 0

    def schema(self, schema_id: int) -> Any:
        self.asked += 1
        if self.down:
            raise RegistryUnavailable("down")
        return self.schemas.get(schema_id)

    def id_of(self, topic: str, schema: Any) -> int:
        if self.down:
            raise RegistryUnavailable("down")
        return next(one for one, known in self.schemas.items() if known == schema)


def codec_of(registry: FakeRegistry, clock: list[float], **topics: type) -> Codec:
    return Codec(cast(Registry, registry), topics, clock=lambda: clock[0])


class TestRegistryIds:
    def test_ids_of_both_worlds_are_read(self) -> None:
        codec = codec_of(FakeRegistry({7: published("ToolResult")}), [0.0], results=ToolResult)
        assert codec.encode(RESULT) == with_id(7)
        assert codec.decode(with_id(7), ToolResult) == RESULT
        assert codec.decode(GOOD, ToolResult) == RESULT

    def test_lazily_the_registry_is_asked_with_the_first_record(self) -> None:
        registry = FakeRegistry({7: published("ToolResult")})
        registry.down = True
        codec = Codec(cast(Registry, registry), {"results": ToolResult}, lazily=True)
        assert codec.decode(GOOD, ToolResult) == RESULT
        with pytest.raises(RegistryUnavailable):
            codec.encode(RESULT)
        registry.down = False
        assert codec.encode(RESULT) == with_id(7)
        registry.down = True
        assert codec.encode(RESULT) == with_id(7)

    def test_lazily_without_a_registry_numbers_are_the_files(self) -> None:
        assert Codec(None, {"results": ToolResult}, lazily=True).encode(RESULT) == GOOD

    def test_an_id_is_asked_once(self) -> None:
        registry = FakeRegistry({7: published("ToolResult")})
        codec = codec_of(registry, [0.0])
        for _ in range(3):
            assert codec.decode(with_id(7), ToolResult) == RESULT
        assert registry.asked == 1

    def test_an_unknown_id_is_asked_again_after_a_minute(self) -> None:
        registry, clock = FakeRegistry({}), [0.0]
        codec = codec_of(registry, clock)
        assert [reason_of(with_id(7), codec=codec) for _ in range(3)] == ["unknown_schema_id"] * 3
        assert registry.asked == 1
        registry.schemas[7] = published("ToolResult")
        clock[0] = 61.0
        assert codec.decode(with_id(7), ToolResult) == RESULT

    def test_a_registry_that_is_down_makes_no_dead_letter(self) -> None:
        registry = FakeRegistry({7: published("ToolResult")})
        codec = codec_of(registry, [0.0])
        registry.down = True
        with pytest.raises(RegistryUnavailable):
            codec.decode(with_id(7), ToolResult)
        registry.down = False
        assert codec.decode(with_id(7), ToolResult) == RESULT

    @pytest.mark.parametrize(
        "schema", ["string", {"type": "record", "name": "Other", "fields": []}, ["null", "string"]]
    )
    def test_what_is_no_record_of_ours(self, schema: Any) -> None:
        assert reason_of(with_id(7), codec=codec_of(FakeRegistry({7: schema}), [0.0])) == "wrong_record"

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "record", "name": "ToolResult", "fields": [{"name": "a", "type": "nonsense"}]},
            {"type": "record", "name": "ToolResult"},
            {"name": "ToolResult"},
            {"type": "record"},
            {},
            7,
        ],
    )
    def test_invalid_schema(self, schema: Any) -> None:
        assert reason_of(with_id(7), codec=codec_of(FakeRegistry({7: schema}), [0.0])) == "wrong_record"

    def test_a_schema_that_does_not_resolve(self) -> None:
        schema = {"type": "record", "name": "ToolResult", "fields": [{"name": "run_id", "type": "string"}]}
        assert (
            reason_of(with_id(7, b"\0" * 5 + b"\x02x"), codec=codec_of(FakeRegistry({7: schema}), [0.0]))
            == "wrong_record"
        )
