"""The world: it gives what tau2 gives, and each call happens once and whole, whoever dies and however often it is delivered."""

import importlib
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import pytest

from examples.airline_retail import tau2_domain
from examples.airline_retail.oracle import derive_truths, execute_directly
from examples.airline_retail.recording import DATA_DIR, Hashes, load_recordings, load_truths
from examples.airline_retail.world import World, double_effects, mutating_calls, repeated_executions

REPOSITORY = Path(__file__).parents[2]
CORPUS = REPOSITORY / "tests" / "e2e" / "data"
SAMPLE = load_recordings(DATA_DIR / "sample.jsonl")
FOUR_CANCELLATIONS = SAMPLE["tau-airline-gpt4o-t028-r0"]
CANCEL = ("airline", "p.r:t0:c0:x", "cancel_reservation", '{"reservation_id": "SI5UKW"}')

T = TypeVar("T")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "world.sqlite"


@pytest.fixture
def world(path: Path) -> Iterator[World]:
    world = World(path)
    yield world
    world.close()


def plain_environment(domain: str) -> Any:
    """A tau2 environment as its own documentation makes it: the thing the overlay must equal."""
    tau2_domain.load(domain)
    return importlib.import_module(f"tau2.domains.{domain}.environment").get_environment()


def plain_hashes(environment: Any) -> Hashes:
    canonical = json.dumps(environment.tools.db.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return Hashes(environment.get_db_hash(), sha256(canonical.encode()).hexdigest())


# What tau2 gives


def test_all_recorded_calls_give_the_truth(world: World, path: Path) -> None:
    compared = 0
    for runs, truth in zip(sorted(CORPUS.glob("tau-*")), sorted(CORPUS.glob("truth-*")), strict=True):
        truths = load_truths(truth)
        for recording in load_recordings(runs).values():
            assert execute_directly(world, recording, f"p.{recording.id}") == truths[recording.id]
            compared += len(truths[recording.id].calls)
    assert compared == 1346
    assert (mutating_calls(path), double_effects(path), repeated_executions(path)) == (192, 0, 0)


def test_without_a_truth_file_the_truth_can_be_derived() -> None:
    assert derive_truths(SAMPLE.values()) == load_truths(DATA_DIR / "sample_truth.jsonl")


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_hashes_are_those_of_a_plain_environment_and_runs_leave_the_base_alone(world: World, domain: str) -> None:
    for recording in SAMPLE.values():
        execute_directly(world, recording, f"p.{recording.id}")
    assert world.final_hashes("p.untouched", domain) == plain_hashes(plain_environment(domain))


ODD_CALLS: dict[str, list[tuple[str, str, dict[str, object]]]] = {
    "retail": [
        # A difference of no items is the int 0 in a float field.
        ("exchange_delivered_order_items", "#W2378156", {"item_ids": [], "new_item_ids": []}),
        ("get_order_details", "#W2378156", {}),
        ("modify_pending_order_items", "#W4082615", {"item_ids": ["9779102705"], "new_item_ids": ["1096508426"]}),
        ("modify_pending_order_items", "#W4082615", {"item_ids": "", "new_item_ids": None}),
        ("get_order_details", "#W4082615", {}),
        ("get_order_details", "#W4082615", {"surplus": 1}),
    ],
    "airline": [
        ("update_reservation_baggages", "SI5UKW", {"total_baggages": "2", "nonfree_baggages": -1}),
        ("get_reservation_details", "SI5UKW", {}),
        ("update_reservation_flights", "SI5UKW", {"cabin": "hold", "flights": []}),
        ("cancel_reservation", "SI5UKW", {}),
        ("get_reservation_details", "SI5UKW", {}),
        ("no_such_tool", "SI5UKW", {}),
    ],
}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the plain environment's; the world has none
@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_odd_arguments_do_what_they_do_in_a_plain_environment(world: World, domain: str) -> None:
    environment = plain_environment(domain)
    from tau2.data_model.message import ToolCall

    record = "order_id" if domain == "retail" else "reservation_id"
    payments: dict[str, dict[str, object]] = {
        "exchange_delivered_order_items": {"payment_method_id": "credit_card_9513926"},
        "modify_pending_order_items": {"payment_method_id": "paypal_4768213"},
        "update_reservation_baggages": {"payment_id": "gift_card_3871331"},
        "update_reservation_flights": {"payment_id": "gift_card_3871331"},
    }
    for number, (tool, record_id, rest) in enumerate(ODD_CALLS[domain]):
        arguments = {record: record_id, **payments.get(tool, {}), **rest}
        expected = environment.get_response(ToolCall(name=tool, arguments=json.loads(json.dumps(arguments))))
        outcome = world.execute("p.r", domain, f"k{number}", tool, json.dumps(arguments))
        assert (outcome.content, outcome.error) == (expected.content, expected.error)
    assert world.final_hashes("p.r", domain) == plain_hashes(environment)
    assert sum(effect.mutated for effect in world.effects("p.r")) >= 2


def test_think_takes_any_text_and_says_nothing(world: World) -> None:
    outcome = world.execute("p.r", "retail", "k", "think", 'not {"json')
    assert (outcome.content, outcome.error, outcome.mutated) == ("", False, False)


@pytest.mark.parametrize(("arguments", "reason"), [("{", "not JSON"), ("[1]", "not a JSON object")])
def test_arguments_that_are_no_object_are_a_refusal(world: World, arguments: str, reason: str) -> None:
    outcome = world.execute("p.r", "retail", "k", "get_order_details", arguments)
    assert outcome.error
    assert reason in outcome.content


def test_a_refusal_may_quote_a_lone_surrogate(world: World) -> None:
    arguments = '{"user_id": "\\ud800"}'
    outcome = world.execute("p.r", "airline", "k", "get_user_details", arguments)
    assert outcome.content == "Error: User \ud800 not found"
    assert world.execute("p.r", "airline", "k", "get_user_details", arguments).content == outcome.content
    assert world.effects("p.r")[0].output == outcome.content


def test_tau2_is_imported_in_silence(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("FROM_DOTENV=1\n")
    script = tmp_path / "script.py"  # dotenv searches from the calling file upwards, too
    script.write_text(
        "import os, sys; from pathlib import Path; from examples.airline_retail.world import World\n"
        "w = World(Path('w.sqlite')); o = w.execute('p.r', 'airline', 'k', 'cancel_reservation', sys.argv[1])\n"
        "assert o.mutated and 'FROM_DOTENV' not in os.environ\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", script, CANCEL[3]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Once


def test_a_call_delivered_again_is_answered_from_the_ledger(world: World, path: Path) -> None:
    first = world.execute("p.r", *CANCEL)
    again = world.execute("p.r", *CANCEL)
    assert (first.mutated, first.repeated, again.repeated) == (True, False, True)
    assert again.content == first.content
    assert (mutating_calls(path), repeated_executions(path)) == (1, 0)


def test_without_the_look_up_redelivery_shows_as_double_effects(path: Path) -> None:
    world = World(path, look_up=False)
    mutating = 0
    for turn, position, call in FOUR_CANCELLATIONS.calls():
        call_of = ("p.r", "airline", f"p.r:t{turn}:c{position}", call.name, call.arguments)
        mutating += world.execute(*call_of).mutated
        world.execute(*call_of)
    world.close()
    assert double_effects(path) == mutating == 4
    assert repeated_executions(path) == len(list(FOUR_CANCELLATIONS.calls()))


def test_runs_and_plays_do_not_see_each_other(world: World, path: Path) -> None:
    _, key, tool, arguments = CANCEL
    for run_id in ("p.r", "p.s", "q.r"):
        assert world.execute(run_id, "airline", f"{run_id}{key}", tool, arguments).mutated
    assert world.final_hashes("p.r", "airline") == world.final_hashes("q.r", "airline")
    assert (mutating_calls(path), mutating_calls(path, "p"), mutating_calls(path, "q")) == (3, 2, 1)


@pytest.mark.parametrize("statement", ["DELETE FROM effects", "UPDATE effects SET mutated = 0"])
def test_the_ledger_is_append_only(world: World, path: Path, statement: str) -> None:
    world.execute("p.r", *CANCEL)
    other = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(statement)
    other.close()


def test_the_ledger_is_read_by_index(world: World) -> None:
    plan = world._db.execute("EXPLAIN QUERY PLAN SELECT output FROM effects WHERE key = 'k' ORDER BY seq LIMIT 1")
    assert "effects_by_key" in str(plan.fetchall())


# Whole


def in_a_fresh_process(work: Callable[[Path], T], path: Path) -> T:
    """Runs work in a spawned process, which may fork: it has no threads and no open database, unlike this one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, path).result(timeout=60)


def fork(work: Callable[[], object]) -> int:
    """The pid of a child that does this work and nothing else: whatever happens in it, it never returns from here."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return pid


def wait(pid: int) -> int:
    """The child's exit code, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def cancel_and_die_at(path: Path, statement: int) -> None:
    world = World(path)
    remaining = iter(range(statement, -1, -1))

    def count_down(_: str) -> None:
        if next(remaining) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    world._db.set_trace_callback(count_down)
    world.execute("p.r", *CANCEL)


def die_at_every_statement(directory: Path) -> list[tuple[int, int, int, bool]]:
    """Per statement of the transaction: the exit code, what the death left (rows, records), whether the next try repairs it."""
    tau2_domain.load("airline")
    deaths: list[tuple[int, int, int, bool]] = []
    while not deaths or deaths[-1][0]:
        path = directory / f"{len(deaths)}.sqlite"
        ended_by = wait(fork(partial(cancel_and_die_at, path, len(deaths))))
        world = World(path)
        rows, records = (world._db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("effects", "records"))
        repaired = world.execute("p.r", *CANCEL).mutated and len(world.effects("p.r")) == 1
        world.close()
        deaths.append((ended_by, rows, records, repaired))
    return deaths


def test_a_death_on_any_line_leaves_nothing_or_everything(tmp_path: Path) -> None:
    *deaths, survived = in_a_fresh_process(die_at_every_statement, tmp_path)
    # begin, look-up, records read, record written, ledger written, commit
    assert deaths == [(-signal.SIGKILL, 0, 0, True)] * 6
    assert survived == (0, 1, 1, True)


def cancel_in_four_processes(path: Path) -> list[int]:
    tau2_domain.load("airline")

    def work() -> None:
        world = World(path)
        for number in range(20):
            world.execute(f"p.r{number}", "airline", f"k{number}", *CANCEL[2:])

    pids = [fork(work) for _ in range(4)]
    return [wait(pid) for pid in pids]


def test_processes_that_get_the_same_calls_make_each_once(path: Path) -> None:
    assert in_a_fresh_process(cancel_in_four_processes, path) == [0] * 4
    assert (mutating_calls(path), repeated_executions(path)) == (20, 0)
