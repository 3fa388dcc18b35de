"""A package in use is damaged while a real daemon runs: one build, or none, and no loop."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from support.project import Project, until
from support.small import FILES, WORKER

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.manifest import Manifest


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Project:
    project = Project(tmp_path_factory.mktemp("damage") / "project", FILES, caches)
    done = project.preheat("warm")
    assert done.code == 0, done.err
    return project


def image_of(project: Project, manifest: Manifest) -> Path:
    """The object without which the lean form of this package cannot be loaded."""
    form = manifest.form("lean")
    assert form is not None
    image = next(one for one in form.objects if one.name == "image")
    return project.store().layout.object(image.sha256)


def flip_a_byte(path: Path) -> None:
    """Same size, and where possible the same time: only the bytes tell."""
    data, status = bytearray(path.read_bytes()), path.stat()
    data[len(data) // 2] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def actions(text: str) -> list[str]:
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            found.append(str(json.loads(line)["action"]))
    return found


def quarantined(project: Project) -> list[Path]:
    place = project.store_path / "v1/quarantine"
    return [path for path in place.iterdir() if path.suffix != ".note"]


def test_damage_that_no_size_shows_is_found_and_built_again_once(project: Project) -> None:
    before = project.generation("program")
    flip_a_byte(image_of(project, project.manifest("program")))
    answer = project.python(WORKER).json()
    assert (answer["right"], answer["form"]) == (True, "dynamo")  # a worker refuses that form
    with project.serving("--json") as daemon:
        until(lambda: project.generation("program") > before, "built again")
        project.until_fresh()
        assert project.python(WORKER).json()["right"]
        assert actions(daemon.text()).count("package_damaged") == 1
        # While it runs: what was read before is read again when it was written to.
        again = project.generation("program")
        flip_a_byte(image_of(project, project.manifest("program")))
        project.edit("app/model.py", "# a comment", "# a comment, longer")  # so that it plans
        until(lambda: project.generation("program") > again, "built again")
        project.until_fresh()
        seen = actions(daemon.text())
    assert project.python(WORKER).json()["frames_compiled"] == 0
    assert seen.count("package_damaged") == 2
    assert seen.count("build_started") == 2
    assert project.generation("program") >= before + 2
    assert project.preheat("fsck").code == 0


def test_an_earlier_package_that_fits_the_sources_takes_the_place_of_a_damaged_one(
    project: Project,
) -> None:
    assert project.preheat("warm").code == 0
    earlier = project.manifest("program")
    with project.serving() as daemon:  # asked for, it builds what is fresh already
        before = project.generation("program")
        assert project.preheat("kick", "--rebuild").code == 0
        until(lambda: project.generation("program") > before, "built once more")
        until(lambda: project.preheat("wait").code == 0, "fresh")
        assert daemon.alive()
    damaged = project.manifest("program")
    own = {one.sha256 for one in damaged.objects()} - {one.sha256 for one in earlier.objects()}
    (ref,) = project.refs("program")
    # Where both builds came out the same byte for byte, the manifest is what only one of them has.
    path = project.store().layout.object(sorted(own)[0] if own else ref.manifest)
    for record in (project.root / "state" / "published").iterdir():
        record.unlink()  # what the daemon remembers is not needed: the store has it all
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    done = project.preheat("fsck", "--repair", "--json")
    assert done.code == 0, done.out
    assert "went back" in done.out
    assert project.preheat("plan").code == 0
    assert project.python(WORKER).json()["right"]
    kinds = {one["kind"] for one in done.json()["repairs"]}
    assert kinds <= {"object_damaged", "object_missing", "manifest_missing"}


def test_a_build_that_keeps_failing_waits_longer_and_longer_also_over_restarts(
    project: Project,
) -> None:
    assert project.preheat("warm").code == 0
    good = (project.root / "app/warm.py").read_text()
    manifest = project.manifest("program")
    project.edit("app/warm.py", "def program():", "def program():\n    raise RuntimeError('no')")
    image_of(project, manifest).unlink()
    (record,) = _failures_after(project, 1)
    assert record["attempts"] == 1
    (record,) = _failures_after(project, 2)
    assert record["attempts"] >= 2
    assert quarantined(project)  # what lay there from before is there still
    (project.root / "app/warm.py").write_text(good)
    assert project.preheat("warm").code == 0
    assert project.python(WORKER).json()["right"]


def _failures_after(project: Project, attempts: int) -> list[dict[str, object]]:
    """Let a daemon of its own fail until the record says so often; what the record says then."""
    place = project.root / "state" / "failures"

    def records() -> list[dict[str, object]]:
        return [json.loads(path.read_bytes()) for path in place.glob("*.json")]

    with project.serving():
        until(
            lambda: any(int(str(one["attempts"])) >= attempts for one in records()),
            f"failed {attempts} times",
        )
    return records()


DAMAGES = """
    import json, shutil, sys, warnings
    from pathlib import Path
    import torch, preheat
    from app.model import program

    answers = {}
    for store in sorted(Path(sys.argv[1]).iterdir()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = preheat.load("program", program, store=store, form="lean", on_miss="eager")
            x = torch.linspace(0, 1, 16)
            right = bool(torch.allclose(loaded(x), program(x)))
        report = loaded.preheat
        answers[store.name] = [report.form, right, [r.kind for r in report.reasons],
                               "; ".join(r.detail or "" for r in report.reasons)]
    print(json.dumps(answers))
"""


def damaged_files(project: Project) -> dict[str, Path]:
    """One file of each kind, relative to the store."""
    store, manifest = project.store(), project.manifest("program")
    (ref,) = project.refs("program")
    root = store.layout.root
    return {
        "object": image_of(project, manifest).relative_to(root),
        "manifest": store.layout.object(ref.manifest).relative_to(root),
        "ref": store.layout.ref(ref.target, ref.environment).relative_to(root),
        "FORMAT": store.layout.format_file.relative_to(root),
        "holder": store.layout.lock_holder(ref.target, ref.environment).relative_to(root),
    }


def test_a_worker_refuses_every_empty_or_truncated_file_with_its_reason_and_goes_on(
    project: Project, tmp_path: Path
) -> None:
    assert project.preheat("warm").code == 0
    for name, path in damaged_files(project).items():
        for way in ("empty", "truncated"):
            copy = tmp_path / f"{name}-{way}"
            shutil.copytree(project.store_path, copy, symlinks=True)
            file = copy / path
            data = file.read_bytes() if file.exists() else b'{"host": "here", "pid": 1}'
            file.unlink(missing_ok=True)
            file.write_bytes(b"" if way == "empty" else data[: len(data) // 2])
            file.chmod(0o444)
    done = project.run(sys.executable, "-c", textwrap.dedent(DAMAGES), str(tmp_path))
    assert done.code == 0, done.err
    answers = done.json()
    assert len(answers) == 10
    for name, (form, right, kinds, detail) in answers.items():
        assert right, name
        if name.startswith("holder"):  # only a message needs it
            assert form == "lean", (name, detail)
        elif name.startswith("FORMAT"):
            assert (form, kinds) == ("eager", ["load_failed"]), (name, detail)
            assert "FORMAT is damaged" in detail
        else:
            assert (form, kinds) == ("eager", ["package_corrupted"]), (name, detail)
            assert name.partition("-")[0] in detail or "digest" in detail or ".json" in detail


def test_a_daemon_lives_with_damaged_files_of_its_own_and_of_the_store(project: Project) -> None:
    """Records that are damaged count as none; FORMAT is a trouble until it is repaired."""
    assert project.preheat("warm").code == 0
    files = damaged_files(project)
    state = project.root / "state"
    before = project.generation("program")
    with project.serving() as daemon:
        records = [path for name in ("published", "proofs") for path in (state / name).iterdir()]
        for record in records:
            record.write_bytes(b"")
        for name in ("failures", "damages"):
            (state / name / f"{records[0].stem}.json").write_bytes(b'{"target": "pro')
        (state / "history.jsonl").write_bytes(b"\0\0\0\n")
        (project.store_path / files["holder"]).write_bytes(b"")
        project.edit("app/model.py", "FACTOR = 2.0", "FACTOR = 3.0")
        until(lambda: project.generation("program") > before, "built")
        project.until_fresh()
        mark = project.store_path / files["FORMAT"]
        mark.chmod(0o644)
        mark.write_bytes(b"")
        project.edit("app/model.py", "FACTOR = 3.0", "FACTOR = 4.0")
        until(lambda: "FORMAT is damaged" in daemon.text(), "told")
        assert "preheat fsck --repair" in project.preheat("status").out
        assert daemon.alive()
        repaired = project.preheat("fsck", "--repair", "--json")
        assert repaired.code == 0, repaired.out + repaired.err
        project.until_fresh()
        assert daemon.alive()
    assert project.python(WORKER).json()["right"]
    project.edit("app/model.py", "FACTOR = 4.0", "FACTOR = 2.0")
