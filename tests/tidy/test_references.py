"""Who is sent to a document finds it: every Markdown file that is named is in the checkout, and the journal's rules have their place."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.checkout import ROOT, relative, text_files

ADDRESS = re.compile(r"https?://\S+")
DOCUMENT = re.compile(r"[\w./-]*\w\.md\b")
PROTOCOL = (ROOT / "docs" / "journal.md").read_text()
SIMULATION = ROOT / "tests" / "simulation"


def test_every_document_that_is_named_is_here() -> None:
    """By its path from the top, from `docs`, or from the folder of the file that names it."""
    missing = [
        f"{relative(path)}:{number}: {name}"
        for path in text_files()
        for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), 1)
        for name in DOCUMENT.findall(ADDRESS.sub("", line))
        if not any(_is_here(folder / name) for folder in (ROOT, ROOT / "docs", path.parent))
    ]
    assert not missing, "\n".join(missing)


def _is_here(path: Path) -> bool:
    return path.is_file() and path.resolve().is_relative_to(ROOT.resolve())


def test_every_rule_of_the_journal_has_its_heading_and_a_test() -> None:
    rules = "".join(path.read_text() for path in sorted(SIMULATION.glob("test_rules_*.py")))
    assert re.findall(r"^### J(\d+): ", PROTOCOL, re.MULTILINE) == [str(number) for number in range(1, 17)]
    assert not [number for number in range(1, 17) if f"def test_j{number:02}_" not in rules]


def test_the_protocol_names_every_mutant_and_no_other() -> None:
    table = (SIMULATION / "loop_mutants.py").read_text()
    mutants = {"_".join(found) for found in re.findall(r'^@mutant\("(J\d+)"\)\ndef (\w+)', table, re.MULTILINE)}
    assert set(re.findall(r"`(J\d\d_\w+)`", PROTOCOL)) == mutants
