"""Which event begins a trouble and which one ends it, and the record that ``status`` reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from preheat.store.layout import Layout
from preheatd import clock, events, owned, troubles
from preheatd.observed import CLOCK_TOLD_SECONDS, Observed
from preheatd.plan import Plan
from preheatd.state import State
from preheatd.store_figures import StoreFigures
from preheatd.troubles import Record, Trouble, after, encode, recorded

if TYPE_CHECKING:
    from pathlib import Path

OWNER = owned.Owner(pid=os.getpid(), purpose="daemon", started_at="now")


def event(action: str, detail: str = "", target: str | None = None) -> events.Event:
    return events.Event(action=action, detail=detail, target=target)


@pytest.mark.parametrize(
    ("begin", "end", "kind"),
    [
        (events.CONFIG_REFUSED, events.CONFIG_RELOADED, troubles.CONFIGURATION_REFUSED),
        (events.UNEXPECTED, events.PLANNED, troubles.PLANNING_FAILED),
        (events.STATE_UNWRITABLE, events.BUILD_PHASE, troubles.STATE_UNWRITABLE),
        (events.WATCH_GONE, events.WATCH_BACK, troubles.WATCH_GONE),
        (events.CLOCK_JUMPED, events.CLOCK_STEADY, troubles.CLOCK_JUMPED),
        (events.WATCH_POLLING, None, troubles.WATCH_POLLING),
        (events.COLLECTION_FAILED, events.COLLECTED, troubles.COLLECTION_FAILED),
        (events.STORE_OVER_LIMIT, events.STORE_WITHIN_LIMITS, troubles.STORE_OVER_LIMIT),
    ],
)
def test_a_trouble_has_a_beginning_and_an_end(begin: str, end: str | None, kind: str) -> None:
    (found,) = after((), event(begin, "why"), "noon")
    assert (found.kind, found.since, found.detail) == (kind, "noon", "why")
    assert found.remedy
    others = [events.PLANNED, events.BUILD_PHASE, events.CONFIG_RELOADED, events.CHANGED]
    left: tuple[Trouble, ...] = (found,)
    for action in others:
        if action != end:
            left = after(left, event(action, target="encoder"), "one")
    assert left == (found,)
    if end is not None:
        assert after(left, event(end, target="encoder"), "two") == ()


def test_a_trouble_that_goes_on_keeps_its_beginning_and_takes_the_newest_detail() -> None:
    first = after((), event(events.CONFIG_REFUSED, "one mistake"), "noon")
    (second,) = after(first, event(events.CONFIG_REFUSED, "another"), "one")
    assert (second.since, second.detail) == ("noon", "another")


def test_commands_fail_for_each_target() -> None:
    found: tuple[Trouble, ...] = ()
    for target in ("b", "a"):
        found = after(found, event(events.HOOK_FAILED, "hangs", target), "noon")
    assert [one.target for one in found] == ["a", "b"]
    (left,) = after(found, event(events.BUILD_PUBLISHED, target="a"), "one")
    assert left.target == "b"
    assert str(left).startswith("b: hook failed since noon: hangs ")


def test_every_kind_has_an_order_and_a_remedy() -> None:
    assert set(troubles.REMEDIES) == set(troubles.KINDS)


def test_the_record_is_found_while_its_owner_lives(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.prepare()
    found = after((), event(events.CONFIG_REFUSED, "why"), "noon")
    with owned.OwnedDirectory(state.daemons, OWNER) as place:
        with Record(place) as record:
            assert recorded(state) == {os.getpid(): ()}
            record.keep(found)
        assert recorded(state) == {os.getpid(): found}
        with Record(place):  # begins anew
            assert recorded(state) == {os.getpid(): ()}
        (place / "trouble.json").write_bytes(b"[{]")
        assert recorded(state) == {os.getpid(): ()}
    assert recorded(state) == {}


def test_the_record_always_fits_and_keeps_the_first() -> None:
    found: tuple[Trouble, ...] = ()
    for number in range(100):
        found = after(found, event(events.HOOK_FAILED, "x" * 5000, f"{number:03}"), "noon")
    found = after(found, event(events.CONFIG_REFUSED, "why"), "noon")
    assert len(encode(found)) == troubles.RECORD_BYTES
    assert b"configuration_refused" in encode(found)


def test_a_place_that_cannot_be_written_costs_the_record_alone(tmp_path: Path) -> None:
    with Record(tmp_path / "not" / "there") as record:
        record.keep(())


def test_a_clock_that_is_kept_right_has_not_jumped() -> None:
    assert clock.jump_seconds(100.0, 100.5) == 0.0
    assert clock.jump_seconds(100.0, 40.0) == -60.0
    assert clock.jump_seconds(100.0, 160.0) == 60.0


def test_a_wait_between_the_two_clocks_is_no_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be kept waiting for seconds at any place; the time of day is 1000 s ahead throughout."""
    waits = iter([0.0, 5.0, 7.0, 0.0, 0.0, 3.0])
    now = [50.0]

    def reading(ahead: float = 0.0) -> float:
        now[0] += next(waits, 0.0)
        return now[0] + ahead

    monkeypatch.setattr(clock.time, "clock_gettime", lambda which: reading())
    monkeypatch.setattr(clock.time, "time", lambda: reading(1000.0))
    assert clock.offset_seconds() == 1000.0


def test_a_clock_that_was_set_is_told_of_for_a_while(tmp_path: Path) -> None:
    heard: list[events.Event] = []
    now = {"offset": 0.0, "monotonic": 0.0}
    observed = Observed(
        heard.append,
        StoreFigures(Layout(tmp_path)),
        offset=lambda: now["offset"],
        monotonic=lambda: now["monotonic"],
    )
    observed.planned(Plan(), 0)
    now["offset"] = -3600.0
    observed.planned(Plan(), 0)
    (jumped,) = heard
    assert jumped.action == events.CLOCK_JUMPED
    assert "set back by 3600 s" in jumped.detail
    observed.planned(Plan(), 0)
    assert [one.kind for one in observed.troubles] == [troubles.CLOCK_JUMPED]
    now["monotonic"] = CLOCK_TOLD_SECONDS + 1
    observed.planned(Plan(), 0)
    assert observed.troubles == ()
    assert len(heard) == 2


def test_a_missing_directory_is_said_once(tmp_path: Path) -> None:
    heard: list[events.Event] = []
    observed = Observed(heard.append, StoreFigures(Layout(tmp_path)))
    for gone in ((), (tmp_path,), (tmp_path,), ()):
        observed.missing(gone)
    assert [one.action for one in heard] == [events.WATCH_GONE, events.WATCH_BACK]
    assert str(tmp_path) in heard[0].detail


def test_trouble_after_the_end_is_no_error(tmp_path: Path) -> None:
    heard: list[events.Event] = []
    observed = Observed(heard.append, StoreFigures(Layout(tmp_path)))
    with pytest.raises(ZeroDivisionError), observed.keeping(tmp_path):
        raise ZeroDivisionError
    observed.heard(event(events.CONFIG_REFUSED, "why"))
    assert [one.kind for one in observed.troubles] == [troubles.CONFIGURATION_REFUSED]
