"""The world the tools act on: one SQLite file, shared by any number of worker processes.

Rules:
1. One call is one transaction: look the key up in the ledger; if it is there, answer from it; else apply the run's
   written records, run the tool, write the records it changed and a ledger row, commit. A process that dies on any line
   leaves either nothing or the whole effect, and the next delivery of the same key does the rest.
2. The transaction begins IMMEDIATE: two deliveries of one key, in two processes, come one after the other.
3. The ledger is append-only (triggers refuse all else) and has *no* unique key. So nothing but the look-up keeps an
   effect single, and `double_effects` can be above 0: it is a measurement and not a tautology.
4. A call is mutating if it changed the database. Not its name decides, the records do.

Durable against the death of processes, not of the machine: `synchronous=NORMAL` saves an fsync per call, and what an
example must survive is kill -9.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.airline_retail import tau2_domain
from examples.airline_retail.recording import FREE_TEXT_TOOLS, Hashes

BUSY_TIMEOUT_S = 30.0
"""How long a call waits for the other processes' transactions, each about a millisecond, before it fails."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    run TEXT NOT NULL, domain TEXT NOT NULL, tbl TEXT NOT NULL, id TEXT NOT NULL, json TEXT NOT NULL,
    PRIMARY KEY (run, domain, tbl, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS effects (
    seq INTEGER PRIMARY KEY, key TEXT NOT NULL, run TEXT NOT NULL, domain TEXT NOT NULL, tool TEXT NOT NULL,
    mutated INTEGER NOT NULL, error INTEGER NOT NULL, output BLOB NOT NULL, at REAL NOT NULL, pid INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS effects_by_key ON effects (key);
CREATE INDEX IF NOT EXISTS effects_by_run ON effects (run);
CREATE TRIGGER IF NOT EXISTS effects_kept BEFORE DELETE ON effects
    BEGIN SELECT RAISE(ABORT, 'the effect ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS effects_fixed BEFORE UPDATE ON effects
    BEGIN SELECT RAISE(ABORT, 'the effect ledger is append-only'); END;
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gave. `error`: the tool refused, and `content` says why, for the model to read.

    `repeated`: the key was in the ledger, and the tool did not run again; the other fields are those of its first run.
    """

    content: str
    error: bool
    mutated: bool
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """One row of the ledger: one time a tool ran. `at` is seconds since the epoch, `pid` the worker process."""

    seq: int
    key: str
    run_id: str
    domain: str
    tool: str
    mutated: bool
    error: bool
    output: str
    at: float
    pid: int


class World:
    """One process's door to the world. Threads may share it; their calls come one after the other.

    Must not cross a fork (SQLite's rule). Domains are loaded at their first call: `preload` moves that before it.
    """

    def __init__(self, path: Path, *, look_up: bool = True, now: Callable[[], float] = time.time) -> None:
        """Opens the file, and makes it if it is not there.

        `look_up=False` takes rule 1's ledger look-up out: for the test that shows what redelivery does without it.
        """
        self._look_up = look_up
        self._now = now
        self._lock = threading.Lock()
        self._db = _open(path)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def preload(self, *domains: str) -> None:
        """Loads the domains now and not inside a first call's transaction, where the other processes would wait."""
        for domain in domains:
            tau2_domain.load(domain)

    def execute(self, run_id: str, domain: str, key: str, tool: str, arguments_text: str) -> Outcome:
        """Runs one call in the run's own database, or answers from the ledger; see the rules above.

        Returns what the model must read, refusals included. Raises sqlite3.Error if the file cannot be used, and then
        nothing has happened: the call may be tried again. Blocks, normally for a millisecond.
        """
        base = tau2_domain.load(domain)
        with self._lock, _transaction(self._db):
            known = self._known(key) if self._look_up else None
            if known is not None:
                return known
            answer = _run(base, tool, arguments_text, self._records(run_id, domain))
            self._write(run_id, domain, answer.written)
            self._append(run_id, domain, key, tool, answer)
        return Outcome(answer.content, answer.error, answer.mutated)

    def final_hashes(self, run_id: str, domain: str) -> Hashes:
        """Both hashes of the run's whole database as it is now."""
        with self._lock:
            written = self._records(run_id, domain)
        return tau2_domain.load(domain).hashes(written)

    def effects(self, run_id: str) -> list[Effect]:
        """The ledger rows of a run, in the order of their transactions."""
        columns = "seq, key, run, domain, tool, mutated, error, output, at, pid"
        with self._lock:
            rows = self._db.execute(f"SELECT {columns} FROM effects WHERE run = ? ORDER BY seq", (run_id,)).fetchall()
        return [
            Effect(seq, key, run, domain, tool, bool(mutated), bool(error), _decode(output), at, pid)
            for seq, key, run, domain, tool, mutated, error, output, at, pid in rows
        ]

    def _known(self, key: str) -> Outcome | None:
        query = "SELECT output, error, mutated FROM effects WHERE key = ? ORDER BY seq LIMIT 1"
        row = self._db.execute(query, (key,)).fetchone()
        return None if row is None else Outcome(_decode(row[0]), bool(row[1]), bool(row[2]), repeated=True)

    def _records(self, run_id: str, domain: str) -> tau2_domain.Changes:
        query = "SELECT tbl, id, json FROM records WHERE run = ? AND domain = ?"
        written: tau2_domain.Changes = {}
        for table, record_id, text in self._db.execute(query, (run_id, domain)):
            written.setdefault(table, {})[record_id] = text
        return written

    def _write(self, run_id: str, domain: str, written: tau2_domain.Changes) -> None:
        rows = [(run_id, domain, table, i, text) for table, texts in written.items() for i, text in texts.items()]
        self._db.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)", rows)

    def _append(self, run_id: str, domain: str, key: str, tool: str, answer: tau2_domain.Answer) -> None:
        columns = "key, run, domain, tool, mutated, error, output, at, pid"
        row = (
            *(key, run_id, domain, tool, answer.mutated, answer.error),
            *(_encode(answer.content), self._now(), os.getpid()),
        )
        self._db.execute(f"INSERT INTO effects ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def double_effects(path: Path, play_id: str | None = None) -> int:
    """How many keys changed the database more than once, in all runs or in those of one play."""
    return _count_keys(path, play_id, "mutated", "HAVING count(*) > 1")


def mutating_calls(path: Path, play_id: str | None = None) -> int:
    """How many keys changed the database at all."""
    return _count_keys(path, play_id, "mutated", "")


def repeated_executions(path: Path, play_id: str | None = None) -> int:
    """How many keys' tools ran more than once, whether or not it showed.

    Sharper than `double_effects`: of the recorded mutating calls three in four change nothing the second time.
    """
    return _count_keys(path, play_id, "1", "HAVING count(*) > 1")


def _count_keys(path: Path, play_id: str | None, condition: str, having: str) -> int:
    scope, values = ("1", ()) if play_id is None else ("substr(run, 1, ?) = ?", (len(play_id) + 1, f"{play_id}."))
    keys = f"SELECT key FROM effects WHERE {condition} AND {scope} GROUP BY key {having}"
    with closing(_open(path)) as db:
        count: int = db.execute(f"SELECT count(*) FROM ({keys})", values).fetchone()[0]
    return count


def _run(base: tau2_domain.Domain, tool: str, arguments_text: str, written: tau2_domain.Changes) -> tau2_domain.Answer:
    if tool in FREE_TEXT_TOOLS:  # not a tau2 tool; half of its recorded arguments are not JSON
        return tau2_domain.Answer("", error=False, mutated=False, written={})
    try:
        arguments = json.loads(arguments_text)
    except ValueError as error:
        return tau2_domain.Answer(
            f"Error: the arguments of {tool} are not JSON: {error}", error=True, mutated=False, written={}
        )
    if not isinstance(arguments, dict):
        return tau2_domain.Answer(
            f"Error: the arguments of {tool} are not a JSON object", error=True, mutated=False, written={}
        )
    return base.call(tool, arguments, written)


def _encode(output: str) -> bytes:
    """SQLite's text refuses lone surrogates, which a refusal may quote from a model's arguments."""
    return output.encode("utf-8", "surrogatepass")


def _decode(output: bytes) -> str:
    return output.decode("utf-8", "surrogatepass")


def _open(path: Path) -> sqlite3.Connection:
    # Autocommit, transactions by hand; the lock in World is what lets threads share the connection.
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    _use_wal(db, time.monotonic() + BUSY_TIMEOUT_S)
    db.execute("PRAGMA synchronous = NORMAL")
    db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    return db


def _use_wal(db: sqlite3.Connection, deadline: float) -> None:
    """Switches the file to WAL. Two processes that do so at once are told "locked" at once, whatever the busy timeout."""
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
