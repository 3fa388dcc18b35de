"""The command line: exit codes, the shape of its JSON, and what it says about bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from test_daemon_double import environment, make_project, write_double

from preheat.manifest import environment_digest
from preheat.store import DiskStore, build_lock
from preheatd import cli

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = environment_digest(environment())


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


class Command:
    """Runs the command in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.err = ""

    def text(self, *arguments: object) -> tuple[int, str]:
        self._capfd.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        out, self.err = self._capfd.readouterr()
        return code, out

    def json(self, *arguments: object) -> tuple[int, Any]:
        code, out = self.text(*arguments, "--json")
        assert out.count("\n") == 1, out
        return code, json.loads(out)


@pytest.fixture
def preheat(capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(capfd)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project", ("encoder", "decoder"))


def test_plan_warm_plan(preheat: Command, file: Path) -> None:
    code, plan = preheat.json("plan", "--config", file)
    assert code == 3
    assert plan["targets"][0] == {
        "target": "encoder",
        "environment": ENVIRONMENT,
        "verdict": "MISSING",
        "reasons": [
            {
                "kind": "package_missing",
                "file": None,
                "symbol": None,
                "detail": "no package in this environment yet",
                "built": None,
                "here": None,
            }
        ],
        "action": "build",
    }

    code, warm = preheat.json("warm", "--config", file)
    assert code == 0
    (first, _) = warm["targets"]
    assert first["seconds"] > 0
    assert {key: first[key] for key in ("verdict", "action", "result", "form", "failure")} == {
        "verdict": "FRESH",
        "action": "build",
        "result": "built",
        "form": "dynamo",
        "failure": None,
    }
    assert first["proof"] == {"frames_compiled": 0, "max_error": 0.0}

    code, plan = preheat.json("plan", "--config", file)
    assert code == 0
    assert [(one["verdict"], one["action"]) for one in plan["targets"]] == [("FRESH", "none")] * 2

    code, warm = preheat.json("warm", "--config", file)
    assert code == 0
    assert [one["result"] for one in warm["targets"]] == ["skipped", "skipped"]
    assert warm["targets"][0]["proof"] == {"frames_compiled": 0, "max_error": 0.0}


def test_plan_builds_nothing(preheat: Command, file: Path) -> None:
    preheat.json("plan", "--config", file)
    assert list(DiskStore(file.parents[1] / "store").refs()) == []
    assert (file.parent / "double.log").read_text() == "environment\n"


def test_an_edit_makes_only_its_target_stale(preheat: Command, file: Path) -> None:
    preheat.json("warm", "--config", file)
    (file.parent / "app" / "encoder.py").write_text("def encoder():\n    return 2\n")

    code, plan = preheat.json("plan", "--config", file)

    assert code == 3
    encoder, decoder = plan["targets"]
    assert (encoder["verdict"], encoder["action"]) == ("STALE", "build")
    (reason,) = encoder["reasons"]
    assert (reason["kind"], reason["file"]) == ("module_edited", "app/encoder.py")
    assert decoder["verdict"] == "FRESH"
    code, _ = preheat.json("warm", "--config", file)
    assert code == 0


def test_a_comment_is_no_edit(preheat: Command, file: Path) -> None:
    preheat.json("warm", "--config", file)
    module = file.parent / "app" / "encoder.py"
    module.write_text(f"# a comment\n{module.read_text()}")
    assert preheat.json("plan", "--config", file)[0] == 0


def test_only_the_named_targets(preheat: Command, file: Path) -> None:
    code, warm = preheat.json("warm", "--config", file, "decoder")
    assert (code, [one["target"] for one in warm["targets"]]) == (0, ["decoder"])
    assert preheat.json("plan", "--config", file, "decoder")[0] == 0
    assert preheat.json("plan", "--config", file)[0] == 3


def test_one_bad_target_does_not_stop_the_others(preheat: Command, file: Path) -> None:
    write_double(file.parent, build={"encoder": "fail"})

    code, warm = preheat.json("warm", "--config", file)

    assert code == 3
    encoder, decoder = warm["targets"]
    assert (encoder["verdict"], encoder["result"]) == ("FAILED", "failed")
    assert "ZeroDivisionError" in encoder["failure"]["message"]
    assert encoder["failure"]["remedy"] == "Correct the factory."
    assert (encoder["form"], encoder["proof"]) == (None, None)
    assert decoder["verdict"] == "FRESH"


def test_a_failure_is_shown_with_the_end_of_its_log(preheat: Command, file: Path) -> None:
    write_double(file.parent, build={"encoder": "fail"})
    preheat.json("warm", "--config", file)

    code, status = preheat.json("status", "--config", file)
    assert code == 3
    encoder, decoder = status["targets"]
    assert (encoder["verdict"], encoder["action"]) == ("FAILED", "wait")
    assert "Traceback: the factory raised" in encoder["failure"]["log"]
    assert decoder["failure"] is None
    assert status["daemons"] == []

    code, text = preheat.text("status", "--config", file)
    assert "the factory raised" in text
    code, explained = preheat.json("explain", "--config", file, "encoder")
    assert (code, explained["verdict"]) == (3, "FAILED")
    assert explained["factory"] == "app.encoder:encoder"


def test_what_happened_is_shown_later(preheat: Command, file: Path) -> None:
    assert preheat.json("warm", "--config", file)[0] == 0
    code, answer = preheat.json("status", "--history", "--config", file)
    assert code == 0
    entries = answer["history"]
    assert [one["event"]["action"] for one in entries] == ["build_published"] * 2
    assert {one["event"]["target"] for one in entries} == {"encoder", "decoder"}
    code, answer = preheat.json("status", "--history", "1", "--config", file)
    assert answer["history"] == entries[-1:]


def test_warm_tries_a_failure_again(preheat: Command, file: Path) -> None:
    write_double(file.parent, build={"encoder": "fail"})
    assert preheat.json("warm", "--config", file)[0] == 3
    write_double(file.parent)
    assert preheat.json("warm", "--config", file)[0] == 0
    _, status = preheat.json("status", "--config", file)
    assert status["targets"][0]["failure"] is None


def test_a_time_limit(preheat: Command, tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", extra="timeout = 1\n", build="hang")
    code, warm = preheat.json("warm", "--config", file)
    assert code == 4
    assert warm["targets"][0]["failure"]["kind"] == "timed_out"


def test_somebody_else_builds(preheat: Command, file: Path) -> None:
    DiskStore(file.parents[1] / "store", create=True)
    with build_lock(file.parents[1] / "store", "encoder", ENVIRONMENT):
        code, warm = preheat.json("warm", "--config", file)
    assert code == 75
    encoder, decoder = warm["targets"]
    assert (encoder["result"], encoder["verdict"], encoder["action"]) == (
        "held",
        "BUILDING",
        "wait",
    )
    assert decoder["result"] == "built"


def test_an_untrusted_store(preheat: Command, file: Path) -> None:
    preheat.json("warm", "--config", file)
    store = file.parents[1] / "store"
    store.chmod(0o777)
    for command in ("plan", "warm", "status"):
        code, answer = preheat.json(command, "--config", file)
        assert code == 5, answer
        words = json.dumps(answer)
        assert "writable by everybody" in words
        assert str(store) in words
    code, _ = preheat.text("warm", "--config", file)
    assert "chmod" in preheat.err


def test_an_untrusted_package(preheat: Command, file: Path) -> None:
    preheat.json("warm", "--config", file)
    (ref,) = (file.parents[1] / "store").glob("v1/refs/encoder/*.json")
    ref.chmod(0o666)
    code, plan = preheat.json("plan", "--config", file)
    assert code == 5
    assert [one["verdict"] for one in plan["targets"]] == ["UNTRUSTED", "FRESH"]
    assert preheat.json("warm", "--config", file)[0] == 5


@pytest.mark.parametrize("damage", ["ref", "object missing", "object size", "manifest"])
def test_a_damaged_package_is_built_again(preheat: Command, file: Path, damage: str) -> None:
    preheat.json("warm", "--config", file)
    store = DiskStore(file.parents[1] / "store")
    found = store.read_package("encoder", ENVIRONMENT)
    assert found is not None
    ref, manifest = found
    paths = {
        "ref": store.layout.ref("encoder", ENVIRONMENT),
        "manifest": store.layout.object(ref.manifest),
        "object missing": store.layout.object(manifest.objects()[0].sha256),
        "object size": store.layout.object(manifest.objects()[0].sha256),
    }
    if damage == "object missing":
        paths[damage].unlink()
    else:
        paths[damage].chmod(0o644)
        paths[damage].write_bytes(b"{}")

    code, plan = preheat.json("plan", "--config", file)
    assert code == 3
    encoder, _ = plan["targets"]
    assert (encoder["verdict"], encoder["action"]) == ("MISSING", "build")
    assert encoder["reasons"][0]["kind"] == "package_corrupted"

    assert preheat.json("warm", "--config", file)[0] == 0
    assert preheat.json("plan", "--config", file)[0] == 0


def test_a_package_of_another_environment_explains_itself(preheat: Command, file: Path) -> None:
    preheat.json("warm", "--config", file)
    write_double(file.parent, environment="two")
    (file.parent / "python").write_text((file.parent / "python").read_text() + "#\n")

    _, plan = preheat.json("plan", "--config", file)

    (reason,) = plan["targets"][0]["reasons"]
    assert (reason["kind"], reason["symbol"]) == ("environment_differs", "torch")
    assert "one" in reason["detail"]
    assert "two" in reason["detail"]


def test_another_factory_makes_it_stale(preheat: Command, file: Path) -> None:
    preheat.json("warm", "--config", file)
    text = file.read_text().replace('"app.encoder:encoder"', '{factory = "app.decoder:encoder"}')
    file.write_text(text)
    _, plan = preheat.json("plan", "--config", file)
    assert "factory_changed" in [reason["kind"] for reason in plan["targets"][0]["reasons"]]
    assert plan["targets"][0]["verdict"] == "STALE"


def test_an_interpreter_without_torch(preheat: Command, file: Path) -> None:
    write_double(file.parent, probe="broken")
    code, warm = preheat.json("warm", "--config", file)
    assert code == 3
    assert warm["targets"][0]["environment"] is None
    assert "torch" in warm["targets"][0]["failure"]["message"]


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["warm", "nobody"], "configuration", ["nobody", "preheat.toml"]),
        (["explain", "encode"], "configuration", ["encode", "Did you mean"]),
        (["explain"], "usage", ["TARGET"]),
        (["wram"], "usage", ["wram"]),
        (["plan", "--colour"], "usage", ["--colour"]),
    ],
)
def test_usage_errors(
    preheat: Command,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    kind: str,
    words: list[str],
) -> None:
    monkeypatch.chdir(file.parent)
    code, answer = preheat.json(*arguments)
    assert code == 2
    assert answer["error"]["kind"] == kind
    assert set(answer["error"]) == {"kind", "message", "remedy"}
    text = answer["error"]["message"] + answer["error"]["remedy"]
    assert all(word in text for word in words), text

    code, out = preheat.text(*arguments)
    assert (code, out) == (2, "")
    assert preheat.err.startswith("preheat: ")
    assert preheat.err.count("\n") == 1


def test_a_wrong_key(preheat: Command, file: Path) -> None:
    file.write_text('targetz = ["a:b"]')
    code, answer = preheat.json("plan", "--config", file)
    assert (code, answer["error"]["kind"]) == (2, "configuration")
    assert "`targetz`" in answer["error"]["message"]


def test_a_fault_is_reported_as_such(
    preheat: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*arguments: object, **options: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("preheatd.commands.load_config", fault)
    code, answer = preheat.json("plan", "--config", file)
    assert (code, answer["error"]["kind"]) == (1, "unexpected")
    assert "RuntimeError: a fault" in answer["error"]["message"]


def test_words_for_people(preheat: Command, file: Path) -> None:
    code, text = preheat.text("plan", "--config", file)
    assert code == 3
    assert "encoder" in text
    assert "MISSING" in text
    code, text = preheat.text("warm", "--config", file)
    assert code == 0
    assert "FRESH" in text
    assert "encoder: build published" in preheat.err
    code, text = preheat.text("explain", "--config", file, "encoder")
    assert code == 0
    assert "depends on   1 modules" in text
    code, text = preheat.text("--help")
    assert code == 0


def test_as_a_program_of_its_own(file: Path) -> None:
    """The real exit status and streams, from the project's directory."""
    command = [sys.executable, "-m", "preheatd.cli"]
    plan = subprocess.run(
        [*command, "plan", "--json"], cwd=file.parent, capture_output=True, text=True, check=False
    )
    assert (plan.returncode, plan.stderr) == (3, "")
    assert json.loads(plan.stdout)["targets"][0]["verdict"] == "MISSING"
    wrong = subprocess.run(
        [*command, "warm", "x"], cwd=file.parent, capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_torch_is_never_imported() -> None:
    script = (
        "import sys, preheatd.cli, preheatd.service, preheatd.commands\n"
        "print([name for name in ('torch', 'pickle.loads', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
