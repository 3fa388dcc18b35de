"""``preheat warm --seed``: a build begins with what torch has compiled before, or goes on without it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import test_daemon_double as double

from preheat.errors import UntrustedStoreError
from preheatd import cli, seeding
from preheatd.caches import CompilerCaches
from support import small
from support.project import Project


@pytest.fixture
def caches(tmp_path: Path) -> CompilerCaches:
    return CompilerCaches(tmp_path / "caches").prepare()


def make_seed(path: Path) -> Path:
    for name in ("fxgraph/ab/key/entry", "ab/code.so", "triton/0/ABC/kernel.cubin", "locks/x.lock"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    group = {"child_paths": {"kernel.cubin": "/elsewhere/0/ABC/kernel.cubin"}}
    (path / "triton" / "0" / "ABC" / "__grp__kernel.json").write_text(json.dumps(group))
    for folder, _, files in os.walk(path):
        for one in (folder, *(f"{folder}/{file}" for file in files)):
            Path(one).chmod(0o755)
    return path


def files_of(caches: CompilerCaches) -> set[str]:
    return {
        str(path.relative_to(caches.base)) for path in caches.base.rglob("*") if not path.is_dir()
    }


def test_a_directory_is_copied(tmp_path: Path, caches: CompilerCaches) -> None:
    """Each cache in its place, what is there already untouched, and no path of the old place left."""
    path = make_seed(tmp_path / "seed")
    (caches.inductor / "ab").mkdir()
    (caches.inductor / "ab" / "code.so").write_text("our own")
    (path / "ab" / "link").symlink_to("/etc/passwd")
    os.mkfifo(path / "ab" / "fifo")
    said = seeding.copy_seed(path, caches)
    assert "3 files of 4" in said
    assert "2 left out" in said
    assert files_of(caches) == {
        "inductor/fxgraph/ab/key/entry",
        "inductor/ab/code.so",
        "triton/ABC/kernel.cubin",
        "triton/ABC/__grp__kernel.json",
    }
    assert (caches.inductor / "ab" / "code.so").read_text() == "our own"
    group = json.loads((caches.triton / "ABC" / "__grp__kernel.json").read_text())
    assert group["child_paths"] == {"kernel.cubin": str(caches.triton / "ABC" / "kernel.cubin")}
    assert (path / "ab" / "code.so").read_text() == "ab/code.so"


@pytest.mark.parametrize("place", [".", "fxgraph", "ab/code.so", "triton/0/ABC"])
def test_what_others_can_write_is_refused_whole(
    tmp_path: Path, caches: CompilerCaches, place: str
) -> None:
    path = make_seed(tmp_path / "seed")
    (path / place).chmod(0o777)
    with pytest.raises(UntrustedStoreError, match="writable by"):
        seeding.copy_seed(path, caches)
    assert files_of(caches) == set()


def test_a_directory_of_something_else(tmp_path: Path, caches: CompilerCaches) -> None:
    (tmp_path / "seed").mkdir(mode=0o755)
    with pytest.raises(seeding.SeedError, match="no cache directory"):
        seeding.copy_seed(tmp_path / "seed", caches)


def test_a_seed_that_is_too_large(
    tmp_path: Path, caches: CompilerCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_seed(tmp_path / "seed")
    monkeypatch.setattr(seeding, "MAX_SEED_FILES", 2)
    with pytest.raises(seeding.SeedError, match="more than"):
        seeding.copy_seed(path, caches)
    assert files_of(caches) == set()


@pytest.mark.parametrize("kind", ["missing", "empty", "garbage", "fifo", "writable"])
def test_builds_go_on_without_a_bad_seed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    file = double.make_project(tmp_path / "project")
    path = tmp_path / "seed"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind != "missing":
        path.write_bytes(b"" if kind == "empty" else b"\x00" * 100)
        path.chmod(0o622 if kind == "writable" else 0o644)
    code = cli.run(["warm", "--config", str(file), "--seed", str(path)])
    said = capfd.readouterr()
    assert code == 0
    assert "FRESH" in said.out
    assert f"seed refused - {path}" in said.err
    assert stat.S_IMODE((tmp_path / "store" / "state").stat().st_mode) == 0o700


PLAIN = """
    import sys, torch
    from app.model import program

    with torch.no_grad():
        torch.compile(program)(torch.linspace(0, 1, 16))
    open("mega", "wb").write(torch.compiler.save_cache_artifacts()[0])
    sys.stdout.flush()
"""


def test_kernels_of_plain_torch_are_found(tmp_path: Path) -> None:
    """Of a directory the build takes the compiled kernels; a file is loaded by torch."""
    project = Project(tmp_path / "project", small.FILES)
    cache = project.root / "cache"
    cache.mkdir(mode=0o755)
    ran = project.python(PLAIN, env={"TORCHINDUCTOR_CACHE_DIR": str(cache)})
    assert ran.code == 0, ran.err
    for folder, _, files in os.walk(cache):
        for one in (folder, *(f"{folder}/{file}" for file in files)):
            Path(one).chmod(0o755)
    (project.root / "mega").chmod(0o644)
    target = project.preheat("warm", "--seed", "cache")
    assert target.code == 0, target.err
    assert "seed taken" in target.err
    assert "compiled before: 1 of 1 kernels" in target.err.replace(
        "0 of 1 graphs of AOTAutograd, ", ""
    )
    project.edit("app/model.py", "2.0", "3.0")
    again = project.preheat("warm", "--seed", "mega")
    assert again.code == 0, again.err
    assert "artifacts: 1 of aot_autograd, 1 of inductor" in again.err
