"""How a run is spread over processes: what is shared stays together, and every name is a file's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import figures, spread

TESTS = Path(__file__).parents[1]
FIXTURE = re.compile(r"^(?:async )?def \w+\([^)]*\b(zoo|lean_project): Project", re.MULTILINE)


def test_the_tests_of_a_file_stay_together() -> None:
    assert spread.unit_of("tests/unit/test_a.py::test_one[x::y]") == "tests/unit/test_a.py"


def test_every_name_is_a_file() -> None:
    for name in spread.TOGETHER | spread.LONG.keys():
        assert (TESTS.parent / name).is_file(), name


def test_the_files_that_share_a_project_stay_together() -> None:
    users = {
        path.relative_to(TESTS.parent).as_posix()
        for path in TESTS.glob("*/test_*.py")
        if FIXTURE.search(path.read_text())
    }
    assert users == spread.TOGETHER
    assert len({spread.unit_of(f"{name}::test") for name in users}) == 1


def test_long_files_come_first_and_unit_tests_last() -> None:
    long = next(iter(spread.LONG))
    names = ["tests/unit/test_a.py::b", "tests/fault/test_new.py::a", f"{long}::z", f"{long}::a"]
    assert sorted(names, key=spread.turn_of) == [names[2], names[3], names[1], names[0]]


def test_figures_of_several_processes_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_of_this_run", {})
    monkeypatch.delenv("PREHEAT_FAULT_RESULTS", raising=False)
    for found in ({"loads": 2, "how": "short"}, {"loads": 3}):
        figures.note("a test", **found)
    assert figures.of_this_run() == {"a test": {"loads": 5, "how": "short"}}


def test_a_name_that_changes_from_process_to_process_is_refused() -> None:
    spread.check_names(["tests/unit/test_a.py::test_one[at home]"])
    with pytest.raises(pytest.UsageError, match="an address has no place"):
        spread.check_names([f"tests/unit/test_a.py::test_one[{object()}]"])
