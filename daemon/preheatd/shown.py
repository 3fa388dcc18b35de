"""The answers of ``status`` and ``explain`` as types, whoever gave them: a daemon, or a look at the disk."""

from __future__ import annotations

import msgspec

from preheat.manifest import Settings
from preheat.sources.explain import SymbolReport
from preheat.verdict import Reason, Verdict
from preheatd.live_view import Building
from preheatd.pauses import Pause
from preheatd.plan import Action, Decision
from preheatd.troubles import Trouble


class FailureShown(msgspec.Struct, frozen=True, kw_only=True):
    """A failure, with the end of its log."""

    kind: str
    message: str
    remedy: str = ""
    reasons: tuple[Reason, ...] = ()
    log: str = ""


class DecisionShown(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a plan."""

    target: str
    environment: str | None
    verdict: Verdict
    action: Action
    reasons: tuple[Reason, ...] = ()

    def decision(self) -> Decision:
        """The same as the daemon has it."""
        return Decision(
            target=self.target,
            environment=self.environment or "",
            verdict=self.verdict,
            action=self.action,
            reasons=self.reasons,
        )


class TargetShown(DecisionShown, frozen=True, kw_only=True):
    """One target; ``data_files``, ``settings`` and ``symbols`` are in ``explain`` alone."""

    factory: str
    form: str | None = None
    without: dict[str, str] = {}
    built_at: str | None = None
    sources: int | None = None
    failure: FailureShown | None = None
    data_files: int | None = None
    settings: Settings | None = None
    symbols: tuple[SymbolReport, ...] = ()


class OwnerShown(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that uses the same state directory, and what troubles it."""

    pid: int
    started_at: str
    troubles: tuple[Trouble, ...] = ()


class WatchShown(msgspec.Struct, frozen=True, kw_only=True):
    """How a daemon watches, and which limit of the kernel it met."""

    mode: str
    limit: str | None = None


class DaemonShown(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon says of itself."""

    planned_at: str | None = None
    control_trouble: str | None = None
    paused: tuple[Pause, ...] = ()
    building: tuple[Building, ...] = ()
    queue: tuple[str, ...] = ()
    refused: str | None = None
    watch: WatchShown


class StatusShown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``status``."""

    store: str
    daemons: tuple[OwnerShown, ...]
    targets: tuple[TargetShown, ...]
    daemon: DaemonShown | None = None


class PlanShown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``plan``."""

    targets: tuple[DecisionShown, ...]

    def decisions(self) -> tuple[Decision, ...]:
        """The same as the daemon has them."""
        return tuple(one.decision() for one in self.targets)
