"""What nodes that start at once build and read: ``make bench-flight``, docs/jobs.md. Figures, no times.

Everything that decides is what ``preheat warm --remote`` runs. The clock is a fake one, so an hour takes
seconds; ``support/starters.py`` says what else is a double. Nothing here depends on the machine.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.starters import Counts, Network, Scene, Starter, in_processes, simulate

NODES = 1000
TWO = ("e" * 32, "f" * 32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """``dies``: the first holder dies. ``network``: how the shared store is. ``builds``: what is aimed at."""

    name: str
    scene: Scene = dataclasses.field(default_factory=Scene)
    network: dict[str, Any] = dataclasses.field(default_factory=dict)
    dies: bool = False
    builds: int = 1


CASES = (
    Case(name="one target"),
    Case(
        name="3 targets in 2 environments",
        scene=Scene(targets=("encoder", "decoder", "ranker"), environments=TWO),
        builds=6,
    ),
    Case(name="clocks that are wrong", scene=Scene(clocks="wrong")),
    Case(name="files are seen up to 60 s late", network={"late_seconds": 60.0}),
    Case(name="every fifth read fails", network={"failing": 0.2}),
    Case(name="no exclusive creation", network={"exclusive": False}),
    Case(name="the holder dies", dies=True, builds=2),
    Case(
        name="wrong clocks, late, failing, and the holder dies",
        scene=Scene(clocks="wrong"),
        network={"late_seconds": 60.0, "failing": 0.2},
        dies=True,
        builds=2,
    ),
)


def measured(case: Case) -> tuple[Counts, int]:
    """What happened, and how many builds were begun."""
    begun: list[int] = []

    def builds_begun(starter: Starter, target: str) -> None:
        begun.append(starter.number)
        starter.died = case.dies and len(begun) == 1

    network = Network(random.Random(1), **case.network)  # noqa: S311 - repeatable
    counts = simulate(NODES, case.scene, network, builds_begun=builds_begun)
    return counts, len(begun)


def row(name: str, counts: Counts, builds: int, aimed: int, targets: int) -> str:
    reads = sum(counts.small_reads.values()) / len(counts.small_reads) / targets
    objects = max(counts.object_reads.values(), default=0)
    as_aimed = builds == aimed and objects <= 1
    return (
        f"| {name} | {builds} | {objects} | {reads:.1f} | {counts.most_small_reads / targets:.1f} "
        f"| {counts.writes} | {counts.busiest_second} | {counts.finished_at:.0f} s "
        f"| {'ok' if as_aimed else f'aimed at {aimed} and 1'} |"
    )


def main() -> None:
    print(  # noqa: T201
        f"{NODES} nodes, builds of 60 s, leases of 120 s. Aim: one build for each target and environment "
        "(one more where a holder dies), and each node reads an object once at most.\n"
    )
    print(  # noqa: T201
        "| 1,000 starters | builds | reads of one object by one node | small reads a node and target "
        "| at most | writes of all | calls in the busiest second | all have it after | |"
    )
    print("| --- |" + " ---: |" * 7 + " --- |")  # noqa: T201
    for case in CASES:
        counts, builds = measured(case)
        line = row(case.name, counts, builds, case.builds, len(case.scene.targets))
        print(line, flush=True)  # noqa: T201
    for dies in (False, True):
        with tempfile.TemporaryDirectory(prefix="bench-flight-") as place:
            counts, builds = in_processes(NODES, 8, Scene(), Path(place), first_dies=dies)
        name = "8 real processes on one directory"
        name += ", that of the holder is killed with -9" if dies else ""
        print(row(name, counts, builds, 2 if dies else 1, 1), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
