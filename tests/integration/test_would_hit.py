"""``preheat environment`` and ``preheat would-hit``: what is known before a job begins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import test_daemon_double as double

from preheat.store import DiskStore
from preheatd import cli, probe
from support.published import project, publish

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE"):
        monkeypatch.delenv(name, raising=False)


def run(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.run([str(word) for word in words])
    said = capfd.readouterr()
    return code, said.out, said.err


def hits(capfd: pytest.CaptureFixture[str], file: Path, *words: object) -> dict[str, Any]:
    code, out, err = run(capfd, "would-hit", "--json", "--config", file, *words)
    assert err == ""
    found = {one["target"]: one for one in json.loads(out)["targets"]}
    assert code == (0 if all(one["hit"] for one in found.values()) else 3)
    return found


def test_hits_and_misses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = project(tmp_path, "encoder", "decoder")
    assert {name: one["hit"] for name, one in hits(capfd, file).items()} == {
        "encoder": True,
        "decoder": True,
    }
    (file.parent / "app" / "decoder.py").write_text("def decoder():\n    return 2\n")
    found = hits(capfd, file)
    assert found["encoder"]["hit"]
    assert found["encoder"]["store"] == str(tmp_path / "store")
    assert (found["decoder"]["verdict"], found["decoder"]["store"]) == ("STALE", None)
    assert [one["symbol"] for one in found["decoder"]["reasons"]] == ["app.decoder"]
    assert set(hits(capfd, file, "encoder")) == {"encoder"}
    code, out, _ = run(capfd, "would-hit", "--config", file)
    assert code == 3
    assert "hit   encoder" in out
    assert "miss  decoder  STALE" in out


def test_a_failure_of_the_past_is_no_miss(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is asked is whether the package that is there would load."""
    file = project(tmp_path, "encoder")
    text = (file.parent / "app" / "encoder.py").read_text()
    (file.parent / "app" / "encoder.py").write_text(text.replace("1", "2"))
    double.write_double(file.parent, build="fail")
    assert run(capfd, "warm", "--config", file)[0] == 3
    assert not hits(capfd, file)["encoder"]["hit"]
    (file.parent / "app" / "encoder.py").write_text(text)
    assert hits(capfd, file)["encoder"]["hit"]


def test_nothing_has_been_built(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = project(tmp_path, "encoder")
    shutil.rmtree(tmp_path / "store")
    found = hits(capfd, file)["encoder"]
    assert (found["hit"], found["verdict"]) == (False, "MISSING")
    assert not (tmp_path / "store" / "v1").exists()


def test_another_node(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The environments of another node, as it printed them: what differs is named field by field."""
    file = project(tmp_path, "encoder")
    there = tmp_path / "there.json"
    code, out, _ = run(capfd, "environment", "--json", "--config", file)
    assert code == 0
    there.write_text(out)
    assert hits(capfd, file, "--against", there)["encoder"]["hit"]
    other = json.loads(out)
    other["answers"][0]["cpu"]["python"] = "CPython 3.99"
    other["answers"][0]["digests"]["cpu"] = "0" * 32
    there.write_text(json.dumps(other))
    found = hits(capfd, file, "--against", there)["encoder"]
    assert (found["hit"], found["verdict"]) == (False, "MISSING")
    (reason,) = found["reasons"]
    assert (reason["symbol"], reason["here"]) == ("python", "CPython 3.99")
    _, out, _ = run(capfd, "would-hit", "--config", file, "--against", there)
    assert "python: built with 3, there CPython 3.99" in out
    # Where a package for that node is in the store, it hits there and not here.
    publish(file, DiskStore(tmp_path / "store"), "encoder", word="two")
    assert hits(capfd, file)["encoder"]["hit"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not what `preheat environment --json` prints"),
        ("[]", "is not what"),
        ('{"host": "a", "answers": [], "format": 9}', "format 9"),
        ("[" * 100_000, "is not what"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_something_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str | None, words: str
) -> None:
    file = project(tmp_path, "encoder")
    if text is not None:
        (tmp_path / "there.json").write_text(text)
    code, _, err = run(capfd, "would-hit", "--config", file, "--against", tmp_path / "there.json")
    assert code == 2
    assert words in err
    assert "there.json" in err


def test_an_interpreter_that_does_not_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = project(tmp_path, "encoder")
    (file.parent / "python").write_text("#!/bin/sh\nexit 9\n")
    found = hits(capfd, file)["encoder"]
    assert not found["hit"]
    assert found["reasons"][0]["kind"] == "probe"
    code, out, _ = run(capfd, "environment", "--json", "--config", file)
    assert code == 3
    assert "encoder" in json.loads(out)["failed"]
    (tmp_path / "there.json").write_text(out)
    found = hits(capfd, file, "--against", tmp_path / "there.json")["encoder"]
    assert "says no environment for `encoder`" in found["reasons"][0]["detail"]


def test_the_second_time_no_interpreter_is_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project(tmp_path, "encoder")
    assert hits(capfd, file)["encoder"]["hit"]

    async def fail(*_: object, **__: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr(probe, "ask", fail)
    assert hits(capfd, file)["encoder"]["hit"]
    assert run(capfd, "environment", "--config", file)[0] == 0


def test_it_imports_little(tmp_path: Path) -> None:
    """It may stand at the beginning of every job."""
    file = project(tmp_path, "encoder")
    heavy = ("torch", "rich", "aiohttp", "watchdog", "psutil", "prometheus_client", "fsspec")
    # Nothing is asked, locked or logged once the interpreter's answer is known.
    heavy += ("asyncio.base_events", "ssl", "subprocess", "logging", "filelock._core")
    assert (
        subprocess.run([sys.executable, "-m", "preheatd", "would-hit", "--config", file]).returncode
        == 0
    )
    code = (
        "import sys; from preheatd import cli; "
        f"assert cli.run(['would-hit', '--config', {str(file)!r}]) == 0; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"
