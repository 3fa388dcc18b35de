"""``preheat warm`` at the beginning of a job: no terminal, no home, a limit, and never in the job's way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import test_daemon_double as double

from preheat.store import DiskStore

LIMIT_SECONDS = 300


def command(file: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "preheatd", "warm", "--config", str(file), *words]


def bare() -> dict[str, str]:
    """What a scheduler's prolog has: hardly anything."""
    return {"PATH": os.environ["PATH"]}


def warm(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """From ``/``, with nothing to read, no terminal and no home."""
    return subprocess.run(
        command(file, *words),
        cwd="/",
        env=bare(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def runs(pid: int) -> bool:
    """Whether a process is there and is no zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_from_anywhere_without_a_home(tmp_path: Path) -> None:
    file = double.make_project(tmp_path / "project", ("encoder",))
    done = warm(file, "--once", "--fail-open", "--timeout", "100", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["result"] for one in answer(done)["targets"]] == ["built"]


def test_what_failed_already_is_not_tried_again(tmp_path: Path) -> None:
    file = double.make_project(tmp_path / "project", ("encoder",), build="fail")
    assert warm(file).returncode == 3
    double.write_double(file.parent)  # it would succeed now
    done = warm(file, "--once", "--json")
    assert done.returncode == 3
    assert [one["result"] for one in answer(done)["targets"]] == ["failed"]
    assert list(DiskStore(tmp_path / "store").refs()) == []
    text = (file.parent / "app" / "encoder.py").read_text()
    (file.parent / "app" / "encoder.py").write_text(text.replace("1", "2"))
    assert warm(file, "--once").returncode == 0  # other sources are another matter
    assert len(list(DiskStore(tmp_path / "store").refs())) == 1


def test_a_failure_is_not_in_the_jobs_way(tmp_path: Path) -> None:
    file = double.make_project(tmp_path / "project", ("encoder",), build="fail")
    done = warm(file, "--fail-open", "--json")
    assert done.returncode == 0
    assert [one["result"] for one in answer(done)["targets"]] == ["failed"]


@pytest.mark.parametrize("as_json", [False, True])
def test_neither_is_a_configuration_or_a_store(tmp_path: Path, as_json: bool) -> None:
    words = ("--json",) if as_json else ()
    for text in ('targets = ["a:b"]\nwacth = []\n', f'targets = ["a:b"]\nstore = "{__file__}"\n'):
        file = tmp_path / "preheat.toml"
        file.write_text(text)
        closed = warm(file, *words)
        done = warm(file, "--fail-open", *words)
        assert (closed.returncode, done.returncode) == (2, 0)
        assert "ending with 0 all the same" in done.stderr
        if as_json:
            assert answer(done) == answer(closed)


def test_the_limit_ends_builds_and_keeps_what_is_done(tmp_path: Path) -> None:
    file = double.make_project(tmp_path / "project", ("encoder", "decoder"), build="hang")
    done = warm(file, "--timeout", "3", "--json")
    assert done.returncode == 4
    assert "Not everything was warm after 3 s" in answer(done)["error"]["message"]
    done = warm(file, "--timeout", "3", "--fail-open")
    assert done.returncode == 0
    assert "Not everything was warm" in done.stderr
    for noted in file.parent.glob("running-*"):
        assert [pid for pid in noted.read_text().split() if runs(int(pid))] == []


def test_a_signal_ends_it_as_ever(tmp_path: Path) -> None:
    file = double.make_project(tmp_path / "project", ("encoder",), build="hang")
    with subprocess.Popen(
        command(file, "--fail-open"), cwd="/", env=bare(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "build started" in line:
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(LIMIT_SECONDS) == 128 + signal.SIGTERM
