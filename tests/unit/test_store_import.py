"""Importing the store stays light, because every worker does it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "filelock", "asyncio", "platformdirs", "tomllib")


def test_the_import_is_light() -> None:
    code = f"import sys, preheat.store; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_reading_stays_light(tmp_path: object) -> None:
    code = (
        "import sys; from preheat.store import DiskStore, find_store; "
        "DiskStore(find_store()).read_package('model', 'env'); "
        f"print([name for name in {HEAVY[:3]} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PREHEAT_STORE": f"{tmp_path}/none"},
    )
    assert done.stdout == "[]\n"
