"""`turnlog dead-letters`: what could not be read or taken, and another try for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer

from turnlog.cli.errors import CliError, Exit
from turnlog.cli.output import emit, fields, note, plain, say, table, when
from turnlog.cli.wiring import Session, acting_session, session
from turnlog.client.links import Receipt
from turnlog.client.tables import all_records
from turnlog.codec import Unreadable
from turnlog.core.records import DeadLetter, InputRef
from turnlog.journal.timeline import clean, counted
from turnlog.kafka.port import Delivered, OffsetGone, Partition

app = typer.Typer(no_args_is_help=True, help="What could not be read or taken, and another try for it.")

ACKNOWLEDGED_S = 30.0
SHOWN_BYTES = 2_000
_ID = re.compile(r"(\d+):(\d+)")

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="<partition>:<offset>, as `turnlog dead-letters list` prints it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text; bytes as hex.")]


class Letter(NamedTuple):
    """A dead letter and its own place; `times`: how often its record was refused so, by several services or after restarts."""

    id: str
    body: DeadLetter
    times: int = 1


@app.command("list")
def list_letters(
    context: typer.Context,
    reason: Annotated[str | None, typer.Option("--reason", metavar="WORD", help="Only with this reason.")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only from this topic (its full name).")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line; bytes as hex.")] = False,
) -> None:
    """List dead letters, the newest last; a record that was refused more than once is one line, with its newest letter.

    [bold]Examples[/]

      turnlog dead-letters list --reason unknown_schema_id

      turnlog dead-letters list --json | jq -r .id | xargs turnlog dead-letters retry --yes
    """
    wanted = [
        letter
        for letter in _once(all_letters(session(context)))
        if reason in (None, letter.body.reason) and topic in (None, letter.body.source.topic)
    ]
    wanted.sort(key=lambda letter: letter.body.at)
    shown = wanted[-limit:]
    if json:
        for letter in shown:
            emit({"id": letter.id, "times": letter.times, **plain(letter.body)})
        return
    if shown:
        table(("id", "at (UTC)", "times", "reason", "from", "key", "size", "detail"), map(_row, shown))
    note(f"{len(shown)} of {counted(len(wanted), 'dead letter')}" if wanted else "no dead letters")


@app.command()
def show(context: typer.Context, letter_id: IdArgument, json: JsonOption = False) -> None:
    """Show one dead letter with its bytes and headers."""
    letter = _letter(session(context), letter_id)
    body = letter.body
    if json:
        return emit({"id": letter.id, **plain(body)})
    fields(
        [
            ("id", letter.id), ("reason", body.reason), ("detail", body.detail), ("from", _origin(body)), ("at", when(body.at)),
            ("service", body.service), ("key", _key(body)), ("size", body.size), ("sha256", body.sha256.hex()),
            *((f"header {h.name}", _bytes(h.value)) for h in body.headers),
        ]
    )  # fmt: skip
    say()
    say(_bytes(body.value))
    return None


@app.command()
def retry(
    context: typer.Context,
    letter_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="One or more ids.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Send dead letters to where they came from once more: the same bytes, key and headers, to the same partition.

    Do it after the cause is gone (a newer build, a topic's rights). What was taken meanwhile is recognised as a repetition. The
    dead letter itself stays until the topic's retention removes it.

    [bold]Example[/]

      turnlog dead-letters retry 0:17 0:18
    """
    here = acting_session(context)
    letters = [_letter(here, letter_id) for letter_id in letter_ids]
    for letter in letters:
        _must_be_whole(letter)
    for letter in letters:
        note(
            f"{letter.id}: {counted(letter.body.size, 'byte')}, key {_key(letter.body)}, to {letter.body.source.topic}[{letter.body.source.partition}]"
        )
    if not yes and not typer.confirm(f"Send {counted(len(letters), 'record')} again?", err=True):
        raise typer.Exit(Exit.BAD)
    for letter, offset in _send(here, letters):
        where = f"{letter.body.source.topic}[{letter.body.source.partition}]@{offset}"
        emit({"id": letter.id, "sent_to": where}) if json else say(f"{letter.id} sent to {where}")


def _must_be_whole(letter: Letter) -> None:
    held = len(letter.body.value or b"")
    if held != letter.body.size:
        raise CliError(
            f"dead letter {letter.id} holds only {held} of {letter.body.size} bytes: it was cut and cannot be sent again",
            "let its sender send it again, smaller",
            Exit.REFUSED,
        )


def _send(here: Session, letters: list[Letter]) -> Iterator[tuple[Letter, int | None]]:
    """Send in order, one after the other, each acknowledged before the next."""
    producer = here.cluster.producer("turnlog-cli-retry")
    try:
        for letter in letters:
            receipt, offsets = Receipt(f"dead letter {letter.id}"), list[int | None]()

            def done(delivered: Delivered, receipt: Receipt = receipt, offsets: list[int | None] = offsets) -> None:
                offsets.append(delivered.offset)
                receipt.settle(delivered.error)

            body = letter.body
            producer.produce(
                body.source.topic, body.value, key=body.key, partition=body.source.partition,
                headers=[(h.name, h.value) for h in body.headers], on_delivery=done,
            )  # fmt: skip
            producer.flush(ACKNOWLEDGED_S)
            receipt.wait(0.0)
            yield letter, offsets[0]
    finally:
        producer.close()


def all_letters(here: Session) -> Iterator[Letter]:
    """Every dead letter, by partition; what is none is told and passed over."""
    for received in all_records(here.reader, here.partitions("dead-letters")):
        letter_id = f"{received.partition}:{received.offset}"
        try:
            yield Letter(letter_id, here.codec.decode(received.value, DeadLetter))
        except Unreadable as problem:
            note(f"dead letter {letter_id} cannot be read: {problem}")


def _once(letters: Iterator[Letter]) -> list[Letter]:
    """The newest letter of each refused record and reason."""
    newest: dict[tuple[InputRef, str], Letter] = {}
    for letter in letters:
        same = (letter.body.source, letter.body.reason)
        before = newest.get(same)
        times = letter.times + (before.times if before else 0)
        kept = before if before and before.body.at > letter.body.at else letter
        newest[same] = kept._replace(times=times)
    return list(newest.values())


def _letter(here: Session, letter_id: str) -> Letter:
    match = _ID.fullmatch(letter_id)
    if match is None:
        raise CliError(f"{letter_id!r} is not <partition>:<offset>", "turnlog dead-letters list prints the ids")
    index, offset = int(match[1]), int(match[2])
    missing = CliError(f"there is no dead letter {letter_id}", "turnlog dead-letters list prints the ids", Exit.UNKNOWN)
    partitions = here.partitions("dead-letters")
    if index >= len(partitions):
        raise missing
    start, end = here.reader.bounds(partitions[index])
    if not start <= offset < end:
        raise missing
    try:
        received = here.reader.read_at(Partition(*partitions[index]), [offset])[0]
    except OffsetGone:
        raise missing from None
    return Letter(letter_id, here.codec.decode(received.value, DeadLetter))


def _row(letter: Letter) -> tuple[object, ...]:
    body = letter.body
    return letter.id, when(body.at), letter.times, body.reason, _origin(body), _key(body), body.size, body.detail


def _origin(letter: DeadLetter) -> str:
    return f"{letter.source.topic}[{letter.source.partition}]@{letter.source.offset}"


def _key(letter: DeadLetter) -> str:
    return "none" if letter.key is None else clean(letter.key.decode("utf-8", "backslashreplace"), 80)


def _bytes(value: bytes | None) -> str:
    """Bytes as a person can look at them: Python's notation, cut."""
    if value is None:
        return "no value"
    shown = repr(value[:SHOWN_BYTES])[2:-1]
    return shown if len(value) <= SHOWN_BYTES else f"{shown}… ({len(value)} bytes)"
