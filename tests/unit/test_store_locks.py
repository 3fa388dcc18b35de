"""The build lock: one at a time, and who has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from preheat.errors import BusyError, StoreError
from preheat.store import DiskStore, build_lock

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import sys
from preheat.store import build_lock
with build_lock(sys.argv[1], "model", "env"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    DiskStore(tmp_path, create=True)
    return tmp_path


def test_one_at_a_time(root: Path) -> None:
    with build_lock(root, "model", "env"):
        with pytest.raises(BusyError, match=f"process {os.getpid()} on "):
            build_lock(root, "model", "env").__enter__()
        with build_lock(root, "model", "other"), build_lock(root, "other", "env"):
            pass
    with build_lock(root, "model", "env"):
        pass
    assert DiskStore(root).layout.lock("model", "env").exists()
    assert not DiskStore(root).layout.lock_holder("model", "env").exists()


def test_it_is_given_back_when_the_block_fails(root: Path) -> None:
    with pytest.raises(ZeroDivisionError), build_lock(root, "model", "env"):
        raise ZeroDivisionError
    with build_lock(root, "model", "env"):
        pass


def test_it_may_be_left_in_another_thread(root: Path) -> None:
    lock = build_lock(root, "model", "env")
    lock.__enter__()
    thread = threading.Thread(target=lock.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with build_lock(root, "model", "env"):
        pass


def test_another_process_holds_it_until_it_dies(root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match=f"process {holder.pid} on "):
            build_lock(root, "model", "env").__enter__()
        holder.send_signal(signal.SIGKILL)
    with build_lock(root, "model", "env"):
        pass


def test_a_missing_or_unreadable_note_is_no_trouble(root: Path) -> None:
    with build_lock(root, "model", "env"):
        DiskStore(root).layout.lock_holder("model", "env").write_bytes(b"{")
        with pytest.raises(BusyError, match="another process"):
            build_lock(root, "model", "env").__enter__()


def test_without_a_store_it_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"model@env\.lock"):
        build_lock(tmp_path / "none", "model", "env").__enter__()
