"""How fast packages travel, next to a plain copy of the same bytes. Run by hand: ``make bench-fleet``.

All sides read the same bytes of the same disk, in turns, and write them in pieces. The copy is made twice:
as a store has to do it, with an fsync of each file and of its directory, and without any, as ``cp`` does it.
Nothing is asserted: machines differ. ``--markdown FILE`` writes the part of a page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import datetime
import importlib.metadata
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from preheat.store import DiskStore
from preheat.store.files import Files
from preheatd.arriving import Arrivals
from preheatd.bench.tables import markdown_table, merged
from preheatd.bundles.exporting import Exporter
from preheatd.bundles.importing import Importer, import_bundle
from preheatd.remotes.pulling import Puller
from preheatd.remotes.pushing import Pusher
from preheatd.remotes.remote import Remote
from preheatd.selection import selected
from support.bundles import publish
from support.published import project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE_BYTES = 4 << 20
WIDTH = 119
MEBIBYTE = 1 << 20
SHAPES = {
    "8 objects of 32 MiB": (8, 32 * MEBIBYTE),
    "64 objects of 2 MiB": (64, 2 * MEBIBYTE),
    "400 objects of 20 KiB": (400, 20 << 10),
}
MEMORY_SHAPES = {"64 MiB": (8, 8 * MEBIBYTE), "512 MiB": (8, 64 * MEBIBYTE)}
LIBRARIES = ("aiofiles", "fsspec", "msgspec", "click")
# What a process of its own prints of itself at its end.
PEAK = "import re; print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"


PROSE = (
    "A bundle is imported, and a directory pulled from, in turns with a plain copy of the same objects on "
    "the same disk, one file after the other. Import and pull hash every byte, and make every file and its "
    "directory durable with fsync. `copy` does that as well, `cp` does not: a store that did not would lose "
    "packages when the power fails. Speeds are in MiB/s; the aim is 0.7 of the copy. Hashing and checking "
    "take a processor, which a copy hardly needs: a load above the number of processors lowers the ratios."
)


def plain_copy(source: Path, destination: Path, *, durable: bool) -> None:
    """Every object of a store, one after the other; ``durable``: what a store must not do without."""
    for file in sorted((source / "v1" / "objects").rglob("*")):
        if file.is_file():
            place = destination / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb", buffering=0) as read, place.open("wb", buffering=0) as written:
                while piece := read.read(PIECE_BYTES):
                    written.write(piece)
                if durable:
                    os.fsync(written.fileno())
            if durable:
                Files().fsync_directory(place.parent)


def import_from(bundle: Path, to: Path) -> None:
    importer = Importer(
        lambda: DiskStore(to, create=True), Arrivals(None), length=bundle.stat().st_size
    )
    asyncio.run(import_bundle(bundle, importer))


def pull_from(url: str, to: Path) -> None:
    puller = Puller(Remote(url), lambda: DiskStore(to, create=True), Arrivals(None))
    asyncio.run(puller.pull(()))


def seconds(work: Callable[[], None]) -> float:
    os.sync()
    began = time.monotonic()
    work()
    return time.monotonic() - began


@dataclasses.dataclass(frozen=True)
class Source:
    """A store with one package, and the same as a bundle and as a remote."""

    store: DiskStore
    bundle: Path
    remote: str


def source_in(place: Path, count: int, size: int) -> Source:
    store = DiskStore(place / "from", create=True)
    publish(store, *(os.urandom(size) for _ in range(count)), target="one")
    bundle, remote = place / "bundle", f"file://{place}/remote"
    asyncio.run(Exporter(store).to_file(selected(store, ()), bundle))
    asyncio.run(Pusher(Remote(remote), store).push(selected(store, ())))
    return Source(store, bundle, remote)


def measured(place: Path, name: str, count: int, size: int, rounds: int) -> tuple[str, ...]:
    source = source_in(place, count, size)
    root = source.store.layout.root
    works: dict[str, Callable[[Path], None]] = {
        "cp": lambda to: plain_copy(root, to, durable=False),
        "copy": lambda to: plain_copy(root, to, durable=True),
        "import": lambda to: import_from(source.bundle, to),
        "pull": lambda to: pull_from(source.remote, to),
    }
    figures: dict[str, list[float]] = {what: [] for what in works}
    order = list(works)
    for number in range(rounds):
        for what in order:
            to = place / f"{what}{number}"
            figures[what].append(seconds(lambda what=what, to=to: works[what](to)))  # type: ignore[misc]
            shutil.rmtree(to)
        order.append(order.pop(0))  # nobody comes always after the same one
    speeds = {
        what: count * size / MEBIBYTE / statistics.median(times) for what, times in figures.items()
    }
    return (
        name,
        *(f"{speeds[what]:.0f}" for what in works),
        *(ratio(figures, over, own) for over in ("copy", "cp") for own in ("import", "pull")),
    )


def ratio(figures: dict[str, list[float]], over: str, own: str) -> str:
    """How fast ``own`` is where ``over`` is 1: the median of the rounds."""
    pairs = zip(figures[over], figures[own], strict=True)
    return f"{statistics.median(other / mine for other, mine in pairs):.2f}"


def peak(*words: str, store: Path) -> str:
    """The most memory that a command takes, its interpreter included."""
    code = (
        f"import sys; from preheatd import cli; assert not cli.run(sys.argv[1:]), sys.argv; {PEAK}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PREHEAT_STORE": str(store)},
        cwd=store.parent,
        text=True,
    )
    return f"{int(done.stdout.splitlines()[-1]) / 1024:.0f}"


def memory(place: Path, name: str, count: int, size: int) -> tuple[str, ...]:
    source = source_in(place, count, size)
    root = source.store.layout.root
    everything = "--all-environments"
    return (
        name,
        peak("export", "-o", str(place / "again"), store=root),
        peak("import", str(source.bundle), store=place / "imported"),
        peak("pull", source.remote, everything, store=place / "pulled"),
    )


def hits(place: Path, rounds: int) -> tuple[float, float]:
    """``preheat would-hit`` with 100 targets, the interpreter's start included: seconds, a processor's."""
    file = project(place, *(f"target_{number}" for number in range(100)))
    environ = {name: value for name, value in os.environ.items() if name != "PREHEAT_STORE"}
    words = [sys.executable, "-m", "preheatd", "would-hit", "--config", str(file)]
    times, processor = [], []
    for _ in range(2 * rounds + 1):
        before, began = os.times(), time.monotonic()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environ)
        times.append(time.monotonic() - began)
        after = os.times()
        processor.append(
            after.children_user
            - before.children_user
            + after.children_system
            - before.children_system
        )
    return statistics.median(times[1:]), statistics.median(processor[1:])


@contextlib.contextmanager
def directory(parent: Path) -> Iterator[Path]:
    """A directory of its own below another one, for as long as it is needed."""
    with tempfile.TemporaryDirectory(dir=parent) as place:
        yield Path(place)


def section(place: Path, rounds: int) -> Iterator[str]:
    """The lines of the part of the page, as they are measured."""
    today = datetime.datetime.now(datetime.UTC).date()
    libraries = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    yield "## How fast packages travel"
    yield ""
    said = (
        f"{today}; Python {platform.python_version()}, {libraries}; {len(os.sched_getaffinity(0))} "
        f"processors, load {os.getloadavg()[0]:.1f} at the start; medians of {rounds} rounds in turns."
    )
    yield textwrap.fill(said, WIDTH)
    yield from ("", "```console", "$ make bench-fleet", "```", "")
    yield textwrap.fill(PROSE, WIDTH)
    yield ""
    columns = ("what", "cp", "copy", "import", "pull", "import / copy", "pull / copy")
    rows = []
    for name, shape in SHAPES.items():
        with directory(place) as inside:
            rows.append(measured(inside, name, *shape, rounds))
    yield from markdown_table((*columns, "import / cp", "pull / cp"), tuple(rows))
    yield ""
    yield "Most memory of a command in MiB, its interpreter included, by the size of what travels:"
    yield ""
    rows = []
    for name, shape in MEMORY_SHAPES.items():
        with directory(place) as inside:
            rows.append(memory(inside, name, *shape))
    yield from markdown_table(("packages of", "export", "import", "pull"), tuple(rows))
    yield ""
    with directory(place) as inside:
        wall, processor = hits(inside, rounds)
    said = (
        f"`preheat would-hit` with 100 targets, the answer of their interpreter known: {wall:.2f} s, of "
        f"which {processor:.2f} s of a processor, the start of the command included (aim: 0.3 s). Load at "
        f"the end: {os.getloadavg()[0]:.1f}."
    )
    yield textwrap.fill(said, WIDTH)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("place", nargs="?", help="a directory of the disk that is measured")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--markdown", type=Path, help="a page to write the tables into")
    chosen = options.parse_args()
    lines = []
    with tempfile.TemporaryDirectory(prefix="bench-fleet-", dir=chosen.place) as place:
        for line in section(Path(place), chosen.rounds):
            print(line, flush=True)  # noqa: T201
            lines.append(line)
    if chosen.markdown is not None:
        chosen.markdown.write_text(merged(chosen.markdown.read_text(), "\n".join(lines)))


if __name__ == "__main__":
    main()
