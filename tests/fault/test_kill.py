"""Whatever dies, the store stays whole and the next one succeeds: real processes, killed for real."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.project import Project, until
from support.small import FILES, WORKER


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Project:
    project = Project(tmp_path_factory.mktemp("kill") / "project", FILES, caches)
    done = project.preheat("warm")
    assert done.code == 0, done.err
    return project


def factor(project: Project) -> float:
    text = (project.root / "app/model.py").read_text()
    return float(text.split("FACTOR = ")[1].split()[0])


def edit(project: Project) -> None:
    old = factor(project)
    project.edit("app/model.py", f"FACTOR = {old}", f"FACTOR = {old + 1}")


def loads_or_refuses(project: Project) -> None:
    """A worker either loads the right answer or refuses as stale; nothing else."""
    done = project.python(WORKER)
    if done.code == 0:
        assert done.json()["right"]
    else:
        assert "MissError" in done.err, done.err
    for ref in project.refs("program"):
        manifest = project.store().read_manifest(ref.manifest)
        for needed in manifest.objects():
            project.store().open_object(needed).close()


def children(parent: int) -> list[int]:
    """Live descendants of a process, from /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found += [int(entry.name), *children(int(entry.name))]
    return found


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.parametrize("victim", ["preheat.build", "preheat.verify"])
def test_a_killed_build_or_proof_is_a_failed_build_with_the_signals_name(
    project: Project, victim: str
) -> None:
    edit(project)
    warm = subprocess.Popen(
        [sys.executable, "-m", "preheatd", "warm", "--json"],
        cwd=project.root,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    found: list[int] = []

    def appeared() -> bool:
        found[:] = [p for p in children(warm.pid) if f"-m {victim}" in command_of(p)]
        return bool(found) or warm.poll() is not None

    until(appeared, "running")
    assert found
    time.sleep(0.5)
    os.kill(found[0], signal.SIGKILL)
    out, err = warm.communicate(timeout=600)
    assert warm.returncode == 3, out + err
    assert "SIGKILL" in out
    loads_or_refuses(project)
    status = project.preheat("status")
    assert "SIGKILL" in status.out
    done = project.preheat("warm")
    assert done.code == 0, done.err
    assert project.python(WORKER).json()["right"]


def test_a_daemon_killed_at_any_time_leaves_a_store_that_loads(project: Project) -> None:
    chance = random.Random(5)  # noqa: S311  repeatable, not secret
    for _ in range(3):
        edit(project)
        daemon = subprocess.Popen(
            [sys.executable, "-m", "preheatd", "serve"],
            cwd=project.root,
            env=project.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(1.0, 9.0))
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.wait()
        loads_or_refuses(project)
    done = project.preheat("warm")
    assert done.code == 0, done.err
    answer = project.python(WORKER).json()
    assert answer["right"]
    assert answer["frames_compiled"] == 0
    assert sorted(p.name for p in (project.store_path / "v1" / "tmp").iterdir()) == []


def test_two_daemons_on_one_store_agree(project: Project) -> None:
    before = project.generation("program")
    with project.serving() as one, project.serving() as two:
        edit(project)
        until(lambda: project.generation("program") > before, "rebuilt")
        project.until_fresh("fresh for both")
        assert one.alive()
        assert two.alive()
    assert project.python(WORKER).json()["right"]


def test_a_damaged_object_is_refused_with_a_reason_and_built_again(project: Project) -> None:
    manifest = project.manifest("program")
    damaged = next(one for one in manifest.objects() if one.name.startswith("kernel/"))
    path = project.store_path / "v1" / "objects" / damaged.sha256[:2] / damaged.sha256
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data[: len(data) // 2])
    script = """
        import json, torch, warnings, preheat
        from app.model import program

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = preheat.load("program", program)
            x = torch.linspace(0, 1, 16)
            right = bool(torch.allclose(loaded(x), program(x)))
        report = loaded.preheat
        print(json.dumps([report.form, report.verdict, [r.kind for r in report.reasons], right]))
    """
    done = project.python(script)
    assert done.code == 0, done.err
    assert done.json() == ["compile", "MISSING", ["package_corrupted"], True]
    warmed = project.preheat("warm")
    assert warmed.code == 0, warmed.err
    assert project.python(WORKER).json()["right"]


def test_kernels_that_a_killed_compiler_left_half_written_are_built_again(project: Project) -> None:
    assert project.preheat("warm").code == 0
    kept = [path.resolve() for path in (project.root / "state" / "caches").glob("*/inductor")]
    libraries = [path for cache in kept for path in cache.rglob("*.so")]
    assert libraries
    for library in libraries:
        library.write_bytes(library.read_bytes()[:100])
    # The same graph in another module text: a build that finds its kernels in the cache.
    project.edit("app/model.py", "def program(x):", "UNUSED = 1\n\n\ndef program(x):")
    done = project.preheat("warm")
    assert done.code == 0, done.err
    assert project.python(WORKER).json()["right"]
    # What is kept now is whole: the next build needs no second try.
    project.edit("app/model.py", "UNUSED = 1", "UNUSED = 2")
    assert project.preheat("warm").code == 0
    (log,) = (project.root / "state" / "logs").glob("program@*.log")
    assert "once more with empty compiler caches" not in log.read_text()
