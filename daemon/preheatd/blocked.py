"""Targets that cannot even be tried: said once, until that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.verdict import Verdict
from preheatd import events
from preheatd.plan import Action

if TYPE_CHECKING:
    from preheat.verdict import Reason
    from preheatd.plan import Plan


class Blocked:
    """Remembers what was said."""

    def __init__(self, emit: events.Emit) -> None:
        self._emit = emit
        self._said: dict[str, tuple[Reason, ...]] = {}

    def planned(self, plan: Plan) -> None:
        """Say which targets of this plan are blocked, where that is news."""
        blocked = {
            one.target: one.reasons
            for one in plan.decisions
            if (one.verdict is Verdict.UNTRUSTED and one.action is Action.NONE)
            or not one.environment
        }
        for target, reasons in blocked.items():
            if self._said.get(target) != reasons:
                event = events.Event(action=events.TARGET_BLOCKED, target=target, reasons=reasons)
                self._emit(event)
        self._said = blocked
