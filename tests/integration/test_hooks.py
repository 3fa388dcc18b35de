"""Commands after a build: what they learn, and that none of them disturbs the daemon."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from test_daemon_builds import assert_ended
from test_daemon_double import make_project, write_double
from test_daemon_service import edit, serving, wait_for_text

from preheat.errors import ConfigurationError
from preheatd import events, hooks
from preheatd.config import load_config

if TYPE_CHECKING:
    from pathlib import Path

TELL = """#!{python}
import json, os, pathlib, sys
names = [n for n in os.environ if n.startswith("PREHEAT_")]
told = {{name: os.environ[name] for name in sorted(names)}}
place = pathlib.Path(f"told-{{told['PREHEAT_RESULT']}}")
place.with_suffix(".new").write_text(json.dumps([sys.argv[1:], told, os.getcwd()]))
place.with_suffix(".new").rename(place)
"""


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NOTIFY_SOCKET", "/not/for/hooks")


def project(path: Path, on_fresh: list[str], on_failed: list[str], **control: Any) -> Path:
    extra = f"on_fresh = {json.dumps(on_fresh)}\non_failed = {json.dumps(on_failed)}\n"
    file = make_project(path / "project", extra=extra, **control)
    tell = file.parent / "tell"
    tell.write_text(TELL.format(python=sys.executable))
    tell.chmod(0o755)
    return file


async def told(file: Path, result: str) -> Any:
    text = await asyncio.to_thread(wait_for_text, file.parent / f"told-{result}")
    return json.loads(text)


async def test_a_command_learns_what_happened(tmp_path: Path) -> None:
    file = project(tmp_path, ["./tell", "a b", "$HOME", "*"], ["./tell"])
    async with serving(file) as heard:
        await heard.next(events.BUILD_PUBLISHED)
        arguments, variables, where = await told(file, "fresh")
        assert arguments == ["a b", "$HOME", "*"]  # no shell has seen them
        assert where == str(file.parent)
        assert float(variables.pop("PREHEAT_SECONDS")) >= 0
        assert variables == {
            "PREHEAT_CONFIGURATION": str(file),
            "PREHEAT_MESSAGE": "",
            "PREHEAT_RESULT": "fresh",
            "PREHEAT_STORE": str(tmp_path / "store"),
            "PREHEAT_TARGET": "encoder",
        }
        write_double(file.parent, build="fail")
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_FAILED)
        _, variables, _ = await told(file, "failed")
        assert "ZeroDivisionError" in variables["PREHEAT_MESSAGE"]
        assert heard.count(events.HOOK_FAILED) == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["./not-there"], "cannot be started"),
        (["no-such-program-anywhere"], "cannot be started"),
        (["./preheat.toml"], "cannot be started"),
        ([sys.executable, "-c", "print('why'); raise SystemExit(3)"], "exit status 3"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], "SIGKILL"),
    ],
)
async def test_a_command_that_fails_is_an_event(
    tmp_path: Path, command: list[str], said: str
) -> None:
    file = project(tmp_path, command, [])
    async with serving(file) as heard:
        failed = await heard.next(events.HOOK_FAILED, "encoder")
        assert said in failed.detail
        assert failed.is_problem
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_PUBLISHED)
        if "why" in str(command):
            log = tmp_path / "store" / "state" / "logs" / "encoder.hook.log"
            assert str(log) in failed.detail
            assert "why" in await asyncio.to_thread(wait_for_text, log)


# A shell begins in no time: the limit must not end it before it hangs.
HANGING = [
    "sh",
    "-c",
    "trap '' TERM; sleep 600 & echo $$ $! > hanging.new; mv hanging.new hanging; wait",
]


async def test_a_command_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = hooks.Hooks.__init__
    monkeypatch.setattr(
        hooks.Hooks,
        "__init__",
        lambda self, emit, state: made(self, emit, state, limit_seconds=2.0),
    )
    file = project(tmp_path, HANGING, [])
    async with serving(file) as heard:
        pids = await asyncio.to_thread(wait_for_text, file.parent / "hanging")
        # Builds go on meanwhile.
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_PUBLISHED)
        failed = await heard.next(events.HOOK_FAILED)
        assert "2 s" in failed.detail
        assert_ended(pids)


async def test_stopping_ends_a_command(tmp_path: Path) -> None:
    file = project(tmp_path, HANGING, [])
    async with serving(file):
        pids = await asyncio.to_thread(wait_for_text, file.parent / "hanging")
    assert_ended(pids)


def test_a_target_has_its_own_command_or_none(tmp_path: Path) -> None:
    (tmp_path / "preheat.toml").write_text(
        'targets = ["a:a"]\non_fresh = ["bin/tell", "x"]\non_failed = ["mail"]\n'
        '[[target]]\nfactory = "a:b"\non_fresh = []\non_failed = ["tell"]\n'
    )
    first, second = load_config(tmp_path).targets
    assert (first.on_fresh, first.on_failed) == ((f"{tmp_path}/bin/tell", "x"), ("mail",))
    assert (second.on_fresh, second.on_failed) == ((), ("tell",))


@pytest.mark.parametrize("wrong", ['on_fresh = "tell me"', 'on_fresh = [""]', "on_fresh = [3]"])
def test_a_command_is_a_list_that_begins_with_a_program(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "preheat.toml").write_text(f'targets = ["a:a"]\n{wrong}\n')
    with pytest.raises(ConfigurationError, match="on_fresh"):
        load_config(tmp_path)
