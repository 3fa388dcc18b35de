"""Compile threads from affinity and quotas, read below a made-up root; and what they must not change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.compiler_variables import changes_code
from preheat.recording.variables import watching_variables
from preheat.sources.places import Places
from preheatd.politeness.processors import (
    COMPILE_THREADS,
    MAX_COMPILE_THREADS,
    Processors,
    compile_threads,
    read_processors,
    with_compile_threads,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def root(path: Path, cgroup: str, files: Mapping[str, str]) -> Path:
    written = {"proc/self/cgroup": cgroup, **{f"sys/fs/cgroup/{n}": t for n, t in files.items()}}
    for name, text in written.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def test_the_least_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    place = root(
        tmp_path,
        "0::/system.slice/preheatd@shop.service\n",
        {
            "cpu.weight": "100\n",
            "system.slice/cpu.max": "250000 100000\n",
            "system.slice/preheatd@shop.service/cpu.max": "max 100000\n",
        },
    )
    assert read_processors(place, 16) == Processors(16, (2.5,))
    assert read_processors(place, 2).usable == 2


@pytest.mark.parametrize("controller", ["cpu", "cpu,cpuacct"])
def test_control_groups_of_version_1(tmp_path: Path, controller: str) -> None:
    place = root(
        tmp_path,
        f"8:memory:/a\n4:{controller}:/a/b\n3:cpuset:/a\n",
        {
            f"{controller}/a/cpu.cfs_quota_us": "150000\n",
            f"{controller}/a/cpu.cfs_period_us": "100000\n",
            f"{controller}/a/b/cpu.cfs_quota_us": "-1\n",
            f"{controller}/a/b/cpu.cfs_period_us": "100000\n",
        },
    )
    assert read_processors(place, 16) == Processors(16, (1.5,))


@pytest.mark.parametrize("path", ["/docker/4be1", "/../../elsewhere", "/"])
def test_in_a_container_the_mount_is_the_group(tmp_path: Path, path: str) -> None:
    place = root(tmp_path, f"0::{path}\n", {"cpu.max": "300000 100000\n"})
    assert read_processors(place, 16).usable == 3


@pytest.mark.parametrize("text", ["", "max", "0 100000", "x y", "100000 0", "100000"])
def test_what_cannot_be_read_limits_nothing(tmp_path: Path, text: str) -> None:
    place = root(tmp_path, "0::/a\nnonsense\n::\n", {"a/cpu.max": text})
    assert read_processors(place, 4) == Processors(4, ())
    assert read_processors(tmp_path / "nothing", 4) == Processors(4, ())


def test_this_machine_has_a_processor() -> None:
    found = read_processors()
    assert 0 < found.usable <= len(os.sched_getaffinity(0))


@given(
    st.integers(1, 512),
    st.lists(st.floats(0.01, 1000), max_size=3),
    st.integers(1, 20),
)
def test_the_builds_together_stay_within_the_quota(
    affinity: int, quotas: list[float], builds: int
) -> None:
    processors = Processors(affinity, tuple(quotas))
    threads = compile_threads(processors, builds)
    assert 1 <= threads <= MAX_COMPILE_THREADS
    assert threads == 1 or threads * builds <= processors.usable <= affinity
    # And none is left idle that another thread of each could use.
    assert threads == MAX_COMPILE_THREADS or (threads + 1) * builds > processors.usable


def test_what_the_user_has_set_stays() -> None:
    assert with_compile_threads({"A": "1"}, 3) == {"A": "1", COMPILE_THREADS: "3"}
    assert with_compile_threads({COMPILE_THREADS: "7"}, 3) == {COMPILE_THREADS: "7"}


CAPTURE = """
import json, os, sys
import torch._inductor.config
from preheat.environment import capture, capture_settings
from preheat.manifest import environment_digest
import msgspec
print(json.dumps({
    "threads": torch._inductor.config.compile_threads,
    "digest": environment_digest(capture("cpu")),
    "settings": msgspec.to_builtins(capture_settings()),
}))
"""


def captured(**variables: str) -> dict[str, object]:
    environ = {name: value for name, value in os.environ.items() if name != COMPILE_THREADS}
    done = subprocess.run(
        [sys.executable, "-c", CAPTURE],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_worker_without_the_variable_has_the_environment_and_settings_of_the_build() -> None:
    """The build process gets the variable, no worker does: the package must fit all the same."""
    built, worker = captured(**{COMPILE_THREADS: "13"}), captured()
    assert built.pop("threads") == 13  # the compiler obeys it
    assert worker.pop("threads") != 13
    assert built == worker
    assert not changes_code(COMPILE_THREADS, "cpu")
    assert not changes_code(COMPILE_THREADS, "cuda")


def test_a_program_that_asks_for_the_variable_does_not_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its package would be stale for every worker, and for the daemon itself."""
    (tmp_path / "asks.py").write_text(
        f"import os\nA = os.environ.get({COMPILE_THREADS!r})\nB = os.environ.get('OTHER')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(COMPILE_THREADS, "2")
    reported: dict[str, str | None] = {}
    with watching_variables(Places.of_this_process(tmp_path), reported.__setitem__):
        __import__("asks")
    sys.modules.pop("asks")
    assert reported == {"OTHER": None}
