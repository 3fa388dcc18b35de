"""Many processes that load the same package at once, and packages that were moved to another place."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from preheat.store import DiskStore
from support import figures
from support.hosts import why_no_mounts
from support.manifests import manifest_of
from support.small import WORKER
from support.zygote import Zygote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.project import Project

WORKERS = 64
CONSTANTS_BYTES = (32 if figures.FULL else 8) * 2**20
MEMORY = "/dev/shm"  # noqa: S108 - a directory of its own is made there
MEBIBYTE = 2**20


@pytest.fixture
def project(small_project: Project) -> Project:
    return small_project


# Sharing.


def many(root: Path, way: str, count: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "support.many_loads", str(root), way, str(count)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (answer["loads"], answer["failed"], answer["sums"]) == (count, 0, 1)
    return answer


def test_constants_are_in_memory_once_for_all_workers(tmp_path: Path) -> None:
    if os.major(tmp_path.stat().st_dev) == 0:
        pytest.skip(f"{tmp_path} is on no disk of this machine; objects there are copied")
    store = DiskStore(tmp_path / "store", create=True)
    content = os.urandom(CONSTANTS_BYTES // 2).replace(b"\x7f", b"\x00").replace(b"\xff", b"\x00")
    content = content * 2
    store.put_object(content)
    store.publish(manifest_of(content))
    found = {way: many(store.layout.root, way, WORKERS) for way in ("copied", "mapped")}
    for way, one in found.items():
        figures.note(
            f"{WORKERS} workers, constants {way}",
            workers=WORKERS,
            constants_mib=CONSTANTS_BYTES // MEBIBYTE,
            pss_mib=round(one["pss"] / MEBIBYTE),
            rss_mib=round(one["rss"] / MEBIBYTE),
            private_mib=round(one["private"] / MEBIBYTE),
            cpu_milliseconds_each=round(1000 * one["cpu_each"], 1),
            wall_seconds=round(one["wall"], 2),
        )
    every = WORKERS * CONSTANTS_BYTES
    assert found["copied"]["private"] > 0.9 * every
    saved = found["copied"]["pss"] - found["mapped"]["pss"]
    assert saved > 0.9 * (every - CONSTANTS_BYTES)


# Loading at once.


def one_load(about: dict[str, str]) -> dict[str, float]:
    """In a forked worker: load, call, compare, and say what it took."""
    import time

    import torch

    import preheat

    sys.path.insert(0, about["project"])
    from app.model import program  # type: ignore[import-not-found]

    x = torch.linspace(0, 1, 16)
    before = time.process_time()
    loaded = preheat.load("program", program, store=about["store"], on_miss="error")
    output = loaded(x)
    cpu = time.process_time() - before
    wall = loaded.preheat.load_seconds
    return {"right": bool(torch.allclose(output, program(x))), "cpu": cpu, "wall": wall}


@pytest.fixture(scope="module")
def workers() -> Iterator[Zygote]:
    modules = ("torch", "preheat.worker", "preheat.store", "fault.test_many_workers")
    with Zygote(modules, {"PYTHONDONTWRITEBYTECODE": "1"}) as zygote:
        yield zygote


def test_workers_that_load_at_once_do_not_wait_for_each_other(
    project: Project, workers: Zygote
) -> None:
    """What grows is the wait for a processor, which is no processor's time: no lock is held or spun on."""
    about = {"project": str(project.root), "store": str(project.store_path)}
    locks = sorted((project.store_path / "v1" / "locks").iterdir())
    log = project.root.parent / "workers.log"

    def load(_: int) -> dict[str, float]:
        answer: dict[str, float] = workers.call(
            "fault.test_many_workers:one_load", about, log=log, seconds=600
        )
        return answer

    alone = [load(0) for _ in range(5)]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        together = list(pool.map(load, range(WORKERS)))
    assert all(one["right"] for one in (*alone, *together))
    first, later = (sorted(one["cpu"] for one in some) for some in (alone, together))
    cpus = len(os.sched_getaffinity(0))
    slower = sorted(one["wall"] for one in together)[-1] / min(one["wall"] for one in alone)
    figures.note(
        f"{WORKERS} workers, one package",
        workers=WORKERS,
        processors=cpus,
        wrong=0,
        cpu_milliseconds_alone=round(1000 * first[len(first) // 2], 1),
        cpu_milliseconds_together=round(1000 * later[len(later) // 2], 1),
        slowest_load_against_alone=round(slower, 1),
        as_the_processors_explain=round(WORKERS / cpus, 1),
    )
    assert later[len(later) // 2] < 3 * first[len(first) // 2]
    assert sorted((project.store_path / "v1" / "locks").iterdir()) == locks


# Elsewhere.


@pytest.fixture
def moved(project: Project, tmp_path: Path) -> Iterator[Path]:
    """The store at another path; where it was, there is none."""
    place = tmp_path / "another place" / "store"
    place.parent.mkdir()
    shutil.move(project.store_path, place)
    yield place
    shutil.move(place, project.store_path)


def loads(project: Project, place: Path, *prefix: str) -> None:
    home = place.parent / "home"
    home.mkdir(exist_ok=True)
    variables = {"PREHEAT_STORE": str(place), "HOME": str(home), "XDG_CACHE_HOME": str(home / "c")}
    script = textwrap.dedent(WORKER)
    done = project.run(*prefix, sys.executable, "-c", script, env=variables)
    assert done.code == 0, done.err
    answer = done.json()
    assert answer["right"]
    assert (answer["form"], answer["frames_compiled"]) == ("lean", 0)


def test_a_store_that_was_moved_and_another_home(project: Project, moved: Path) -> None:
    loads(project, moved)
    figures.note("resources", **{"moved, another HOME": 1})


def test_no_lean_object_names_the_places_of_its_build(project: Project, tmp_path: Path) -> None:
    """Besides the names of sources for tracebacks and debuggers, which nothing opens."""
    places = [str(project.root).encode(), str(Path.home()).encode() + b"/"]
    sources = {str(path).encode() for path in project.root.rglob("*.py")}
    (lean,) = (form for form in project.manifest("program").forms if form.kind == "lean")
    for needed in lean.objects:
        opened = project.store().open_object(needed)
        data = opened.read()
        if needed.name.startswith("kernel/"):
            # Its debug information names the compiler's inputs. What counts is what the loader looks for.
            library = tmp_path / "library.so"
            library.write_bytes(data)
            read = ["readelf", "--dynamic", "--wide", str(library)]
            data = subprocess.run(read, check=True, capture_output=True).stdout
            assert b"NEEDED" in data
            assert b"/" not in data.partition(b"NEEDED")[2]
        opened.close()
        for source in sources:
            data = data.replace(source, b"")
        found = [place for place in places if place in data]
        assert not found, (needed.name, found)


@pytest.mark.parametrize("form", ["lean", "dynamo"])
def test_a_project_at_another_place(
    project: Project, moved: Path, tmp_path: Path, form: str
) -> None:
    place = tmp_path / "another project"
    shutil.copytree(project.root / "app", place / "app")
    script = textwrap.dedent(WORKER).replace('on_miss="error"', f'on_miss="error", form="{form}"')
    variables = {"PREHEAT_STORE": str(moved), "PYTHONPATH": str(place), "HOME": str(tmp_path)}
    done = project.run(
        "sh",
        "-c",
        f"cd '{place}' && exec \"$@\"",
        "sh",
        sys.executable,
        "-c",
        script,
        env=variables,
    )
    assert done.code == 0, done.err
    answer = done.json()
    assert answer["right"]
    assert (answer["form"], answer["frames_compiled"]) == (form, 0)


def test_a_store_in_memory(project: Project) -> None:
    if not os.access(MEMORY, os.W_OK):
        pytest.skip("there is no /dev/shm to put a store in memory")
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="preheat-") as path:
        place = Path(path) / "store"
        shutil.copytree(project.store_path, place, symlinks=True)
        loads(project, place)
    figures.note("resources", **{"in memory": 1})


def test_a_store_that_is_mounted_read_only(project: Project, tmp_path: Path) -> None:
    if why := why_no_mounts():
        pytest.skip(f"no file system can be mounted here: {why}")
    mount = f'mount --bind "$0" "{tmp_path}/store"; mount -o remount,bind,ro "{tmp_path}/store"'
    (tmp_path / "store").mkdir()
    prefix = ("unshare", "-m", "sh", "-e", "-c", f'{mount}; exec "$@"', str(project.store_path))
    loads(project, tmp_path / "store", *prefix)
    figures.note("resources", **{"mounted read-only": 1})
