"""Imports go one way: services, then turnlog's outer packages, then turnlog.codec, then turnlog.core, then the standard
library. Arrows that are not in the table are not in the code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.tidy.checkout import imports, module_name, python_files, relative, within

CENTRE = {"turnlog.core", "turnlog.codec", "turnlog.settings"}

# Who may import whom. A package may always import itself.
ALLOWED: dict[str, set[str]] = {
    "turnlog.core": set(),
    "turnlog.settings": set(),
    "turnlog.blobs": {"turnlog.core"},
    "turnlog.schema_check": {"turnlog.core", "turnlog.schema_work"},
    "turnlog.schema_work": set(),
    "turnlog.codec": {"turnlog.core"},
    "turnlog.obs": {"turnlog.settings"},
    "turnlog.kafka": CENTRE | {"turnlog.obs"},
    "turnlog.models": CENTRE | {"turnlog.obs", "turnlog.testing"},  # testing holds the scripted models
    "turnlog.journal": CENTRE | {"turnlog.kafka"},  # readers of the journal; the writer is services.loop
    "turnlog.tools": CENTRE | {"turnlog.kafka", "turnlog.obs"},
    "turnlog.testing": CENTRE | {"turnlog.kafka", "turnlog.journal", "turnlog.models", "turnlog.tools", "turnlog.obs"},
    "turnlog.client": CENTRE | {"turnlog.kafka", "turnlog.journal", "turnlog.obs", "turnlog.local"},
    "turnlog.local": CENTRE | {"turnlog.kafka", "turnlog.obs"},
    "turnlog.cli": {"turnlog"},
    "services": {"turnlog"},
}


def test_imports_go_one_way() -> None:
    wrong = []
    for path in python_files("turnlog", "services"):
        here = module_name(path)
        owner = _owner(here)
        allowed = ALLOWED.get(owner, set()) | {owner}
        for name, line in imports(path):
            ours = within(name, "turnlog") or within(name, "services") or within(name, "tests")
            if ours and not name.startswith("turnlog.__") and not any(within(name, okay) for okay in allowed):
                wrong.append(f"{relative(path)}:{line}: {owner} must not import {name}")
    assert not wrong, "\n".join(wrong)


def _owner(module: str) -> str:
    """The entry of the table that a module belongs to: `turnlog.core` for turnlog.core.ids."""
    parts = module.split(".")
    return parts[0] if parts[0] == "services" else ".".join(parts[:2])


def test_every_package_of_the_library_has_its_place_in_the_table() -> None:
    # The two top files that anybody may import or that import nothing have none.
    owners = {_owner(module_name(path)) for path in python_files("turnlog")} - {"turnlog"}
    assert owners <= set(ALLOWED), f"say in the table what they may import: {sorted(owners - set(ALLOWED))}"


def test_the_core_needs_only_the_standard_library() -> None:
    wrong = [
        f"{relative(path)}:{line}: {name}"
        for path in python_files("turnlog/core")
        for name, line in imports(path)
        if not within(name, "turnlog.core") and name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("top", ["turnlog", "services"])
def test_only_the_kafka_package_knows_the_client(top: str) -> None:
    allowed = ("turnlog/kafka/", "turnlog/testing/")
    wrong = [
        f"{relative(path)}:{line}"
        for path in python_files(top)
        for name, line in imports(path)
        if within(name, "confluent_kafka") and not relative(path).startswith(allowed)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_example_audit_shares_nothing_with_what_it_audits() -> None:
    audits = [path for path in python_files("examples") if Path(path).name == "audit_journal.py"]
    wrong = [name for path in audits for name, _ in imports(path) if within(name, "turnlog")]
    assert not wrong
