"""The topic files, the layout they make, the check, the ACL commands: all without a broker."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from turnlog.codec.schemas import TOP_LEVEL
from turnlog.kafka.port import (
    Admin,
    NewTopic,
    NotAuthorised,
    Partition,
    Refused,
    Retryable,
    TopicInfo,
    UnknownTopic,
)
from turnlog.kafka.topic_acls import acl_commands, grants
from turnlog.kafka.topic_check import Difference, check_topics, report
from turnlog.kafka.topics import BadTopicFile, Layout, TopicSpec, create_topics, load, specs, topic_name
from turnlog.testing import MemoryCluster

LAYOUT = Layout(prefix="t.", partitions=4, toolsets=("billing",))
SAFE = Layout(prefix="t.", partitions=4, replication=3, toolsets=("billing",))


def cluster(brokers: int = 1) -> MemoryCluster:
    return MemoryCluster(lambda: 0, brokers=brokers)


def prepared(layout: Layout, brokers: int = 1) -> MemoryCluster:
    made = cluster(brokers)
    create_topics(made.admin(), layout)
    return made


def changed(layout: Layout, name: str, fields: Mapping[str, object], brokers: int = 3) -> list[Difference]:
    """What the check says when one topic differs."""
    made = prepared(layout, brokers)
    topic = made.topics["t." + name]
    config = {**topic.config, **{k: str(v) for k, v in fields.items() if k != "partitions"}}
    partitions = fields.get("partitions", len(topic.logs))
    assert isinstance(partitions, int)
    made.create("t." + name, partitions, config, topic.replication)
    return check_topics(made.admin(), layout)


# --- files


def test_every_file_names_a_record_that_exists() -> None:
    assert {spec.value for spec in specs().values()} <= set(TOP_LEVEL)


def test_every_file_is_there_and_every_record_has_a_topic() -> None:
    assert set(specs()) == {
        "agents", "command-outcomes", "commands", "dead-letters", "journal", "run-state", "tool-ledger", "tool-manifests",
        "tool-requests", "tool-results",
    }  # fmt: skip
    assert {spec.value for spec in specs().values()} == set(TOP_LEVEL)


def test_what_the_design_fixes() -> None:
    together = {name for name, spec in specs().items() if spec.co_partitioned}
    assert together == {"commands", "tool-results", "journal", "run-state", "tool-ledger"}
    for name in ("journal", "run-state", "tool-ledger", "command-outcomes", "tool-requests"):
        assert specs()[name].writers == ("loop",), name
    assert specs()["tool-results"].readers == ("loop",)  # teams need no read right
    assert specs()["journal"].trimmed_by == ("loop",)


def test_the_journal_never_expires_and_is_never_compacted() -> None:
    plan = LAYOUT.plan(specs()["journal"])
    assert (plan.config["cleanup.policy"], plan.config["retention.ms"], plan.config["retention.bytes"]) == (
        "delete",
        "-1",
        "-1",
    )


def test_every_topic_keeps_the_logs_time_and_takes_a_mebibyte() -> None:
    for _, topic in LAYOUT.planned():
        assert topic.config["message.timestamp.type"] == "LogAppendTime"
        assert int(topic.config["max.message.bytes"]) >= 1024 * 1024 + 61
        assert topic.config["unclean.leader.election.enable"] == "false"


GOOD = """
purpose: something worth twenty letters
key: run_id
value: Command
partitions: 1
cleanup: delete
retention: 7d
writers: [loop]
readers: [loop]
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("retention: 7d", "retention: soon", "retention"),
        ("retention: 7d", "retention: last of its key", "cleanup delete does not go with"),
        ("cleanup: delete", "cleanup: compact", "cleanup compact does not go with"),
        ("writers: [loop]", "writers: [somebody]", "writers"),
        ("writers: [loop]", "writers: []", "writers"),
        ("partitions: 1", "partitions: 0", "partitions"),
        ("partitions: 1", "partitions: installation\nper_toolset: true", "partition count of its own"),
        ("key: run_id", "kee: run_id", "kee"),
        ("value: Command", "value: turnlog.core.Command", "value"),
        ("purpose: something worth twenty letters", "purpose: [", "topic.yaml"),
    ],
)
def test_a_file_that_says_nonsense_is_refused_by_name(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "topic.yaml").write_text(GOOD.replace(old, new))
    with pytest.raises(BadTopicFile, match=r"topic\.yaml") as raised:
        load(tmp_path)
    assert said in str(raised.value)


def test_an_empty_folder_is_an_incomplete_installation(tmp_path: Path) -> None:
    with pytest.raises(BadTopicFile, match="incomplete"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("retention", "ms"), [("7d", 604_800_000), ("12h", 43_200_000), ("30m", 1_800_000), ("forever", -1)]
)
def test_retention_in_words(retention: str, ms: int, tmp_path: Path) -> None:
    (tmp_path / "topic.yaml").write_text(GOOD.replace("7d", retention))
    assert load(tmp_path)["topic"].retention_ms == ms


# --- names


def test_names() -> None:
    assert topic_name("turnlog.", "journal") == "turnlog.journal"
    assert topic_name("", "tool-requests", "billing") == "tool-requests.billing"


@pytest.mark.parametrize(
    ("prefix", "name", "toolset"),
    [
        ("", "journall", None),
        ("", "journal", "billing"),
        ("", "tool-requests", None),
        ("", "tool-requests", "a.b"),
        ("", "tool-requests", ""),
        ("", "tool-requests", "x" * 65),
        ("ü", "journal", None),
        ("x" * 249, "journal", None),
    ],
)
def test_names_that_are_refused(prefix: str, name: str, toolset: str | None) -> None:
    with pytest.raises(Refused):
        topic_name(prefix, name, toolset)


# --- creation


def test_creation_makes_what_is_missing_once() -> None:
    admin = cluster().admin()
    assert set(create_topics(admin, LAYOUT)) == {topic.name for _, topic in LAYOUT.planned()}
    assert create_topics(admin, LAYOUT) == []
    more = LAYOUT.model_copy(update={"toolsets": ("billing", "search")})
    assert create_topics(admin, more) == ["t.tool-requests.search"]
    assert create_topics(cluster().admin(), more, names=["tool-requests"]) == [
        "t.tool-requests.billing",
        "t.tool-requests.search",
    ]


def test_an_existing_topic_of_another_count_is_refused() -> None:
    made = cluster()
    made.create("t.commands", 7)
    with pytest.raises(Refused, match=r"t\.commands has 7 partitions, the installation 4"):
        create_topics(made.admin(), LAYOUT)
    made = cluster()
    made.create("t.dead-letters", 7)  # no key order hangs on this one
    assert "t.dead-letters" not in create_topics(made.admin(), LAYOUT)


def test_too_few_brokers_are_explained() -> None:
    with pytest.raises(Refused, match="TURNLOG_REPLICATION"):
        create_topics(cluster(brokers=1).admin(), SAFE)


class Forbidden:
    """An admin without the right to create."""

    def topics(self, names: object = None, **_: object) -> dict[str, TopicInfo]:
        return {}

    def create_topics(self, topics: list[NewTopic], **_: object) -> Mapping[str, NotAuthorised]:
        return {topic.name: NotAuthorised("no", "TOPIC_AUTHORIZATION_FAILED") for topic in topics}


class Blind(Forbidden):
    """An admin of a cluster that never serves what it created."""

    def ends(self, partitions: list[Partition]) -> None:
        raise UnknownTopic("not yet")

    def create_topics(self, topics: list[NewTopic], **_: object) -> Mapping[str, None]:  # type: ignore[override]
        return {topic.name: None for topic in topics}


def test_a_missing_right_is_named() -> None:
    admin: Admin = Forbidden()  # type: ignore[assignment]
    with pytest.raises(NotAuthorised, match="CREATE"):
        create_topics(admin, LAYOUT)


def test_waiting_for_a_new_topic_is_bounded() -> None:
    admin: Admin = Blind()  # type: ignore[assignment]
    with pytest.raises(Retryable, match="not serving"):
        create_topics(admin, LAYOUT, timeout_s=0.0, pause=lambda _: None)


# --- check


def test_a_good_cluster_has_no_differences() -> None:
    assert check_topics(prepared(SAFE, brokers=3).admin(), SAFE) == []


def test_what_is_missing_is_named() -> None:
    found = check_topics(cluster(3).admin(), SAFE)
    assert {d.topic for d in found} == {topic.name for _, topic in SAFE.planned()}
    assert {d.what for d in found} == {"topic"}
    assert {d.severity for d in found} == {"error"}


DEMANDS = [
    ("journal", {"cleanup.policy": "compact"}),
    ("journal", {"cleanup.policy": "compact,delete"}),
    ("journal", {"retention.ms": 604_800_000}),
    ("journal", {"retention.bytes": 10**12}),
    ("journal", {"message.timestamp.type": "CreateTime"}),
    ("commands", {"message.timestamp.type": "CreateTime"}),
    ("tool-requests.billing", {"max.message.bytes": 1_000_000}),
    ("journal", {"max.message.bytes": 1_048_576}),
    ("journal", {"unclean.leader.election.enable": "true"}),
    ("journal", {"min.insync.replicas": 1}),
    ("run-state", {"min.compaction.lag.ms": 0}),
    ("run-state", {"cleanup.policy": "delete"}),
    ("commands", {"partitions": 8}),
    ("journal", {"partitions": 1}),
]


@pytest.mark.parametrize(("name", "fields"), DEMANDS)
def test_each_demand_is_checked(name: str, fields: dict[str, object]) -> None:
    (found,) = changed(SAFE, name, fields)
    assert (found.topic, found.severity) == ("t." + name, "error")
    assert found.what == next(iter(fields))
    assert found.why
    assert str(found).startswith(f"error: t.{name}: ")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("commands", {"retention.ms": 10**12}),
        ("commands", {"retention.ms": -1}),
        ("journal", {"max.message.bytes": 10**7}),
        ("journal", {"min.insync.replicas": 3}),
        ("dead-letters", {"partitions": 12}),
    ],
)
def test_more_than_demanded_is_fine(name: str, fields: dict[str, object]) -> None:
    assert changed(SAFE, name, fields) == []


def test_too_few_replicas_on_several_brokers_are_an_error_each() -> None:
    found = check_topics(prepared(LAYOUT, brokers=3).admin(), LAYOUT)
    assert {d.what for d in found} == {"replication", "min.insync.replicas"}
    assert all(d.severity == "error" for d in found)
    assert len({d.topic for d in found}) == len(list(LAYOUT.planned()))


def test_one_broker_is_told_what_power_loss_takes_and_what_flushing_costs() -> None:
    found = check_topics(prepared(LAYOUT).admin(), LAYOUT)
    assert [(d.topic, d.severity) for d in found] == [("t.journal", "warning")] * 2
    assert "power loss" in str(found[-1])
    assert "31 to 35" in str(found[-1])
    assert [d.what for d in changed(LAYOUT, "journal", {"flush.messages": 1}, brokers=1)] == ["replication"]


def test_toolsets_found_on_the_cluster_are_checked_too() -> None:
    made = prepared(SAFE, brokers=3)
    made.create("t.tool-requests.other", 4, {}, 3)
    found = check_topics(made.admin(), SAFE)
    assert {d.topic for d in found} == {"t.tool-requests.other"}


def test_topics_that_are_not_ours_are_mentioned() -> None:
    made = prepared(SAFE, brokers=3)
    made.create("t.journale", 4)
    made.create("elsewhere", 4)
    (found,) = check_topics(made.admin(), SAFE)
    assert (found.topic, found.severity) == ("t.journale", "warning")


def test_without_a_prefix_other_peoples_topics_are_not_ours_to_mention() -> None:
    layout = SAFE.model_copy(update={"prefix": ""})
    made = prepared(layout, brokers=3)
    made.create("elsewhere", 4)
    assert check_topics(made.admin(), layout) == []


def test_the_report_puts_errors_first_and_says_whether_it_may_run() -> None:
    made = prepared(SAFE, brokers=3)
    made.create("t.a-stranger", 1)
    lines: list[str] = []
    assert report(check_topics(made.admin(), SAFE), lines.append)
    del made.topics["t.commands"]
    assert not report(check_topics(made.admin(), SAFE), lines.append)
    assert [line.split(":")[0] for line in lines] == ["warning", "error", "warning"]


# --- rights


def operations(topic: str, principal: str) -> set[str]:
    made = grants(
        LAYOUT,
        {"loop": "User:loop", "upstream": "User:up", "operator": "User:op", "auditor": "User:aud"},
        {"billing": "User:bill", "search": "User:search"},
    )
    return {
        operation
        for grant in made
        if grant.resource == "topic" and grant.principal == principal
        if (topic.startswith(grant.name) if grant.prefixed else topic == grant.name)
        for operation in grant.operations
    } & {"Read", "Write", "Delete", "Create"}


@pytest.mark.parametrize(
    ("topic", "principal", "expected"),
    [
        ("t.journal", "User:loop", {"Read", "Write", "Delete"}),
        ("t.journal", "User:up", set()),
        ("t.journal", "User:bill", set()),
        ("t.commands", "User:bill", set()),  # a team cannot forge a command
        ("t.tool-results", "User:up", set()),  # nor an upstream a result
        ("t.tool-results", "User:bill", {"Write"}),
        ("t.tool-requests.billing", "User:bill", {"Read", "Create"}),
        ("t.tool-requests.search", "User:bill", set()),
        ("t.tool-requests.search", "User:loop", {"Write"}),
        ("t.agents", "User:loop", {"Read"}),
    ],
)
def test_who_may_what(topic: str, principal: str, expected: set[str]) -> None:
    assert operations(topic, principal) == expected


def test_commands_are_ready_for_a_shell() -> None:
    commands = acl_commands(LAYOUT, {"loop": "User:CN=loop,O=Some Company"}, {"billing": "User:bill"})
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "kafka-acls.sh"
        assert words[words.index("--allow-principal") + 1] in ("User:CN=loop,O=Some Company", "User:bill")
    assert commands == acl_commands(LAYOUT, {"loop": "User:CN=loop,O=Some Company"}, {"billing": "User:bill"})


@pytest.mark.parametrize("ask", [lambda: acl_commands(LAYOUT, {"worker": "User:w"}), lambda: acl_commands(LAYOUT, {"loop": "loop"})])  # fmt: skip
def test_rights_that_are_refused(ask: Callable[[], object]) -> None:
    with pytest.raises(Refused):
        ask()


def test_every_role_of_a_file_gets_its_right() -> None:
    for spec in specs().values():
        _has_rights(spec)


def _has_rights(spec: TopicSpec) -> None:
    names = {"upstream": "User:up", "loop": "User:loop", "operator": "User:op", "auditor": "User:aud", "worker": "User:bill"}  # fmt: skip
    topic = topic_name(LAYOUT.prefix, spec.name, "billing" if spec.per_toolset else None)
    for role, principal in names.items():
        assert (role in spec.writers) == ("Write" in operations(topic, principal)), (spec.name, role)
        assert (role in spec.readers) == ("Read" in operations(topic, principal)), (spec.name, role)
