"""When builds start, stop and are tried again: pure decisions over data."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from preheat.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preheatd.plan import Plan
    from preheatd.state import Damages, Failure

BACKOFF_FIRST_SECONDS = 5.0
BACKOFF_LONGEST_SECONDS = 600.0
HELD_RETRY_SECONDS = 2.0
HELD_LONGEST_SECONDS = 30.0
MIN_PAUSE_SECONDS = 0.05

# A build whose relevance to an edit is only guessed is ended this often in a row, then left to finish:
# else a target next to busily edited files would never be built.
MAX_GUESSED_STOPS = 3

# A build that changes its own sources would be found superseded for ever.
MAX_SUPERSEDED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slot:
    """A build that waits or runs. ``order`` is when it was asked for; ``jobs`` as in ``Target``.

    ``gpus`` are those that it takes. ``lane``: the executor that it goes through, empty for this machine.
    """

    target: str
    priority: int = 0
    order: int = 0
    jobs: int | None = None
    gpus: frozenset[str] = frozenset()
    lane: str = ""


def startable(
    waiting: Iterable[Slot],
    running: Sequence[Slot],
    jobs: int,
    held: frozenset[str] = frozenset(),
) -> tuple[Slot, ...]:
    """Which of those that wait may start now, in this order, next to those that run.

    The highest priority first, then the first asked for. One whose own limit does not allow it now
    also holds back those behind it, so that it gets its turn.

    At most one build uses a GPU. One that waits for a GPU of another build holds back those behind it
    that want any of its GPUs, and no others; a target in ``held`` may not start and holds back nobody.

    Lanes do not hinder each other: what other nodes build takes nothing of this machine, and has its own
    limit.
    """
    by_lane: dict[str, list[Slot]] = {}
    for slot in waiting:
        by_lane.setdefault(slot.lane, []).append(slot)
    return tuple(
        slot
        for lane, slots in by_lane.items()
        for slot in _startable(
            slots,
            [one for one in running if one.lane == lane],
            jobs if not lane else max(one.jobs or 1 for one in slots),
            held,
        )
    )


def _startable(
    waiting: Iterable[Slot], running: Sequence[Slot], jobs: int, held: frozenset[str]
) -> tuple[Slot, ...]:
    """The same in one lane."""
    chosen: list[Slot] = []
    active = list(running)
    taken = {gpu for slot in running for gpu in slot.gpus}
    for slot in in_turn(waiting):
        if slot.target in held:
            continue
        if not taken.isdisjoint(slot.gpus):
            taken |= slot.gpus
            continue
        limit = min([jobs, *(one.jobs for one in (*active, slot) if one.jobs is not None)])
        if len(active) >= limit:
            break
        active.append(slot)
        chosen.append(slot)
        taken |= slot.gpus
    return tuple(chosen)


def in_turn(waiting: Iterable[Slot]) -> list[Slot]:
    """In the order in which they get their turn."""
    return sorted(waiting, key=lambda one: (-one.priority, one.order))


def seconds_to_next(
    plan: Plan, running: Collection[str], now: float, rescan_seconds: float
) -> float:
    """How long to wait for the next plan if nothing happens. ``now``: seconds since the epoch."""
    waits = [rescan_seconds]
    due = plan.next_retry()
    if due is not None:
        waits.append(max(MIN_PAUSE_SECONDS, due - now))
    building = {one.target for one in plan.decisions if one.verdict is Verdict.BUILDING}
    if building - set(running):
        # Another process builds it and does not tell us when it is done.
        waits.append(HELD_RETRY_SECONDS)
    return min(waits)


def held_seconds(times: int) -> float:
    """How long to wait for another process that builds the same, after so many waits in a row."""
    return float(min(HELD_RETRY_SECONDS * 2.0 ** min(times, 30), HELD_LONGEST_SECONDS))


def backoff_seconds(attempts: int) -> float:
    """How long to wait after so many failures in a row."""
    return float(min(BACKOFF_LONGEST_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(attempts - 1, 30)))


def retry_at(failure: Failure) -> float | None:
    """When a failed target is tried again without an edit; None: not at all."""
    return None if failure.refused else failure.at + backoff_seconds(failure.attempts)


def again_at(damages: Damages) -> float:
    """When a package that was damaged once more is built again: as after so many failures."""
    return damages.at + backoff_seconds(damages.times)


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[str]:
    """The files that were edited, added or removed between two states."""
    return frozenset(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


def must_stop(changed: frozenset[str], known: frozenset[str], guessed_stops: int) -> bool:
    """Whether a running build is to be ended because these files changed since it started.

    ``known``: the files that the target is known to depend on, from its last package; empty for a
    target without one, for which any change is taken as relevant for a while. What this misses is
    found before publishing.
    """
    if known:
        return bool(changed & known)
    return bool(changed) and guessed_stops < MAX_GUESSED_STOPS


def next_failure_tried(before: str, after: str, moving: int) -> tuple[tuple[str, ...], int]:
    """Which sources states a failure stands for, and how often in a row they moved during a build.

    An edit that came during the build counts as untried, so the target is built again at once. But
    files that every build changes are not edits.
    """
    if before == after:
        return (before,), 0
    return ((before, after) if moving + 1 >= MAX_SUPERSEDED else (before,)), moving + 1
