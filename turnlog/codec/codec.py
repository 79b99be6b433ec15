"""Records <-> bytes: Avro in Confluent's wire format (0x00, schema id as 4 bytes, body).

Writing uses the current schemas, with the registry's ids for topics that were announced to it and the repository's numbers
otherwise. Reading goes by the writer's schema, whichever of the two its id is from; our own current schemas take the generated
code of `straight`, all others fastavro's schema resolution.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import fastavro
from fastavro.read import SchemaResolutionError

from turnlog.codec.errors import Unencodable, Unreadable
from turnlog.codec.plain import from_plain
from turnlog.codec.registry import Registry
from turnlog.codec.schemas import FIRST_FILE_ID, TOP_LEVEL, Schema, bare, file_id, published, released, shape
from turnlog.codec.straight import Pair, Write, compiled

T = TypeVar("T")

_HEAD: Final = 5
_UNKNOWN_FOR_S: Final = 60.0
"""So long an id that the registry did not know is not asked for again."""
_MOST_UNKNOWN: Final = 1000
_NO_SCHEMA: Final = (fastavro.schema.SchemaParseException, ValueError, LookupError, TypeError, RecursionError)
"""What comes of JSON that is no Avro schema."""


class _Plan(NamedTuple):
    """How bytes of one schema id are read: into which record type, and how."""

    kind: type
    read: Callable[[bytes], Any]


class RegistrySettings(Protocol):
    """What of the services' settings (turnlog.settings) concerns the registry."""

    @property
    def registry_url(self) -> str | None: ...
    @property
    def registry_register(self) -> bool: ...


class Codec:
    """Encodes and decodes the top-level records. Safe to share between threads.

    `topics` are what is written where: announced at once (see `announce`), or with `lazily` each with the first record of its
    type, for programs that mostly read. Without a registry nothing here blocks; with one, `decode` blocks for one request when
    an id is new to this process, and a lazy `encode` for the first record of a type.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        topics: Mapping[str, type] | None = None,
        *,
        lazily: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = threading.Lock()
        self._unknown: dict[int, float] = {}
        self._pairs = {kind: compiled(bare(published(name))) for name, kind in TOP_LEVEL.items()}
        self._writers = {kind: self._writer(kind, file_id(name)) for name, kind in TOP_LEVEL.items()}
        self._plans = {version.id: self._plan(version.schema) for version in released().values()}
        self._unannounced: dict[type, str] = {}
        for topic, kind in (topics or {}).items():
            if lazily and registry is not None:
                self._unannounced[kind] = topic
                del self._writers[kind]
            else:
                self.announce(topic, kind)

    @classmethod
    def of(cls, settings: RegistrySettings, topics: Mapping[str, type], *, lazily: bool = False) -> Codec:
        """The codec of an installation. Raises RegistryUnavailable, RegistryRefused unless lazily."""
        url = settings.registry_url
        registry = None if url is None else Registry(url, register=settings.registry_register)
        return cls(registry, topics, lazily=lazily)

    def announce(self, topic: str, kind: type) -> None:
        """From now on records of this type are written with the registry's id for `<topic>-value`, registered if need be.
        Nothing happens without a registry. Raises RegistryUnavailable, RegistryRefused."""
        if self._registry is None:
            return
        schema = published(kind.__name__)
        schema_id = self._registry.id_of(topic, schema)
        self._plans[schema_id] = self._plan(schema)
        self._writers[kind] = self._writer(kind, schema_id)

    def encode(self, record: Any) -> bytes:
        """The bytes of a top-level record. Raises Unencodable for a value that Avro cannot carry; RegistryUnavailable and
        RegistryRefused when announced lazily; other errors (TypeError, AttributeError) mean that the record is not built as
        its type says, which is a fault of the caller's code."""
        head, write = self._writers.get(type(record)) or self._first_of(type(record))
        parts = [head]
        try:
            write(parts.append, record)
        except (ValueError, OverflowError) as error:
            raise Unencodable(_explain(record, error)) from None
        return b"".join(parts)

    def decode(self, data: bytes | None, expected: type[T]) -> T:
        """The record in `data`. Raises Unreadable with its reason; RegistryUnavailable when only the registry could tell."""
        if data is None:
            raise Unreadable("null_value", f"a record without a value, where a {expected.__name__} belongs")
        if len(data) < _HEAD or data[0]:
            raise Unreadable(
                "not_avro", f"{len(data)} bytes that do not begin with 0x00 and a schema id: {data[:8].hex()}"
            )
        schema_id = int.from_bytes(data[1:_HEAD], "big")
        plan = self._plans.get(schema_id) or self._learn(schema_id)
        if plan.kind is not expected:
            raise Unreadable(
                "wrong_record", f"a {plan.kind.__name__} (schema id {schema_id}), where a {expected.__name__} belongs"
            )
        try:
            record: T = plan.read(data)
        except SchemaResolutionError as error:
            raise Unreadable("wrong_record", f"schema {schema_id} does not resolve to ours: {_brief(error)}") from None
        except (ValueError, LookupError, EOFError, OverflowError, TypeError, MemoryError) as error:
            raise Unreadable("bad_bytes", f"no {expected.__name__} of schema id {schema_id}: {_brief(error)}") from None
        return record

    def _first_of(self, kind: type) -> tuple[bytes, Write]:
        """How a type is written that was not announced yet."""
        if kind not in self._unannounced:
            raise TypeError(f"{kind.__name__} is no top-level record")
        self.announce(self._unannounced[kind], kind)
        return self._writers[kind]

    def _writer(self, kind: type, schema_id: int) -> tuple[bytes, Write]:
        return b"\0" + schema_id.to_bytes(4, "big"), self._pairs[kind].write

    def _plan(self, schema: Schema) -> _Plan:
        """How to read what was written with `schema`, a record named like one of ours."""
        name = shape(schema)
        kind = TOP_LEVEL[name]
        ours = bare(published(name))
        if bare(schema) == ours:
            return _Plan(kind, _straight(self._pairs[kind]))
        return _Plan(kind, _resolving(kind, bare(schema), ours))

    def _learn(self, schema_id: int) -> _Plan:
        """Ask the registry for an id. Raises Unreadable if it is nobody's or no record of ours, RegistryUnavailable."""
        if schema_id >= FIRST_FILE_ID:
            raise Unreadable(
                "unknown_schema_id",
                f"{schema_id:#x} is not in schemas/released of this build: a newer build wrote it, or it is no record of Turnlog",
            )
        schema = self._ask_registry(schema_id)
        try:
            if shape(schema) not in TOP_LEVEL:
                raise Unreadable("wrong_record", f"schema id {schema_id} is {shape(schema)[:100]}: no record of ours")
            plan = self._plan(schema)
        except _NO_SCHEMA as error:
            raise Unreadable("wrong_record", f"schema id {schema_id} is no Avro schema: {_brief(error)}") from None
        self._plans[schema_id] = plan
        return plan

    def _ask_registry(self, schema_id: int) -> Schema:
        now = self._clock()
        with self._lock:
            asked_recently = self._unknown.get(schema_id, now) > now
        schema = None
        if self._registry is not None and not asked_recently:
            schema = self._registry.schema(schema_id)
        if schema is not None:
            return schema
        with self._lock:
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown.setdefault(schema_id, now + _UNKNOWN_FOR_S)
        where = "no registry is configured" if self._registry is None else "the registry does not know it"
        raise Unreadable("unknown_schema_id", f"schema id {schema_id}: {where}")


def _straight(pair: Pair) -> Callable[[bytes], Any]:
    read, end_of = pair.read, len

    def whole(data: bytes) -> Any:
        record, end = read(data, _HEAD)
        if end != end_of(data):
            raise ValueError(f"the record ends at byte {end} of {end_of(data)}")
        return record

    return whole


class _Bytes(io.BytesIO):
    """Refuses negative lengths, which fastavro hands on and Python takes for "all"."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise ValueError("a negative length")
        return super().read(size)


def _resolving(kind: type, writer: Schema, reader: Schema) -> Callable[[bytes], Any]:
    """Reads another version of a schema: fields by name, absent ones by default, unknown ones dropped."""
    parsed_writer, parsed_reader = fastavro.parse_schema(writer), fastavro.parse_schema(reader)

    def whole(data: bytes) -> Any:
        body = _Bytes(data)
        body.seek(_HEAD)
        plain: Any = fastavro.schemaless_reader(body, parsed_writer, parsed_reader)
        if body.tell() != len(data):
            raise ValueError(f"the record ends at byte {body.tell()} of {len(data)}")
        return from_plain(kind, plain)

    return whole


def _brief(error: Exception) -> str:
    """The error in a line; its repr might hold all the data."""
    return f"{type(error).__name__}: {str(error)[:300]}"


def _explain(record: Any, error: Exception) -> str:
    """Which field cannot be encoded; the error's own words where none stands out."""
    where = _culprit(record, type(record).__name__)
    return where or f"{type(record).__name__}: {error}"


def _culprit(value: Any, path: str) -> str | None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"{path} has a lone surrogate at character {error.start}, which UTF-8 cannot carry"
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            return f"{path} is a number outside 64 bits"
    elif isinstance(value, tuple):
        names = getattr(value, "_fields", None) or [str(place) for place in range(len(value))]
        return next(
            filter(None, (_culprit(part, f"{path}.{name}") for name, part in zip(names, value, strict=True))), None
        )
    return None
