"""What the commands answer with ``--json``: plain data, the command line's contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from preheatd.kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preheat.errors import PreheatError
    from preheat.manifest import Manifest
    from preheat.sources.explain import SymbolReport
    from preheatd.owned import Owner
    from preheatd.plan import Decision, Plan
    from preheatd.state import Failure
    from preheatd.status import TargetStatus
    from preheatd.troubles import Trouble
    from preheatd.warming import Warmed

Json = dict[str, Any]
Source = Literal["daemon", "disk"]
_NO_TROUBLES: Mapping[int, tuple[Trouble, ...]] = {}


def plan_answer(plan: Plan, source: Source) -> Json:
    """``preheat plan --json``."""
    targets = [decision_answer(decision) for decision in plan.decisions]
    return {"from": source, "targets": targets}


def decision_answer(decision: Decision) -> Json:
    """One target of a plan. ``environment`` is null when its interpreter did not answer."""
    return {
        "target": decision.target,
        "environment": decision.environment or None,
        "verdict": str(decision.verdict),
        "reasons": [msgspec.to_builtins(reason) for reason in decision.reasons],
        "action": str(decision.action),
    }


def warm_answer(warmed: tuple[Warmed, ...]) -> Json:
    """``preheat warm --json``: the plan with verdicts as they are now, and what was done."""
    return {"targets": [_warmed_answer(one) for one in warmed]}


def _warmed_answer(one: Warmed) -> Json:
    return {
        **decision_answer(one.decision),
        "result": one.result,
        "seconds": round(one.seconds, 3),
        "form": form_of(one.manifest),
        "proof": proof_answer(one.manifest),
        "failure": failure_answer(one.failure),
    }


def status_answer(
    targets: Sequence[Json | msgspec.Raw],
    daemons: tuple[Owner, ...],
    store: str,
    source: Source,
    troubles: Mapping[int, tuple[Trouble, ...]] = _NO_TROUBLES,
) -> Json:
    """``preheat status --json``, with ``target_answer`` of each target.

    ``daemon``: what a daemon knows of itself, null where none was asked. ``troubles``: of each daemon, by
    its process.
    """
    return {
        "from": source,
        "store": store,
        "daemons": daemons_answer(daemons, troubles),
        "daemon": None,
        "targets": targets,
    }


def daemons_answer(
    daemons: tuple[Owner, ...], troubles: Mapping[int, tuple[Trouble, ...]]
) -> list[Json]:
    """The daemons that use a state directory, each with what troubles it."""
    return [
        {
            "pid": owner.pid,
            "started_at": owner.started_at,
            "troubles": msgspec.to_builtins(troubles.get(owner.pid, ())),
        }
        for owner in daemons
    ]


def target_answer(target: TargetStatus) -> Json:
    """One target of ``status``, and the greater part of ``explain``."""
    manifest = target.manifest
    return {
        **decision_answer(target.decision),
        "factory": target.factory,
        "form": form_of(manifest),
        "without": manifest.without if manifest else {},
        "proof": proof_answer(manifest),
        "built_at": manifest.build.started_at if manifest else None,
        "sources": len(manifest.sources.modules) if manifest else None,
        "failure": failure_answer(target.failure, target.log),
    }


def explain_answer(target: TargetStatus, symbols: tuple[SymbolReport, ...], source: Source) -> Json:
    """``preheat explain --json``."""
    manifest = target.manifest
    data = manifest.sources.data_files if manifest else ()
    return {
        "from": source,
        **target_answer(target),
        "data_files": sum(one.sha256 is not None for one in data) if manifest else None,
        "settings": msgspec.to_builtins(manifest.settings) if manifest else None,
        "symbols": msgspec.to_builtins(symbols),
    }


def error_answer(error: PreheatError) -> Json:
    """Any command that ends with an error."""
    return {"error": {"kind": kind_of(error), "message": error.message, "remedy": error.remedy}}


def form_of(manifest: Manifest | None) -> str | None:
    """The form that a worker will use: the compiler-free one where there is one."""
    kinds = [form.kind for form in manifest.forms] if manifest else []
    return "lean" if "lean" in kinds else next(iter(kinds), None)


def proof_answer(manifest: Manifest | None) -> Json | None:
    """What was proven, in short."""
    if manifest is None or manifest.proof is None:
        return None
    proof = manifest.proof
    return {"frames_compiled": proof.frames_compiled, "max_error": proof.max_error}


def failure_answer(failure: Failure | None, log: str | None = None) -> Json | None:
    """A failure; with the end of its log where that is wanted."""
    if failure is None:
        return None
    answer: Json = {
        "kind": failure.kind,
        "message": failure.message,
        "remedy": failure.remedy,
        "phase": failure.phase,
        "attempts": failure.attempts,
        "reasons": [msgspec.to_builtins(reason) for reason in failure.reasons],
    }
    return answer if log is None else {**answer, "log": log}
