"""The watcher on real directories, and with doubles for what cannot be provoked."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from watchdog.observers.inotify_c import (
    InotifyConstants,
    InotifyEvent,
    InotifyFD,
    WatchDescriptor,
)
from watchdog.observers.polling import PollingObserver

from preheatd import events, observers
from preheatd.roots import Root
from preheatd.watch import EVENT_FILTER, OVERFLOW_LOGGERS, Watcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from watchdog.observers.api import BaseObserver

LIMIT_SECONDS = 300.0


@contextlib.asynccontextmanager
async def watching(
    *roots: Root, **options: object
) -> AsyncIterator[tuple[Watcher, list[events.Event]]]:
    heard: list[events.Event] = []
    watcher = Watcher(heard.append, **options)  # type: ignore[arg-type]
    try:
        await watcher.arm(roots)
        yield watcher, heard
    finally:
        await watcher.close()


async def heard_of(watcher: Watcher, *paths: Path) -> set[str]:
    """Take hints until all of these were among them."""
    found: set[str] = set()
    async with asyncio.timeout(LIMIT_SECONDS):
        while not {str(path) for path in paths} <= found:
            await watcher.wait()
            found |= watcher.take().paths
    return found


async def asked_to_rescan(watcher: Watcher) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            await watcher.wait()
            if watcher.take().rescan:
                return


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = tmp_path / "tree"
    (place / "app").mkdir(parents=True)
    (place / "app" / "a.py").write_text("x = 1\n")
    return place


async def test_an_atomic_save(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        (tree / "app" / ".a.py.tmp").write_text("x = 2\n")
        (tree / "app" / ".a.py.tmp").replace(tree / "app" / "a.py")
        await heard_of(watcher, tree / "app" / "a.py")


async def test_a_save_with_a_backup(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        (tree / "app" / "a.py").rename(tree / "app" / "a.py~")
        (tree / "app" / "a.py").write_text("x = 2\n")
        (tree / "app" / "a.py~").unlink()
        await heard_of(watcher, tree / "app" / "a.py", tree / "app" / "a.py~")


async def test_truncating(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        os.truncate(tree / "app" / "a.py", 0)
        await heard_of(watcher, tree / "app" / "a.py")


async def test_renaming_and_linking_into_the_tree(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("")
    (tmp_path / "linked.py").write_text("")
    async with watching(Root(tree, True)) as (watcher, _):
        (tmp_path / "outside.py").rename(tree / "app" / "b.py")
        (tree / "app" / "c.py").hardlink_to(tmp_path / "linked.py")
        await heard_of(watcher, tree / "app" / "b.py", tree / "app" / "c.py")


async def test_a_new_directory_with_files(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        paths = [tree / "app" / f"new{number}" / "m.py" for number in range(50)]
        for path in paths:
            path.parent.mkdir()
            path.write_text("y = 1\n")
        await heard_of(watcher, *paths)


async def test_deleting(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        (tree / "app" / "a.py").unlink()
        await heard_of(watcher, tree / "app" / "a.py")


async def test_moving_a_directory(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        (tree / "app").rename(tree / "lib")
        await heard_of(watcher, tree / "app", tree / "lib")
        (tree / "lib" / "a.py").write_text("x = 3\n")
        await heard_of(watcher, tree / "lib" / "a.py")


async def test_reading_is_not_heard(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        (tree / "app" / "a.py").read_text()
        (tree / "last.py").write_text("")
        assert str(tree / "app" / "a.py") not in await heard_of(watcher, tree / "last.py")


async def test_what_does_not_matter_is_not_heard(tree: Path) -> None:
    (tree / "store").mkdir()
    async with watching(Root(tree, True), ignored=(str(tree / "store"),)) as (watcher, _):
        for name in ("app/__pycache__/a.pyc", ".git/HEAD", "store/x"):
            (tree / name).parent.mkdir(exist_ok=True)
            (tree / name).write_text("")
        (tree / "last.py").write_text("")
        assert await heard_of(watcher, tree / "last.py") == {str(tree / "last.py")}


async def test_a_directory_that_is_not_recursive(tree: Path) -> None:
    async with watching(Root(tree, False)) as (watcher, _):
        (tree / "app" / "a.py").write_text("x = 2\n")
        (tree / "last.py").write_text("")
        assert await heard_of(watcher, tree / "last.py") == {str(tree / "last.py")}


async def test_a_watched_directory_that_goes_and_comes_back(tree: Path) -> None:
    roots = (Root(tree, False), Root(tree / "app", True))
    async with watching(*roots) as (watcher, _):
        shutil.rmtree(tree / "app")
        assert watcher.moved_roots(await heard_of(watcher, tree / "app"))
        (tree / "app").mkdir()
        await watcher.arm(roots)
        assert watcher.is_alive
        (tree / "app" / "b.py").write_text("")
        await heard_of(watcher, tree / "app" / "b.py")


async def test_arming_again_loses_nothing(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        for number in range(5):
            rearming = asyncio.create_task(watcher.arm((Root(tree, True),)))
            await asyncio.to_thread((tree / f"{number}.py").write_text, "")
            await rearming
        await heard_of(watcher, *(tree / f"{number}.py" for number in range(5)))


async def test_a_directory_that_is_gone_before_it_is_watched(tree: Path) -> None:
    async with watching(Root(tree, True), Root(tree / "gone", True)) as (watcher, _):
        await asked_to_rescan(watcher)
        assert watcher.mode == "native"


async def test_an_overflow_leads_to_a_rescan(tree: Path) -> None:
    """watchdog tells of it only in its log: the message is what this pins."""
    async with watching(Root(tree, True)) as (watcher, heard):
        (observer,) = watcher._observers
        inotify = observer._inotify  # type: ignore[attr-defined]
        assert isinstance(inotify, InotifyFD)
        overflow = _overflow_event()
        await asyncio.to_thread(inotify.handle_event, overflow)
        await asked_to_rescan(watcher)
        assert events.WATCH_OVERFLOW in [event.action for event in heard]


def _overflow_event() -> InotifyEvent:
    return InotifyEvent(WatchDescriptor(-1), InotifyConstants.IN_Q_OVERFLOW, 0, b"")


@pytest.mark.parametrize("name", OVERFLOW_LOGGERS)
async def test_a_warning_in_watchdogs_log_leads_to_a_rescan(tree: Path, name: str) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        await asyncio.to_thread(logging.getLogger(name).warning, "events were lost")
        await asked_to_rescan(watcher)


class NoWatchesLeft(InotifyFD):
    """An inotify that places the first watch and no further one."""

    placed = 0

    def add_callback(self, path: bytes, mask, callback, id_):  # type: ignore[no-untyped-def]
        self.placed += 1
        if self.placed > 1:
            raise OSError(errno.ENOSPC, "inotify watch limit reached")
        return super().add_callback(path, mask, callback, id_)


class FewWatches(observers._TellingInotify, NoWatchesLeft):
    """The same below what tells of limits."""


def few_watches(on_limit: Callable[[OSError], None]) -> BaseObserver:
    inotify = FewWatches(on_limit)
    inotify.start()
    return observers._NativeObserver(inotify)


def no_instances(on_limit: Callable[[OSError], None]) -> BaseObserver:
    raise OSError(errno.EMFILE, "inotify instance limit reached")


def quick_polling() -> BaseObserver:
    return PollingObserver(timeout=0.01)


@pytest.mark.parametrize(
    ("native", "setting"),
    [(few_watches, "max_user_watches"), (no_instances, "max_user_instances")],
)
async def test_a_limit_of_the_kernel_leads_to_polling(
    tree: Path, native: Callable[[Callable[[OSError], None]], BaseObserver], setting: str
) -> None:
    """Also when the limit is met below the directory that was asked for."""
    options = {"native": native, "polling": quick_polling}
    async with watching(Root(tree, True), **options) as (watcher, heard):
        assert watcher.mode == "polling"
        await asked_to_rescan(watcher)
        (complaint,) = [one for one in heard if one.action == events.WATCH_POLLING]
        assert setting in complaint.detail
        assert "sysctl" in complaint.detail
        (tree / "app" / "b.py").write_text("")
        await heard_of(watcher, tree / "app" / "b.py")


async def test_watches_that_cannot_be_replaced_stay(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):

        def refuse(on_limit: Callable[[OSError], None]) -> BaseObserver:
            raise OSError(errno.EIO, "input/output error")

        watcher._native = refuse
        with pytest.raises(OSError, match="input/output"):
            await watcher.arm((Root(tree / "app", True),))
        (tree / "b.py").write_text("")
        await heard_of(watcher, tree / "b.py")


async def test_remote_directories_are_polled(tree: Path) -> None:
    options = {"is_remote": lambda path: path.endswith("/app"), "polling": quick_polling}
    roots = (Root(tree, False), Root(tree / "app", True))
    async with watching(*roots, **options) as (watcher, _):
        kinds = [type(observer).__name__ for observer in watcher._observers]
        assert kinds == ["_NativeObserver", "PollingObserver"]
        (tree / "app" / "b.py").write_text("")
        await heard_of(watcher, tree / "app" / "b.py")


async def test_events_after_the_end_are_no_error(tree: Path) -> None:
    async with watching(Root(tree, True)) as (watcher, _):
        pass
    watcher._note("late")
    assert watcher.mode == "off"
    assert not watcher.is_alive


def test_a_closed_loop_is_no_error(tmp_path: Path) -> None:
    async def make() -> Watcher:
        return Watcher(lambda event: None)

    watcher = asyncio.run(make())
    watcher._note("late")
    asyncio.run(_close(watcher))


async def _close(watcher: Watcher) -> None:
    await watcher.close()


def test_reads_are_not_listened_to() -> None:
    names = {kind.__name__ for kind in EVENT_FILTER}
    assert "FileCreatedEvent" in names
    assert not names & {"FileOpenedEvent", "FileClosedNoWriteEvent"}
