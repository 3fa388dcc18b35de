"""What was asked for and how it ended: kept for the next plan, and said as events."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING

import msgspec

from preheatd import events, schedule
from preheatd.outcome import BuildRequest, Outcome
from preheatd.state import Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from preheat.manifest import Manifest
    from preheatd.plan import TargetFacts
    from preheatd.state import State


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """A build that was asked for, and the facts that it was decided on.

    ``known``: the files that its target is known to depend on, empty when that is unknown. ``confirm``: not
    to be built, but what is published to be proven once more.
    """

    request: BuildRequest
    facts: TargetFacts
    known: frozenset[str] = frozenset()
    confirm: bool = False

    @property
    def name(self) -> str:
        """The target's name."""
        return self.request.target.name


@dataclasses.dataclass
class _History:
    """What happened to a target since its last success, as far as this process saw it."""

    guessed_stops: int = 0
    superseded: int = 0


class Memory:
    """Remembers how builds ended, in the state directory and for as long as this process lives.

    ``emit`` is told when the directory cannot be written. ``sources_state`` says what the sources of a
    target are now, for failures during which they moved.
    """

    def __init__(
        self,
        state: State,
        emit: events.Emit,
        sources_state: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._state = state
        self._emit = emit
        self._sources_state = sources_state
        self._history: dict[str, _History] = {}
        self._untried: dict[str, Manifest | None] = {}

    def may_be_confirmed(self, order: Order) -> bool:
        """Whether proving this package once more has not been found impossible."""
        return (order.name, order.facts.manifest) not in self._untried.items()

    def must_stop(self, order: Order, changed: frozenset[str], *, stopped: bool) -> bool:
        """Whether a running build is to be ended because these files changed since it started."""
        history = self._history.setdefault(order.name, _History())
        stop = schedule.must_stop(changed, order.known, history.guessed_stops)
        if stop and not order.known and not stopped:
            history.guessed_stops += 1
        return stop

    async def remember(self, order: Order, outcome: Outcome) -> Outcome:
        """Take an outcome down, and complete it with what is known from before."""
        if order.confirm:
            if outcome.result == "failed":
                self._untried[order.name] = order.facts.manifest
            return outcome
        history = self._history.setdefault(order.name, _History())
        if outcome.result == "built":
            self._history.pop(order.name)
            if any(reason.kind == "package_corrupted" for reason in order.facts.damage):
                note = self._state.note_damage
                await self._note(note, outcome.target, outcome.environment, time.time())
            await self._note(self._state.forget, outcome.target, outcome.environment)
        elif outcome.result == "superseded" and outcome.reasons:
            history.superseded += 1
            if history.superseded >= schedule.MAX_SUPERSEDED:
                history.superseded = 0
                outcome = _never_settles(outcome)
        if outcome.failure is not None:
            failure = await self._completed(order, outcome.failure)
            await self._note(self._state.remember, failure)
            outcome = dataclasses.replace(outcome, failure=failure)
        return outcome

    async def _note(self, write: Callable[..., None], *arguments: object) -> None:
        """Change the notes on disk. One that cannot be written must not end the other builds."""
        try:
            await asyncio.to_thread(write, *arguments)
        except OSError as error:
            detail = f"{self._state.path} cannot be written: {error.strerror or error}."
            self._emit(events.Event(action=events.STATE_UNWRITABLE, detail=detail))

    async def _completed(self, order: Order, failure: Failure) -> Failure:
        """The failure with its history, and with the sources that it stands for."""
        before, previous = order.facts.sources_state, order.facts.failure
        after = await self._sources_state(order.name) if self._sources_state else before
        moving = previous.moving if previous else 0
        tried, moving = schedule.next_failure_tried(before, after, moving)
        same = previous is not None and before in previous.tried
        return msgspec.structs.replace(
            failure,
            tried=tried,
            moving=moving,
            attempts=previous.attempts + 1 if previous and same else 1,
        )


def told(outcome: Outcome, *, confirm: bool) -> events.Event:
    """The event that says how a build ended, or with ``confirm`` a further proof. Pure."""
    action = {
        "confirmed": events.PROOF_CONFIRMED,
        "withdrawn": events.PACKAGE_WITHDRAWN,
        "built": events.BUILD_PUBLISHED,
        "held": events.BUILD_HELD,
        "failed": events.BUILD_FAILED,
        "superseded": events.BUILD_SUPERSEDED,
    }[outcome.result]
    if confirm and outcome.result in ("superseded", "held"):
        action = events.PROOF_STOPPED
    detail = outcome.failure.message if outcome.failure else outcome.holder
    if outcome.returned:
        detail = "the package from before the edit"
    return events.Event(
        action=action,
        target=outcome.target,
        environment=outcome.environment,
        seconds=round(outcome.seconds, 3),
        processes={stage: round(s, 3) for stage, s in outcome.processes.items()},
        kind=outcome.failure.kind if outcome.failure else None,
        detail=detail,
        reasons=outcome.reasons,
    )


def unexpected(request: BuildRequest, error: Exception) -> Outcome:
    """The outcome of a build that met a fault in preheat."""
    return Outcome(
        target=request.target.name,
        environment=request.environment,
        result="failed",
        failure=Failure(
            target=request.target.name,
            environment=request.environment,
            kind="unexpected",
            message=f"{type(error).__name__}: {error}",
            remedy="This is a fault in preheat; please report it with the log.",
            exit_code=1,
            at=time.time(),
        ),
    )


def _never_settles(outcome: Outcome) -> Outcome:
    files = ", ".join(sorted({str(reason) for reason in outcome.reasons}))
    return dataclasses.replace(
        outcome,
        result="failed",
        failure=Failure(
            target=outcome.target,
            environment=outcome.environment,
            kind="sources_never_settle",
            message=f"After each of {schedule.MAX_SUPERSEDED} builds its sources had changed: {files}.",
            remedy="If the target writes these files itself, write them elsewhere.",
            reasons=outcome.reasons,
            at=time.time(),
        ),
    )
