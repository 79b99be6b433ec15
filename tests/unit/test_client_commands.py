"""What a client refuses before anything is sent, and how commands are named."""

from __future__ import annotations

import math

import pytest

from turnlog.client import BadCommand, NotConnected, StartRequest, start_command_id
from turnlog.client.commands import COMMAND_BYTES, cancel, encoded, resume, send_input, start
from turnlog.codec import Codec, CodecError, RegistryRefused, RegistryUnavailable
from turnlog.core.limits import VALUE_BYTES

CODEC = Codec()


def test_a_start_can_be_repeated_because_its_id_follows_from_the_run() -> None:
    request = StartRequest("clerk", "hello", "case-1", {"b": "2", "a": "1"}, deadline_s=1.5)
    assert start(request) == start(request)
    command = start(request)
    assert command.command_id == start_command_id("case-1") == "start:case-1"
    assert command.start is not None
    assert (command.start.deadline_ms, command.start.labels) == (1500, (("a", "1"), ("b", "2")))


def test_without_a_run_id_two_starts_are_two_runs() -> None:
    first, second = start(StartRequest("clerk")), start(StartRequest("clerk"))
    assert first.run_id != second.run_id
    assert first.command_id != second.command_id


@pytest.mark.parametrize("problem", [RegistryUnavailable("it is down"), RegistryRefused("it has another schema")])
def test_without_the_registrys_word_nothing_is_sent(problem: CodecError) -> None:
    class NoCodec:
        def encode(self, record: object) -> bytes:
            raise problem

    with pytest.raises(NotConnected, match=str(problem)):
        encoded(cancel("r", "", None), NoCodec())


def test_every_input_is_a_command_of_its_own_unless_the_caller_says_otherwise() -> None:
    assert send_input("r", "a", False, None).command_id != send_input("r", "a", False, None).command_id
    assert send_input("r", "a", False, "mine").command_id == "mine"


@pytest.mark.parametrize("run_id", ["", "a b", "x" * 129, "x" * 10_000, "a:b", "ä"])
def test_a_bad_run_id_is_refused(run_id: str) -> None:
    with pytest.raises(BadCommand, match="run_id"):
        start(StartRequest("clerk", run_id=run_id))
    with pytest.raises(BadCommand, match="run_id"):
        cancel(run_id, "", None)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (StartRequest(""), "agent is empty"),
        (StartRequest("clerk", "\ud800"), r"lone surrogate \(U\+D800\) at character 0"),
        (StartRequest("clerk", labels={"k": "\udcff"}), "label 'k' has a lone surrogate"),
        (StartRequest("clerk", labels={"k": 1}), "label 'k' is int, not text"),  # type: ignore[dict-item]
        (StartRequest("clerk", "x" * (VALUE_BYTES + 1)), "262145 bytes, at most 262144"),
        (StartRequest("clerk", turn_limit=-1), "turn_limit is -1"),
        (StartRequest("clerk", deadline_s=math.nan), "deadline_s is nan"),
        (StartRequest("clerk", command_id=""), "command_id has 0 characters"),
        (StartRequest("clerk", command_id="c" * 257), "command_id has 257 characters"),
    ],
)  # fmt: skip
def test_what_can_never_be_taken_is_refused_with_its_reason(request_: StartRequest, said: str) -> None:
    with pytest.raises(BadCommand, match=said):
        start(request_)


def test_an_input_of_just_the_right_size_is_taken() -> None:
    assert len(encoded(send_input("r", "x" * VALUE_BYTES, False, "c"), CODEC)) < COMMAND_BYTES


def test_a_command_of_two_megabytes_is_refused() -> None:
    labels = {f"k{i}": "v" * 250_000 for i in range(8)}
    with pytest.raises(BadCommand, match="at most"):
        encoded(start(StartRequest("clerk", labels=labels)), CODEC)


def test_numbers_of_turns_are_checked() -> None:
    with pytest.raises(BadCommand):
        resume("r", -1, None)


def test_a_bad_command_is_also_a_value_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        start(StartRequest(""))


def test_an_empty_input_is_refused() -> None:
    with pytest.raises(BadCommand, match="input is empty"):
        send_input("r", "", True, None)
