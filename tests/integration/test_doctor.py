"""``preheat doctor``: each look finds what it is for, and one that fails stops no other."""

from __future__ import annotations

import asyncio
import errno
import json
import mmap
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from test_daemon_double import make_project, write_double

from preheatd import cli, doctor, findings
from preheatd.config import load_config

if TYPE_CHECKING:
    from pathlib import Path

    from preheatd.findings import Finding


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY", "CXX"):
        monkeypatch.delenv(name, raising=False)


async def examine(file: Path, **variables: str) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for one in await doctor.examine(load_config(file), {**os.environ, **variables}):
        found.setdefault(one.check, []).append(one)
    return found


def problems(found: dict[str, list[Finding]]) -> dict[str, str]:
    return {
        check: one.detail
        for check, these in found.items()
        for one in these
        if one.level == "problem"
    }


async def test_a_machine_that_is_well(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", ("encoder", "decoder"))
    found = await examine(file)
    assert problems(found) == {}
    assert set(found) == {
        "inotify", "file system", "trust", "keys", "room", "clock", "sandbox", "compiler",
        "interpreter", "GPU",
    }  # fmt: skip
    # Targets that share an interpreter say it once; nothing was made where nothing was.
    assert len(found["interpreter"]) == len(found["compiler"]) == 1
    left = await asyncio.to_thread(lambda: [str(path) for path in tmp_path.rglob("*")])
    assert not [path for path in left if ".preheat-doctor" in path]


async def test_keys_that_are_not_in_order(tmp_path: Path) -> None:
    extra = 'signatures = { key = "no-key", trusted_keys = "no-keys" }\n'
    file = make_project(tmp_path / "project", extra=extra)
    found = await examine(file)
    assert list(problems(found)) == ["keys"]
    assert f"There is no key file {tmp_path / 'project' / 'no-keys'}" in problems(found)["keys"]
    assert found["keys"][0].fix


async def test_every_problem_says_how_to_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_project(tmp_path / "project", probe="broken", extra='device = "cuda"\n')
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o777)

    def mapped(*args: Any, **options: Any) -> Any:
        if options.get("prot", 0) & mmap.PROT_EXEC:
            raise OSError(errno.EPERM, "Operation not permitted")
        return real(*args, **options)

    real = mmap.mmap
    monkeypatch.setattr(mmap, "mmap", mapped)
    monkeypatch.setattr(findings, "MIN_FREE_BYTES", 2**70)
    monkeypatch.setattr(findings, "SPARE_WATCHES", 2**40)
    found = await examine(file, PATH="", CXX="")
    wrong = problems(found)
    assert set(wrong) == {"inotify", "file system", "trust", "room", "compiler", "interpreter"}
    assert "mapping of code: Operation not permitted" in wrong["file system"]
    assert "writable by everybody" in wrong["trust"]
    assert "No module named 'torch'" in wrong["interpreter"]
    assert all(one.fix for these in found.values() for one in these if one.level == "problem")


async def test_a_look_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> object:
        raise OSError("no such call here")

    for name in ("_watches", "_abilities", "_room", "_clock"):
        monkeypatch.setattr(doctor, name, fail)
    found = await examine(make_project(tmp_path / "project"))
    assert set(problems(found)) == {"inotify", "file system", "room", "clock"}
    assert found["interpreter"][0].level == "ok"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = make_project(tmp_path / "project")
    assert cli.run(["doctor", "--config", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"check", "level", "detail", "fix"} == set(answer["findings"][0])
    write_double(file.parent, probe="broken")
    (file.parent / "python").write_text((file.parent / "python").read_text() + "#\n")
    done = subprocess.run(
        [sys.executable, "-m", "preheatd", "doctor", "--config", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "problem interpreter: encoder: " in done.stdout
    assert "        -> " in done.stdout


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (findings.watch_limits(8192, 128, 100), "ok"),
        (findings.watch_limits(4096, 128, 100), "problem"),
        (findings.watch_limits(500_000, 10, 100), "problem"),
        (findings.room("/store", 10 * 2**30, 10**6, 10**7), "ok"),
        (findings.room("/store", 10 * 2**30, 0, 0), "ok"),  # a file system without a fixed number
        (findings.room("/store", 2**30, 10**6, 10**7), "problem"),
        (findings.room("/store", 10 * 2**30, 5, 10**7), "problem"),
        (findings.clock("/store", 0.0), "ok"),
        (findings.clock("/store", -30.0), "problem"),
        (findings.compiler("encoder", None, ("g++",)), "problem"),
        (findings.file_system("/store", {"flock": "no"}, "nfs"), "problem"),
        (findings.file_system("/store", {}, ""), "ok"),
    ],
)
def test_what_is_a_problem(finding: Finding, level: str) -> None:
    assert finding.level == level
    assert bool(finding.fix) == (level == "problem")
