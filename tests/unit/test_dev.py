"""./dev in a checkout of its own: what is asked in passing must remove nothing and start nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("dev", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in (".turnlog", ".venv", "bench"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bench" / "core.py").touch()
    return tmp_path


def dev(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "dev"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("verb", ["clean", "lint", "lock"])
@pytest.mark.parametrize(("asked", "status"), [("--help", 0), ("-h", 0), ("--al", 2), ("demo", 2)])
def test_asking_a_verb_for_help_does_not_do_it(checkout: Path, verb: str, asked: str, status: int) -> None:
    before = (checkout / "constraints.txt").read_bytes()
    done = dev(checkout, verb, asked)
    assert done.returncode == status, done
    assert f"./dev {verb}" in (done.stderr if status else done.stdout)
    assert (checkout / ".turnlog").is_dir()
    assert not list((checkout / ".venv").iterdir())
    assert (checkout / "constraints.txt").read_bytes() == before


def test_clean_takes_its_own_option(checkout: Path) -> None:
    assert dev(checkout, "clean", "--all").returncode == 0
    assert not (checkout / ".turnlog").exists()
    assert not (checkout / ".venv").exists()


def test_bench_says_which_there_are(checkout: Path) -> None:
    asked, forgotten = dev(checkout, "bench", "--help"), dev(checkout, "bench")
    assert (asked.returncode, forgotten.returncode) == (0, 2)
    assert asked.stdout == forgotten.stderr == "./dev bench NAME, where NAME is one of: core\n"
