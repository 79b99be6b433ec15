"""A broker that is away is said once in a while, not at every try."""

from __future__ import annotations

import logging

import pytest

from turnlog.kafka.quiet import OncePerWhile


def test_lines_of_a_kind_come_once_in_a_while_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = logging.getLogger("test.quiet")
    log.addFilter(OncePerWhile(10.0, lambda: now[0], logging.WARNING))
    for port in range(5):
        log.error("Connect to 127.0.0.1:%d failed", port)
    log.error("something else")
    now[0] += 11
    log.error("Connect to 127.0.0.1:9 failed")
    assert [record.getMessage() for record in caplog.records] == [
        "Connect to 127.0.0.1:0 failed",
        "something else",
        "Connect to 127.0.0.1:9 failed (and 4 more like this)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
