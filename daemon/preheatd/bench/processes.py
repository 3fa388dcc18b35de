"""Processes of a benchmark: their environment, and how one is run to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROCESS_LIMIT_SECONDS = 1800.0
# Settings of the caller that would change what is measured: caches are made here, and Python keeps the
# bytecode of modules as it does for every user.
_NOT_PASSED_ON = {
    "PREHEAT_ON_MISS",
    "PYTHONDONTWRITEBYTECODE",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_CACHING_PRECOMPILE",
    "TRITON_CACHE_DIR",
}


class FailedError(Exception):
    """A measured process failed; the text is for a table."""


def environment_in(project: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` for processes of a temporary project that has its own store and state."""
    paths = (str(project), environment.get("PYTHONPATH", ""))
    return {
        **{name: value for name, value in environment.items() if name not in _NOT_PASSED_ON},
        "PREHEAT_STORE": str(project / "store"),
        "PREHEAT_STATE": str(project / "state"),
        # A store of its own: keys that this machine trusts have nothing to do with it.
        "PREHEAT_SIGNATURES": "off",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def call(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> bytes:
    """Standard output of a process; nothing of its group is left afterwards. Raises ``FailedError``."""
    process = subprocess.Popen(  # noqa: S603  our own program
        command,
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PROCESS_LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"not done after {PROCESS_LIMIT_SECONDS:.0f} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode < 0:
        raise FailedError(f"ended by {signal.Signals(-process.returncode).name}")
    if process.returncode:
        raise FailedError(last_line(errors))
    return output


def last_line(output: bytes) -> str:
    """The last line that says something: for a traceback, the exception."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"
