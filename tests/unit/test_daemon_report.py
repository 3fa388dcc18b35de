"""What a person sees, on a terminal and elsewhere."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from preheat.sources.explain import SymbolReport
from preheat.verdict import Reason, Verdict
from preheatd import events
from preheatd.answers import explain_answer, status_answer, target_answer
from preheatd.explaining import print_explanation, print_symbols
from preheatd.plan import Action, Decision, Plan
from preheatd.progress import LiveReport, PlainReport
from preheatd.report import (
    print_failure,
    print_plan,
    print_status,
)
from preheatd.shown import StatusShown, TargetShown
from preheatd.state import Failure
from preheatd.status import TargetStatus
from support.manifests import manifest_of

if TYPE_CHECKING:
    import pytest

EDITED = Reason(kind="module_edited", file="app/[bold]x.py")
PLAN = Plan(
    decisions=(
        Decision(
            target="encoder",
            environment="e",
            verdict=Verdict.STALE,
            action=Action.BUILD,
            reasons=(EDITED,) * 5,
        ),
    )
)
STORY = [
    events.Event(action=events.READY, detail="keeping 1 target warm"),
    events.Event(action=events.CHANGED, detail="1 path"),
    events.Event(action=events.BUILD_STARTED, target="encoder"),
    events.Event(action=events.BUILD_STARTED, target="other"),
    events.Event(action=events.BUILD_PHASE, target="encoder", phase="trace", detail="[1 of 2]"),
    events.Event(action=events.BUILD_FAILED, target="other", detail="It raised.", seconds=1.25),
]


def output(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_plan_with_its_reasons() -> None:
    console = output(terminal=False)
    print_plan(console, PLAN)
    assert "STALE" in text(console)
    assert "module edited: app/[bold]x.py" in text(console)
    assert "and 2 more" in text(console)


def test_the_status_says_why_a_form_is_missing() -> None:
    console = output(terminal=False)
    manifest = msgspec.structs.replace(manifest_of(b"code"), without={"lean": "[it] is too large"})
    status = TargetStatus(
        decision=PLAN.decisions[0], factory="app:encoder", manifest=manifest, failure=None
    )
    answer = status_answer([target_answer(status)], (), "/store", "disk")
    print_status(console, msgspec.convert(answer, StatusShown))
    assert "encoder has no lean form: [it] is too large" in text(console)


def test_plain_lines() -> None:
    console = output(terminal=False)
    with PlainReport(console) as report:
        for event in STORY:
            report.emit(event)
        report.planned(PLAN)
    assert text(console).splitlines() == [
        "ready - keeping 1 target warm",
        "encoder: build started",
        "other: build started",
        "encoder: build phase trace - [1 of 2]",
        "other: build failed 1.2 s - It raised.",
    ]


def test_a_live_view() -> None:
    console = output(terminal=True)
    with LiveReport(console, {"encoder": 12.0}) as report:
        report.planned(PLAN)
        report.emit(events.Event(action=events.PLANNED, detail="1 stale"))
        for event in STORY:
            report.emit(event)
    assert "It raised." in text(console)
    assert "trace, 0 s (last time 12 s)" in text(console)
    assert "1 stale" not in text(console)  # the table says so
    assert "BUILDING" in text(console)


def test_a_live_view_shows_what_a_failed_build_said_last_and_once() -> None:
    console = output(terminal=True)
    said = "\n".join(["first", *(f"line [{n}]" for n in range(9)), "[preheat] process ended"])
    with LiveReport(console, log_tail=lambda target, environment: said) as report:
        for _ in range(2):
            failed = events.Event(action=events.BUILD_FAILED, target="encoder", environment="e")
            report.emit(failed)
    assert text(console).count("  | line [8]") == 1
    assert text(console).count("  | line [1]") == 1
    for left_out in ("first", "line [0]", "process ended"):
        assert left_out not in text(console)


def test_a_live_view_shows_what_waits_and_what_is_proven_once_more() -> None:
    console = output(terminal=True)
    with LiveReport(console) as report:
        report.planned(PLAN)
        report.emit(events.Event(action=events.PROOF_STARTED, target="other"))
        phase = events.Event(action=events.BUILD_PHASE, target="other", phase="proof")
        report.emit(phase)
    assert "waiting" in text(console)
    assert "build phase" not in text(console)


def test_a_failure_in_full() -> None:
    console = output(terminal=False)
    failure = Failure(
        target="encoder",
        environment="e",
        kind="target",
        message="[It] raised.",
        remedy="Correct [it].",
        reasons=(EDITED,),
    )
    print_failure(console, "encoder", failure, "line [one]\nline two")
    assert text(console).splitlines() == [
        "encoder: [It] raised.",
        "  module edited: app/[bold]x.py",
        "  Correct [it].",
        "  | line [one]",
        "  | line two",
    ]


def test_events_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="preheatd"):
        for event in STORY:
            events.log_event(event)
    levels = {record.levelname for record in caplog.records}
    assert levels == {"INFO", "WARNING"}
    (failed,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert failed.__dict__["action"] == events.BUILD_FAILED


def test_differences_stand_side_by_side() -> None:
    console = output(terminal=False)
    reasons = (
        Reason(kind="environment_differs", symbol="torch", built="2.13.0", here="2.14.0"),
        EDITED,
    )
    decision = Decision(
        target="encoder",
        environment="e",
        verdict=Verdict.MISSING,
        action=Action.BUILD,
        reasons=reasons,
    )
    looked = TargetStatus(decision=decision, factory="app:f", manifest=manifest_of(), failure=None)
    print_explanation(console, msgspec.convert(explain_answer(looked, (), "disk"), TargetShown))
    lines = text(console).splitlines()
    (row,) = [line.split() for line in lines if "torch" in line and "2.13" in line]
    assert row == ["environment", "differs:", "torch", "2.13.0", "2.14.0"]
    assert "  because      module edited: app/[bold]x.py" in lines
    assert any("threads=1, default_dtype=float32" in line for line in lines)


def test_a_piece_with_its_diff_cannot_control_the_terminal() -> None:
    console = output(terminal=False)
    report = SymbolReport(
        kind="symbol_edited",
        stale=True,
        file="app/x.py",
        module="app.x",
        symbol="NAME",
        before=(4, 4),
        now=(4, 5),
        detail="why",
        diff=("@@ -1 +1 @@", "-NAME = '[red]\x1b[31m'", "+NAME = 'b'"),
    )
    print_symbols(console, [report])
    assert text(console).splitlines() == [
        "  symbol edited: app/x.py NAME (lines 4 -> 4-5), makes it stale; why",
        "    @@ -1 +1 @@",
        "    -NAME = '[red]\\x1b[31m'",
        "    +NAME = 'b'",
    ]
