"""What an executor of the user's calls on another node: bytes in, bytes out, nothing else to pickle.

The executor finds ``build_bundle`` there by its name, so preheat (with ``preheat[daemon]``) must be installed
for the interpreter that its workers run. The build itself happens in a process of its own, with a build
process and a proof process as everywhere: what the worker has imported, and whether its threads run loops,
does not matter.

An answer is one line of JSON (``preheatd.executors.messages.Answer``) and, behind it, a bundle where one was
asked for. A failure is an answer as well: nothing is raised that somebody would have to pickle.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ANSWER_FORMAT = 1
REQUEST_NAME = "request.json"
ANSWER_NAME = "answer.json"
BUNDLE_NAME = "package.bundle"
BUILDER = "preheatd.executors.there"

# More goes through a place that both nodes reach: executors keep a result in memory several times.
MAX_RESULT_BYTES = 1 << 30
_TAIL_BYTES = 4000


def build_bundle(request: bytes) -> bytes:
    """Build and prove what is asked for, on this node; see above for the answer.

    Leaves no process and no file behind. Not promised: an end when the future is cancelled; executors
    do not end a call that runs, but most end the process that it runs in, and the build ends with that.
    """
    with tempfile.TemporaryDirectory(prefix="preheat-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        (directory / REQUEST_NAME).write_bytes(request)
        status = _run(directory)
        answer = _read(directory / ANSWER_NAME)
        if not answer:
            return _line(_no_answer(status, directory))
        bundle = directory / BUNDLE_NAME
        if bundle.exists() and bundle.stat().st_size > MAX_RESULT_BYTES:
            return _line(_too_large(bundle.stat().st_size))
        return answer.strip() + b"\n" + _read(bundle)


def _run(directory: Path) -> int:
    """The exit status of the process that builds; nothing of its group is left."""
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-m", BUILDER, str(directory), str(os.getpid())],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _line(answer: dict[str, object]) -> bytes:
    return json.dumps({"format": ANSWER_FORMAT, "outcome": "failed", **answer}).encode() + b"\n"


def _no_answer(status: int, directory: Path) -> dict[str, object]:
    tail = _read(directory / "log")[-_TAIL_BYTES:].decode("utf-8", errors="replace")
    missing = "No module named" in tail
    said = tail.strip().splitlines()[-1:] or ["nothing"]
    return {
        "kind": "executor_failed",
        "message": f"`{sys.executable} -m {BUILDER}` ended with status {status} on {os.uname().nodename}; "
        f"it said: {said[0]}"[:2000],
        "remedy": "Install preheat[daemon] for that interpreter." if missing else "",
        "log": tail,
    }


def _too_large(size: int) -> dict[str, object]:
    return {
        "kind": "executor_failed",
        "message": f"The bundle has {size} bytes, and a result may have {MAX_RESULT_BYTES}.",
        "remedy": "Let packages come through a place that both nodes reach: `through` of the executor.",
        "refused": True,
    }
