"""What is kept of what happened, and how little a damaged or full place disturbs."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

from rich.console import Console

from preheat.verdict import Reason
from preheatd import events
from preheatd.history import History, last_build_seconds, last_entries
from preheatd.report import print_history
from preheatd.state import State

if TYPE_CHECKING:
    from pathlib import Path

PUBLISHED = events.Event(action=events.BUILD_PUBLISHED, target="encoder", seconds=2.25)
FAILED = events.Event(
    action=events.BUILD_FAILED,
    target="[bold]decoder",
    detail="It raised.",
    reasons=(Reason(kind="module_edited", file="app/x.py"),),
)


def test_the_last_things_that_happened_come_back_in_their_order(tmp_path: Path) -> None:
    state, passed_on = State(tmp_path), []
    with History(state, passed_on.append) as history:
        for number in range(30):
            history.heard(events.Event(action=events.BUILD_PHASE, target="encoder"))
            history.heard(events.Event(action=events.BUILD_PUBLISHED, target=str(number)))
    assert len(passed_on) == 60
    found = last_entries(state, 10)
    assert [entry.event.target for entry in found] == [str(number) for number in range(20, 30)]
    assert all(entry.at.endswith("+00:00") for entry in found)
    assert len(last_entries(state, 1000)) == 30


def test_the_file_is_lines_of_json(tmp_path: Path) -> None:
    with History(State(tmp_path)) as history:
        history.heard(FAILED)
    (line,) = (tmp_path / "history.jsonl").read_text().splitlines()
    assert json.loads(line)["event"]["detail"] == "It raised."
    assert (tmp_path / "history.jsonl").stat().st_mode & 0o777 == 0o600


def test_it_does_not_grow_for_ever_and_keeps_the_newest(tmp_path: Path) -> None:
    state = State(tmp_path)
    with History(state, max_bytes=2000) as history:
        for number in range(200):
            history.heard(events.Event(action=events.BUILD_PUBLISHED, target=str(number)))
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 2000
    found = [int(entry.event.target or "") for entry in last_entries(state, 1000)]
    assert found == list(range(200 - len(found), 200))


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    state = State(tmp_path)
    with History(state) as history:
        history.heard(PUBLISHED)
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b'{"at": 3}\n\xff\xfe\n[[[[\n{"at": "now", "event": {"action"')
    assert [entry.event for entry in last_entries(state, 9)] == [PUBLISHED]


def test_a_place_that_cannot_be_written_costs_the_history_alone(tmp_path: Path) -> None:
    state, passed_on = State(tmp_path / "not" / "there"), []
    with History(state, passed_on.append) as history:
        history.heard(PUBLISHED)
    assert passed_on == [PUBLISHED]
    assert last_entries(state, 9) == ()


def test_how_long_the_last_build_took(tmp_path: Path) -> None:
    state = State(tmp_path)
    with History(state) as history:
        for seconds, detail in ((9.0, ""), (4.5, ""), (0.01, "the package from before the edit")):
            history.heard(
                events.Event(
                    action=events.BUILD_PUBLISHED, target="encoder", seconds=seconds, detail=detail
                )
            )
        history.heard(FAILED)
    assert last_build_seconds(state) == {"encoder": 4.5}


def test_a_table_for_people(tmp_path: Path) -> None:
    state = State(tmp_path)
    with History(state) as history:
        history.heard(PUBLISHED)
        history.heard(FAILED)
    console = Console(file=io.StringIO(), width=200)
    print_history(console, last_entries(state, 9))
    assert isinstance(console.file, io.StringIO)
    _, first, second = console.file.getvalue().splitlines()
    assert "encoder" in first
    assert "build published  2.2" in first
    assert "[bold]decoder" in second
    assert "It raised.; module edited: app/x.py" in second
