"""How fast packages travel, next to a plain copy of the same bytes. Run by hand: ``make bench-fleet``.

Both sides read the same bytes of the same disk, write them in pieces of 4 MiB, and make each file and its
directory durable with fsync, in turns; sizes and rounds are printed. Nothing is asserted: machines differ.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from preheat.store import DiskStore
from preheat.store.files import Files
from preheatd.arriving import Arrivals
from preheatd.bundles.exporting import Exporter
from preheatd.bundles.importing import Importer, import_bundle
from preheatd.remotes.pulling import Puller
from preheatd.remotes.pushing import Pusher
from preheatd.remotes.remote import Remote
from preheatd.selection import selected
from support.bundles import publish
from support.published import project

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
PIECE_BYTES = 4 << 20
SHAPES = {
    "8 objects of 32 MiB": (8, 32 << 20),
    "64 objects of 2 MiB": (64, 2 << 20),
    "400 objects of 20 KiB": (400, 20 << 10),
}


def plain_copy(source: Path, destination: Path) -> None:
    """Every object of a store, one after the other, durably: what ``cp`` and fsync do."""
    for file in sorted((source / "v1" / "objects").rglob("*")):
        if file.is_file():
            place = destination / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb", buffering=0) as read, place.open("wb", buffering=0) as written:
                while piece := read.read(PIECE_BYTES):
                    written.write(piece)
                os.fsync(written.fileno())
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


def measure(place: Path, name: str, count: int, size: int) -> None:
    store = DiskStore(place / "from", create=True)
    publish(store, *(os.urandom(size) for _ in range(count)), target="one")
    bundle, remote = place / "bundle", f"file://{place}/remote"
    asyncio.run(Exporter(store).to_file(selected(store, ()), bundle))
    asyncio.run(Pusher(Remote(remote), store).push(selected(store, ())))
    figures: dict[str, list[float]] = {"copy": [], "import": [], "pull": []}
    for number in range(ROUNDS):
        works: dict[str, Callable[[Path], None]] = {
            "copy": lambda to: plain_copy(store.layout.root, to),
            "import": lambda to: import_from(bundle, to),
            "pull": lambda to: pull_from(remote, to),
        }
        for what, work in works.items():
            to = place / f"{what}{number}"
            figures[what].append(seconds(lambda work=work, to=to: work(to)))  # type: ignore[misc]
            shutil.rmtree(to)
    mebibytes = count * size / (1 << 20)
    speed = {what: mebibytes / statistics.median(times) for what, times in figures.items()}
    ratio = {
        what: statistics.median(
            copy / own for copy, own in zip(figures["copy"], figures[what], strict=True)
        )
        for what in ("import", "pull")
    }
    print(  # noqa: T201
        f"| {name} | {speed['copy']:.0f} | {speed['import']:.0f} | {speed['pull']:.0f} "
        f"| {ratio['import']:.2f} | {ratio['pull']:.2f} |",
        flush=True,
    )


def hits(place: Path) -> None:
    """``preheat would-hit`` with 100 targets, its interpreter's start among the time."""
    file = project(place, *(f"target_{number}" for number in range(100)))
    environ = {name: value for name, value in os.environ.items() if name != "PREHEAT_STORE"}
    words = [sys.executable, "-m", "preheatd", "would-hit", "--config", str(file)]
    times, processor = [], []
    for _ in range(ROUNDS + 1):
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
    print(  # noqa: T201
        f"\n`preheat would-hit`, 100 targets, the answer of the interpreter known: "
        f"{statistics.median(times[1:]):.2f} s, of which {statistics.median(processor[1:]):.2f} s of a "
        "processor (aim: 0.3 s)."
    )


def main() -> None:
    place = Path(tempfile.mkdtemp(prefix="bench-fleet-", dir=sys.argv[1] if sys.argv[1:] else None))
    try:
        print(  # noqa: T201
            f"Python {platform.python_version()}, {os.cpu_count()} processors, load "
            f"{os.getloadavg()[0]:.1f}; median of {ROUNDS} rounds in turns; MiB/s, fsync included. "
            "Aim: 0.7 of the plain copy.\n"
        )
        print("| what | plain copy | import | pull | import / copy | pull / copy |")  # noqa: T201
        print("| --- | ---: | ---: | ---: | ---: | ---: |")  # noqa: T201
        for number, (name, shape) in enumerate(SHAPES.items()):
            (place / str(number)).mkdir()
            measure(place / str(number), name, *shape)
            shutil.rmtree(place / str(number))
        hits(place / "hits")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
