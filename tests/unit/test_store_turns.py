"""Writers whose turns overlap do not keep a collector waiting."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from preheat.store import DiskStore
from preheat.store.files import Files
from preheat.store.turns import collectors_turn, open_lock, writers_turn

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_SECONDS = 300.0


def test_a_writer_that_comes_lets_a_waiting_collector_go_first(tmp_path: Path) -> None:
    files, layout = Files(), DiskStore(tmp_path, create=True).layout
    order: list[str] = []

    def collect() -> None:
        with collectors_turn(files, layout) as mine:
            assert mine
            order.append("collector")

    def write() -> None:
        with writers_turn(files, layout):
            order.append("writer")

    with writers_turn(files, layout):
        collector = threading.Thread(target=collect)
        collector.start()
        wait_at_the_gate(files, layout.turns_lock.with_name("turns-gate.lock"))
        with writers_turn(files, layout):  # it is in its turn already
            order.append("inner")
        writer = threading.Thread(target=write)
        writer.start()
    collector.join(LIMIT_SECONDS)
    writer.join(LIMIT_SECONDS)
    assert order == ["inner", "collector", "writer"]


def test_a_collector_that_is_stopped_at_the_gate_delays_and_no_more(tmp_path: Path) -> None:
    files, layout = Files(), DiskStore(tmp_path, create=True).layout
    gate = open_lock(files, layout.turns_lock.with_name("turns-gate.lock"))
    assert gate is not None
    assert files.try_lock(gate, exclusive=True)
    with writers_turn(files, layout):
        pass
    files.close(gate)


def wait_at_the_gate(files: Files, path: Path) -> None:
    """Until a collector has announced itself."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        descriptor = open_lock(files, path)
        assert descriptor is not None
        free = files.try_lock(descriptor, exclusive=False)
        files.close(descriptor)
        if not free:
            return
        time.sleep(0.001)
    raise AssertionError("no collector came")
