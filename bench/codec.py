"""What encoding and decoding cost, in microseconds of CPU: `./dev bench codec [--json]`. The best of several rounds, on one core."""

from __future__ import annotations

import json
import sys
import time
import timeit
from collections.abc import Callable

from turnlog.codec import Codec
from turnlog.core.agents import Usage
from turnlog.core.events import CallSettled, Event, Outcome, TurnStarted
from turnlog.core.records import (
    Command,
    CommandOutcome,
    InputRef,
    JournalRecord,
    LedgerEntry,
    RunSummary,
    StartRun,
    ToolRequest,
    ToolResult,
)

ROUNDS, CALLS = 7, 5_000
RUN = "airline-play1-0042"
KEY = f"{RUN}:t3:c0:0123456789abcdef"
NOW = 1_796_000_000_000
CONTENT = '{"reservation_id":"NO6JO3","status":"ok"}' * 7

RESULT = ToolResult(RUN, KEY, 1, b"t" * 32, "ok", CONTENT, worker="airline-0")
STEP = JournalRecord(
    "step", b"f" * 16, RUN, 7, b"p" * 32, NOW, "0.1.0", 1, 1,
    (InputRef("turnlog.tool-results", 3, 123_456),),
    (
        Event("outcome_received", NOW, 3, 0, KEY, 1, "get_user_details", 0, Outcome("ok", CONTENT, worker="airline-0")),
        Event("call_settled", NOW, 3, 0, KEY, 1, "get_user_details", None, CallSettled("ok")),
    ),
)  # fmt: skip
STEP3 = STEP._replace(events=(*STEP.events, Event("turn_started", NOW, 4, payload=TurnStarted("0" * 64, 9))))
LABELS = (("channel", "chat"), ("tenant", "acme"))
RECORDS = {
    "step of 2 events": STEP,
    "step of 3 events": STEP3,
    "ToolRequest": ToolRequest(
        RUN,
        KEY,
        3,
        0,
        1,
        "get_user_details",
        '{"user_id":"mia_li_3668"}',
        False,
        NOW,
        "turnlog.tool-results",
        3,
        b"t" * 32,
        "airline",
        LABELS,
    ),
    "ToolResult": RESULT,
    "RunSummary": RunSummary(
        RUN,
        "airline",
        "7",
        LABELS,
        "running",
        "",
        "tools",
        3,
        6,
        Usage(9000, 400, 0),
        None,
        None,
        7,
        b"h" * 32,
        NOW,
        NOW,
        None,
    ),
    "LedgerEntry": LedgerEntry(KEY, RUN, 3, 0, "get_user_details", "ok", CONTENT, 1, 7, NOW),
    "CommandOutcome": CommandOutcome("cmd-1", RUN, "start", "accepted", "", 0, NOW),
    "Command": Command("cmd-1", RUN, "start", start=StartRun("airline", None, "Hello", LABELS)),
}


def microseconds(work: Callable[[], object]) -> float:
    return round(min(timeit.repeat(work, timer=time.process_time, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6, 1)


def main() -> None:
    codec = Codec()
    figures = {}
    for name, record in RECORDS.items():
        data, kind = codec.encode(record), type(record)
        encode = microseconds(lambda record=record: codec.encode(record))  # type: ignore[misc]
        decode = microseconds(lambda data=data, kind=kind: codec.decode(data, kind))  # type: ignore[misc]
        figures[name] = {"bytes": len(data), "encode_us": encode, "decode_us": decode}
    if "--json" in sys.argv:
        print(json.dumps(figures))
        return
    print(f"{'record':20}{'bytes':>8}{'encode µs':>12}{'decode µs':>12}")
    for name, figure in figures.items():
        print(f"{name:20}{figure['bytes']:8}{figure['encode_us']:12}{figure['decode_us']:12}")


if __name__ == "__main__":
    main()
