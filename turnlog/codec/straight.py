"""Straight-line writers and readers of our own schemas, generated once per process from the Avro schema.

Why not fastavro alone: it takes dicts and tests unions, so a step of two events (each with one payload set out of 21) cost
60 µs to write, and 43 to read before the dicts were NamedTuples; this code costs 6 and 14 (bench/codec.py). fastavro stays the
judge: tests compare every byte and value with it, and it reads whatever was written with another version of a schema.

What is generated, per record type:
- `write(out, record)`: calls `out` with the pieces of the record's Avro bytes, in order. Raises UnicodeEncodeError for a lone
  surrogate, OverflowError for a number outside 64 bits, ValueError for a payload that is not of its event's kind.
- `read(data, at)`: the record that begins at `at`, and where it ends. Raises IndexError, UnicodeDecodeError or ValueError for
  bad bytes, Unreadable (unknown_event_kind) for an event that this build has no payload for. An end behind the data means it was truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from turnlog.codec.errors import Unreadable
from turnlog.codec.schemas import TYPES, Schema, records_of, shape
from turnlog.core.events import KINDS

Write = Callable[[Callable[[bytes], Any], Any], None]
Read = Callable[[bytes, int], tuple[Any, int]]


class Pair(NamedTuple):
    """Both directions of one record type."""

    write: Write
    read: Read


# ---------------------------------------------------------------- numbers


def zigzag(number: int) -> bytes:
    """Avro's bytes of a long. Raises OverflowError outside 64 bits."""
    rest = number << 1 ^ number >> 63
    if not 0 <= rest < 1 << 64:
        raise OverflowError(f"{number} does not fit into 64 bits")
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL = {number: zigzag(number) for number in range(-1, 4096)}
_MOST_LONGS = 16_384


class _Longs(dict[int, bytes]):
    """Bytes of longs: a table of the small ones (lengths, turns, positions), and of others that were met lately: the facts of
    a step share one time. Threads may use it at once; at worst a number is made twice."""

    def __missing__(self, number: int) -> bytes:
        made = zigzag(number)
        if len(self) >= _MOST_LONGS:
            self.clear()
            self.update(_SMALL)
        self[number] = made
        return made


_LONGS = _Longs(_SMALL)


def _tail(data: bytes, at: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint after its first byte, which had its top bit set."""
    number, shift = first & 127, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
    return number, at


# ---------------------------------------------------------------- source text


class _Source:
    """Lines of one function under construction, and names for its variables."""

    def __init__(self, head: str) -> None:
        self.lines = [head]
        self._depth = 1
        self._count = 0

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self._depth + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"


def _write(source: _Source, schema: Schema, value: str) -> None:
    """Lines that write the value of the expression `value`."""
    match shape(schema):
        case "string":
            source.add(f"text = {value}.encode()", "out(long[len(text)])", "out(text)")
        case "bytes":
            source.add(f"out(long[len({value})])", f"out({value})")
        case "long":
            source.add(f"out(long[{value}])")
        case "boolean":
            source.add(f"out(b'\\1' if {value} else b'\\0')")
        case "union":
            with source.block(f"if {value} is None:"):
                source.add("out(b'\\0')")
            with source.block("else:"):
                source.add("out(b'\\2')")
                _write(source, schema[1], value)
        case "array" | "map" as kind:
            _write_items(source, kind, schema, value)
        case record:
            source.add(f"write_{record}(out, {value})")


def _write_items(source: _Source, kind: str, schema: Schema, value: str) -> None:
    """An array or map is one block, count first; the end is an empty block."""
    item, name = source.name(), source.name()
    with source.block(f"if {value}:"):
        source.add(f"out(long[len({value})])")
        with source.block(f"for {item} in {value}:" if kind == "array" else f"for {name}, {item} in {value}:"):
            if kind == "map":
                _write(source, "string", name)
            _write(source, schema["items" if kind == "array" else "values"], item)
    source.add("out(b'\\0')")


def _read(source: _Source, schema: Schema, target: str) -> None:
    """Lines that read a value at `at` into the variable `target` and move `at` behind it."""
    match shape(schema):
        case "string":
            _read_length(source)
            source.add(f"{target} = data[at:end].decode()", "at = end")
        case "bytes":
            _read_length(source)
            source.add(f"{target} = data[at:end]", "at = end")
        case "long":
            _read_number(source)
            source.add(f"{target} = n >> 1 ^ -(n & 1)")
        case "boolean":
            source.add(f"{target} = truth[data[at]]", "at += 1")
        case "union":
            source.add("n = data[at]", "at += 1")
            with source.block("if n == 2:"):
                _read(source, schema[1], target)
            with source.block("elif n:"):
                source.add("raise ValueError('no such branch')")
            with source.block("else:"):
                source.add(f"{target} = None")
        case "array" | "map" as kind:
            _read_items(source, kind, schema, target)
        case record:
            source.add(f"{target}, at = read_{record}(data, at)")


def _read_number(source: _Source) -> None:
    source.add("n = data[at]", "at += 1")
    with source.block("if n > 127:"):
        source.add("n, at = tail(data, at, n)")


def _read_length(source: _Source) -> None:
    """A length, as the place where its bytes end. A negative one would lead backwards, for ever in a list."""
    _read_number(source)
    with source.block("if n & 1:"):
        source.add("raise ValueError('a negative length')")
    source.add("end = at + (n >> 1)")


def _read_items(source: _Source, kind: str, schema: Schema, target: str) -> None:
    """Blocks of items until an empty one; a negative count is followed by the block's size in bytes."""
    items, item, name, left = (source.name() for _ in range(4))
    source.add(f"{items} = []")
    with source.block("while data[at]:"):
        _read(source, "long", left)
        with source.block(f"if {left} < 0:"):
            source.add(f"{left} = -{left}")
            _read_number(source)
        with source.block(f"while {left}:"):
            source.add(f"{left} -= 1")
            if kind == "map":
                _read(source, "string", name)
            _read(source, schema["items" if kind == "array" else "values"], item)
            source.add(f"{items}.append({item})" if kind == "array" else f"{items}.append(({name}, {item}))")
    source.add("at += 1", f"{target} = tuple({items})" if kind == "array" else f"{target} = tuple(sorted({items}))")


# ---------------------------------------------------------------- records


def _record(schema: Schema) -> list[str]:
    """Source of `write_<name>` and `read_<name>`."""
    name, fields = schema["name"], schema["fields"]
    is_event = name == "Event"
    columns = [field for field in fields if not (is_event and field["name"] in KINDS)]
    variables = [f"f_{field['name']}" for field in columns]
    write = _Source(f"def write_{name}(out, record):")
    write.add(f"{', '.join(variables)}, {'payload, ' if is_event else ''}= record")
    read = _Source(f"def read_{name}(data, at):")
    for field, variable in zip(columns, variables, strict=True):
        _write(write, field["type"], variable)
        _read(read, field["type"], variable)
    if is_event:
        write.add("write_payload(out, f_kind, payload)")
        read.add("payload, at = read_payload(data, at, f_kind)")
        variables.append("payload")
    # tuple.__new__ as NamedTuple's own _make does it: half the time of calling the class with arguments.
    read.add(f"return new({name}, ({', '.join(variables)},)), at")
    return write.lines + read.lines


def _payloads(fields: list[Schema], functions: dict[str, Any]) -> None:
    """Adds `write_payload` and `read_payload`: the one payload that is set stands between fixed runs of nulls."""
    kinds = [field["name"] for field in fields if field["name"] in KINDS]
    before = {kind: b"\0" * at + b"\2" for at, kind in enumerate(kinds)}
    after = {kind: b"\0" * (len(kinds) - 1 - at) for at, kind in enumerate(kinds)}
    writers = {kind: functions[f"write_{KINDS[kind].__name__}"] for kind in kinds}
    readers = {kind: functions[f"read_{KINDS[kind].__name__}"] for kind in kinds}

    def write_payload(out: Callable[[bytes], Any], kind: str, payload: Any) -> None:
        if type(payload) is not KINDS.get(kind):
            raise ValueError(f"an event of kind {kind!r} with a payload of type {type(payload).__name__}")
        out(before[kind])
        writers[kind](out, payload)
        out(after[kind])

    def read_payload(data: bytes, at: int, kind: str) -> tuple[Any, int]:
        if kind not in readers:
            raise Unreadable("unknown_event_kind", f"this build knows no event of kind {kind!r}")
        head, tail = before[kind], after[kind]
        payload, at = readers[kind](data, _skip(data, at, head, kind))
        return payload, _skip(data, at, tail, kind)

    functions["write_payload"] = write_payload
    functions["read_payload"] = read_payload


def _skip(data: bytes, at: int, nulls: bytes, kind: str) -> int:
    end = at + len(nulls)
    if data[at:end] != nulls:
        if end > len(data):
            raise IndexError("truncated")
        raise Unreadable(
            "unknown_event_kind",
            f"the payload of an event of kind {kind!r} is not the one of its kind, or not the only one",
        )
    return end


def compiled(schema: Schema) -> Pair:
    """Writer and reader of a bare schema (`schemas.bare`) whose records are ours, field by field."""
    functions: dict[str, Any] = {"long": _LONGS, "tail": _tail, "truth": (False, True), "new": tuple.__new__, **TYPES}
    for record in records_of(schema):
        exec("\n".join(_record(record)), functions)
        if record["name"] == "Event":
            _payloads(record["fields"], functions)
    name = schema["name"]
    return Pair(functions[f"write_{name}"], functions[f"read_{name}"])
