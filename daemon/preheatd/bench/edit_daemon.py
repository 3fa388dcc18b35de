"""A daemon that is measured: ``preheat serve --json`` in a project, and what it says after an edit."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec
import psutil

from preheat.store import DiskStore
from preheatd import events
from preheatd.bench.edit_figures import EditSample
from preheatd.bench.edit_project import TARGET, edit
from preheatd.bench.processes import FailedError, environment_in
from preheatd.events import Event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preheat.manifest import Manifest

WAIT_SECONDS = 900.0
END_SECONDS = 30.0
# After this much silence nothing of an edit is going on any more.
QUIET_SECONDS = 1.0
_BAD = frozenset(
    {
        events.BUILD_FAILED,
        events.BUILD_HELD,
        events.PACKAGE_WITHDRAWN,
        events.TARGET_BLOCKED,
        events.UNEXPECTED,
        events.WATCH_POLLING,
    }
)


class Arrived(NamedTuple):
    """An event, and when it was read, by the monotonic clock."""

    event: Event
    at: float


def read_event(line: bytes) -> Event | None:
    """An event of one line; None for anything else that a process may print."""
    try:
        return msgspec.json.decode(line, type=Event)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def sample_of(saved_at: float, published: Arrived, manifest: Manifest) -> EditSample:
    """What an edit took. Raises ``FailedError`` when nothing was built."""
    processes = published.event.processes
    if not {"build", "proof"} <= processes.keys():
        raise FailedError(f"nothing was built: {published.event.detail or 'no reason given'}")
    return EditSample(
        seconds=published.at - saved_at,
        build_seconds=processes["build"],
        proof_seconds=processes["proof"],
        phases=dict(manifest.build.seconds),
        forked=manifest.proof is not None and manifest.proof.forked,
    )


def pss_bytes(rollup: str) -> int:
    """The proportional share of memory, from the text of ``/proc/PID/smaps_rollup``."""
    for line in rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


class MeasuredDaemon:
    """A running daemon; a context manager that ends it."""

    def __init__(self, project: Path, environment: Mapping[str, str]) -> None:
        self._project = project
        self._environment = environment_in(project, environment)
        self._arrived: queue.SimpleQueue[Arrived | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        log = self._project / "serve.log"
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "preheatd", "serve", "--json"],
                cwd=self._project,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._reader = threading.Thread(target=self._read, name="events", daemon=True)
        self._reader.start()
        try:
            self._wait_for(events.READY)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def edit(self, text: str) -> EditSample:
        """Save the helper, and wait until its package is published and nothing goes on any more.

        Raises ``FailedError``.
        """
        saved_at = time.monotonic()
        edit(self._project, text)
        published = self._wait_for(events.BUILD_PUBLISHED)
        manifest = self._manifest()
        sample = sample_of(saved_at, published, manifest)
        if sample.forked:
            self._wait_for(events.PROOF_CONFIRMED)
        self._wait_until_quiet()
        return sample

    def zygote_bytes(self) -> int:
        """The memory of both processes of the zygote; 0 when there is none."""
        found = 0
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if "preheat.zygote" in process.cmdline():
                    found += pss_bytes(Path(f"/proc/{process.pid}/smaps_rollup").read_text())
        return found

    def _manifest(self) -> Manifest:
        store = DiskStore(self._project / "store")
        (ref,) = store.refs(TARGET)
        return store.read_manifest(ref.manifest)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if event := read_event(line):
                    self._arrived.put(Arrived(event, time.monotonic()))
        self._arrived.put(None)

    def _wait_for(self, action: str) -> Arrived:
        until = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                arrived = self._arrived.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise FailedError(f"no `{action}` within {WAIT_SECONDS:g} s") from None
            if arrived is None:
                raise FailedError("`preheat serve` ended by itself")
            if arrived.event.action in _BAD:
                raise FailedError(str(arrived.event))
            if arrived.event.action == action:
                return arrived

    def _wait_until_quiet(self) -> None:
        with contextlib.suppress(queue.Empty):
            while self._arrived.get(timeout=QUIET_SECONDS) is not None:
                pass
