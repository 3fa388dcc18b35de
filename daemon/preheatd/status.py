"""What is known about each target beyond its verdict, for ``status`` and ``explain``."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING

from preheat.errors import TargetError
from preheat.verdict import Verdict
from preheatd.plan import Decision, make_plan

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.manifest import Manifest
    from preheat.sources.explain import SymbolReport, Touch
    from preheatd.plan import Plan, TargetFacts
    from preheatd.project import Project
    from preheatd.state import Failure


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetStatus:
    """One target now. ``log`` is the end of the last build's log, kept for failures."""

    decision: Decision
    factory: str
    manifest: Manifest | None
    failure: Failure | None
    log: str = ""


async def look(project: Project) -> tuple[TargetStatus, ...]:
    """Look at every target; builds nothing."""
    survey = await project.inventory.survey(project.config)
    plan = make_plan(survey.facts, time.time())
    return await asyncio.to_thread(of_plan, project, plan, survey.facts)


async def plan_for(project: Project) -> Plan:
    """The plan as the daemon would make it now."""
    survey = await project.inventory.survey(project.config)
    return make_plan(survey.facts, time.time())


def of_plan(
    project: Project, plan: Plan, facts: tuple[TargetFacts, ...]
) -> tuple[TargetStatus, ...]:
    """What is known about each target of a plan. Reads the ends of failures' logs."""
    return tuple(
        _status(project, decision, one) for decision, one in zip(plan.decisions, facts, strict=True)
    )


def _status(project: Project, decision: Decision, one: TargetFacts) -> TargetStatus:
    # An old failure is no news about a target that has become fresh since, by an undone edit.
    failure = None if decision.verdict is Verdict.FRESH else one.failure
    return TargetStatus(
        decision=decision,
        factory=one.factory,
        manifest=one.manifest,
        failure=failure,
        log=project.state.log_tail(one.target, one.environment) if failure else "",
    )


async def symbols(project: Project, looked: TargetStatus) -> tuple[SymbolReport, ...]:
    """What became of each piece of the files that changed; nothing where there is no package.

    ``project`` has this target alone.
    """
    manifest = looked.manifest
    if manifest is None:
        return ()
    (target,) = project.config.targets
    explanation = await asyncio.to_thread(
        project.inventory.explain, project.config, manifest, target
    )
    return explanation.symbols


async def if_edited(project: Project, looked: TargetStatus, file: Path) -> Touch:
    """What an edit of ``file``, absolute or relative to the working directory, could touch.

    Raises ``TargetError`` for a target that has no package: then nothing is known of it.
    """
    if looked.manifest is None:
        raise TargetError(
            f"Target {looked.decision.target!r} has no package, so what it depends on is not known.",
            remedy="Run `preheat warm` first.",
        )
    path = await asyncio.to_thread(file.absolute)
    return await asyncio.to_thread(
        project.inventory.if_edited, project.config, looked.manifest, path
    )
