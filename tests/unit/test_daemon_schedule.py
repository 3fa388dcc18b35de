"""Queue, back-off and superseding as pure decisions; settling with scripted bursts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from preheatd import schedule, settle
from preheatd.schedule import Slot
from preheatd.settle import Burst, seconds_to_wait
from preheatd.state import Failure

LOCK_LIMIT = settle.LOCK_LIMIT_SECONDS


def started(waiting: list[Slot], running: list[Slot], jobs: int) -> list[str]:
    return [slot.target for slot in schedule.startable(waiting, running, jobs)]


def test_priority_first_then_order() -> None:
    waiting = [
        Slot(target="late", order=3),
        Slot(target="early", order=1),
        Slot(target="urgent", order=9, priority=1),
    ]
    assert started(waiting, [], 2) == ["urgent", "early"]
    assert started(waiting, [Slot(target="x")], 2) == ["urgent"]
    assert started(waiting, [Slot(target="x"), Slot(target="y")], 2) == []


def test_a_target_that_wants_to_be_alone_gets_its_turn() -> None:
    alone = Slot(target="alone", jobs=1, priority=1)
    assert started([alone, Slot(target="a")], [], 4) == ["alone"]
    assert started([alone, Slot(target="a")], [Slot(target="x")], 4) == []
    assert started([Slot(target="a")], [alone], 4) == []


@given(
    st.lists(st.builds(Slot, target=st.text(), priority=st.integers(), order=st.integers())),
    st.lists(st.builds(Slot, target=st.text())),
    st.integers(1, 5),
)
def test_never_more_than_jobs(waiting: list[Slot], running: list[Slot], jobs: int) -> None:
    chosen = schedule.startable(waiting, running, jobs)
    assert len(chosen) + len(running) <= max(jobs, len(running))
    assert len(chosen) == min(len(waiting), max(0, jobs - len(running)))


def test_back_off_grows_to_a_limit() -> None:
    waits = [schedule.backoff_seconds(attempt) for attempt in range(1, 1000)]
    assert waits[0] == schedule.BACKOFF_FIRST_SECONDS
    assert waits[1] == 2 * waits[0]
    assert waits == sorted(waits)
    assert waits[-1] == schedule.BACKOFF_LONGEST_SECONDS


def test_a_refused_program_has_no_retry() -> None:
    failure = Failure(target="a", environment="", kind="", message="", at=100.0)
    assert schedule.retry_at(failure) == 100.0 + schedule.BACKOFF_FIRST_SECONDS
    refused = Failure(target="a", environment="", kind="", message="", at=100.0, refused=True)
    assert schedule.retry_at(refused) is None


def test_changed_files() -> None:
    before = {"a": "1", "b": "1", "c": "1"}
    after = {"a": "1", "b": "2", "d": "1"}
    assert schedule.changed_files(before, after) == {"b", "c", "d"}


def test_a_running_build_stops_for_files_that_it_depends_on() -> None:
    known = frozenset({"a", "b"})
    assert schedule.must_stop(frozenset({"a", "x"}), known, 0)
    assert not schedule.must_stop(frozenset({"x"}), known, 0)
    assert not schedule.must_stop(frozenset(), known, 0)


def test_a_first_build_stops_for_any_file_but_not_for_ever() -> None:
    stops = [schedule.must_stop(frozenset({"x"}), frozenset(), past) for past in range(5)]
    assert stops == [True, True, True, False, False]
    assert not schedule.must_stop(frozenset(), frozenset(), 0)


def test_files_that_every_build_changes_are_not_edits() -> None:
    assert schedule.next_failure_tried("a", "a", 5) == (("a",), 0)
    assert schedule.next_failure_tried("a", "b", 0) == (("a",), 1)
    assert schedule.next_failure_tried("b", "c", 1) == (("b",), 2)
    assert schedule.next_failure_tried("c", "d", 2) == (("c", "d"), 3)


def decided_after(events: list[float], paths: int, *, locked_until: float = 0.0) -> float:
    """The moment of the decision for events at these times, on a clock that only waiting moves."""
    now = events[0]
    for _ in range(10_000):
        seen = [time for time in events if time <= now]
        burst = Burst(first=seen[0], latest=seen[-1], paths=min(paths, len(seen)))
        wait = seconds_to_wait(burst, now, locked=now < locked_until)
        if wait <= 0:
            return now
        now += wait
    raise AssertionError("never decided")


def test_one_save_is_decided_soon() -> None:
    assert decided_after([10.0, 10.001, 10.002], 3) == 10.002 + settle.QUIET_SINGLE_SECONDS


def test_a_storm_is_waited_out() -> None:
    storm = [10.0 + 0.02 * step for step in range(50)]
    assert decided_after(storm, 50) >= storm[-1] + settle.QUIET_STORM_SECONDS


def test_a_storm_without_an_end_is_cut() -> None:
    endless = [10.0 + 0.02 * step for step in range(2000)]
    moment = decided_after(endless, 2000)
    assert abs(moment - (10.0 + settle.CAP_SECONDS)) < 0.001


def test_version_control_is_waited_for() -> None:
    moment = decided_after([10.0], 1, locked_until=13.0)
    assert 13.0 <= moment <= 13.0 + settle.LOCK_POLL_SECONDS


def test_a_lock_longer_than_the_cap_is_still_waited_for() -> None:
    assert decided_after([10.0], 1, locked_until=17.0) >= 17.0


def test_a_stale_lock_is_not_waited_for_for_ever() -> None:
    assert abs(decided_after([10.0], 1, locked_until=1e9) - (10.0 + LOCK_LIMIT)) < 0.001


@given(
    st.floats(0, 100),
    st.floats(0, 100),
    st.integers(0, 10_000),
    st.floats(0, 200),
    st.booleans(),
)
def test_waiting_is_never_negative_nor_past_the_limits(
    first: float, more: float, paths: int, later: float, locked: bool
) -> None:
    burst = Burst(first, first + more, paths)
    now = burst.latest + later
    wait = seconds_to_wait(burst, now, locked=locked)
    assert 0.0 <= wait <= settle.QUIET_LARGE_STORM_SECONDS
    if now - first >= LOCK_LIMIT:
        assert wait == 0.0
