"""Nodes that start at once, in real processes: on one directory and one clock, and as real commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.starters import Scene, in_processes

if TYPE_CHECKING:
    from pathlib import Path


def test_a_thousand_starters_in_processes_on_one_directory(tmp_path: Path) -> None:
    scene = Scene(targets=("encoder",), environments=("e" * 32, "f" * 32), build_seconds=20.0)
    counts, begun = in_processes(1000, 4, scene, tmp_path)
    assert begun == 2
    assert set(counts.builds.values()) == {1}
    assert counts.how() == {"built": 2, "taken": 998}
    assert (counts.most_object_reads, counts.most_objects) == (1, 1)
    assert sum(counts.object_reads.values()) == 998
    assert counts.most_small_reads <= 12
    assert counts.writes < 50


def test_the_process_of_the_holder_is_killed(tmp_path: Path) -> None:
    counts, begun = in_processes(100, 4, Scene(build_seconds=20.0), tmp_path, first_dies=True)
    assert begun == 2
    assert counts.how() == {"built": 1, "taken": 74}
    assert (counts.most_object_reads, counts.most_objects) == (1, 1)
