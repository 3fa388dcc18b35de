"""Measures one program: two copies of a project, a daemon in each, and edits that take turns.

One daemon forks from a zygote, the other one starts fresh processes. Both see the same edits one after
another, so that whatever else the machine does hits both alike, and only one of them works at a time.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from preheatd.bench.edit_daemon import MeasuredDaemon
from preheatd.bench.edit_figures import EDITS, WAYS, EditSample, ProgramResult, summarize
from preheatd.bench.edit_project import helper_text, write_configuration, write_project
from preheatd.bench.edit_proofs import FormProofs
from preheatd.bench.processes import FailedError, call, environment_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def measure(
    program: str, rounds: int, environment: Mapping[str, str], say: Callable[[str], None]
) -> ProgramResult:
    """Measure in a temporary directory that is removed afterwards. A failure is part of the result."""
    with tempfile.TemporaryDirectory(prefix="preheat-bench-") as name:
        try:
            return _measure(program, rounds, Path(name), environment, say)
        except FailedError as error:
            say(f"  failed: {error}")
            return ProgramResult(program=program, failure=str(error))


def _measure(
    program: str,
    rounds: int,
    directory: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> ProgramResult:
    projects = {way: directory / way for way in WAYS}
    _prepare(program, projects, environment, say)
    samples: dict[tuple[str, str], list[EditSample]] = {}
    with contextlib.ExitStack() as stack:
        daemons = {
            way: stack.enter_context(MeasuredDaemon(project, environment))
            for way, project in projects.items()
        }
        for daemon in daemons.values():
            daemon.edit(helper_text(1))  # fills caches; the zygote has certainly started after it
        for number in range(rounds):
            for edits in (2 * number + 2, 2 * number + 3):
                kind = "constant" if edits % 2 else "code"
                for way in _in_turns(number):
                    sample = daemons[way].edit(helper_text(edits))
                    samples.setdefault((kind, way), []).append(sample)
                    say(
                        f"  round {number + 1} of {rounds}: {kind}, {way}: {sample.seconds:.2f} s "
                        f"(build {sample.build_seconds:.2f}, proof {sample.proof_seconds:.2f})"
                    )
        zygote_bytes = daemons["forked"].zygote_bytes()
    proofs = FormProofs(projects["fresh"], environment)
    for _ in range(rounds):
        proofs.prove()
    return ProgramResult(
        program=program,
        edits=tuple(summarize(kind, way, samples[kind, way]) for kind in EDITS for way in WAYS),
        lean_proof_seconds=proofs.median("lean"),
        dynamo_proof_seconds=proofs.median("dynamo"),
        zygote_bytes=zygote_bytes or None,
    )


def _in_turns(number: int) -> tuple[str, ...]:
    """Nobody always comes first."""
    ways = tuple(WAYS)
    return ways if number % 2 == 0 else ways[::-1]


def _prepare(
    program: str,
    projects: Mapping[str, Path],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """A warm project for each way: with the same package, and the same compiler caches."""
    fresh, forked = projects["fresh"], projects["forked"]
    write_project(fresh, program, zygote=False)
    say("  preheat warm ...")
    call((sys.executable, "-m", "preheatd", "warm"), fresh, environment_in(fresh, environment))
    shutil.copytree(fresh, forked)
    write_configuration(forked, zygote=True)
