"""Hostile files and requests, each against the real reader; and secrets, which must not be anywhere.

One real package is built by a real daemon with a signing key; every attack is on a copy of its store.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fault.hostile import CONFIGURATIONS, KEY_FILES, MARK, REQUESTS, TABLE, Attacked, Row
from preheat.store.keys import read_signer
from preheatd import cli
from support.control import ask, raw
from support.project import Project, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.control import Answer

# Values of every kind that somebody would not want to find elsewhere.
SECRETS = {
    "SERVICE_TOKEN": "tok-5f2c81d09ab34e77",  # read by user code while it is imported
    "DATABASE_URL": "postgres://me:pw-93be17ac02@db/x",  # read while the program is made
    "AWS_SECRET_ACCESS_KEY": "aws-c7d1e09f4412b8aa",  # never read
    "API_KEY": "api-0b7743f1ce9d5526",  # from the configuration's `env`
    "HOOK": "hook-e1a64d8870b3295c",  # an argument of a command that fails
    "CONTROL": "control-d4f09b7733c1e6a8",  # the word of the control port
}

FILES = {
    "app/__init__.py": "",
    "app/model.py": """
        import os

        TOKEN = os.environ["SERVICE_TOKEN"]


        def program(x):
            return x.sin() * 2 + 1
    """,
    "app/warm.py": """
        import os

        import preheat
        import torch

        from app import model


        @preheat.target
        def program():
            assert os.environ["DATABASE_URL"] and os.environ["API_KEY"]
            return preheat.Spec(model.program, examples=[(torch.linspace(0, 1, 16),)], grad=False)
    """,
    "preheat.toml": f"""
        targets = ["app.warm:program"]
        watch = ["app"]
        zygote = false
        env = {{ API_KEY = "{SECRETS["API_KEY"]}" }}
        on_fresh = ["false", "{SECRETS["HOOK"]}"]

        [control]
        tcp = "127.0.0.1:0"
        token_file = "token"

        [signatures]
        key = "keys/signing_key"
        trusted_keys = "keys/trusted_keys"
    """,
}


@dataclasses.dataclass
class Guarded:
    """The project after its daemon has built the package, and all that was said meanwhile."""

    project: Project
    trusted: Path
    said: dict[str, str]
    answers: dict[str, Answer]

    def environment(self, **changes: str) -> dict[str, str]:
        """What a worker has: the variables that count for the package, and no configuration of keys."""
        base = {**self.project.environment, **SECRETS, "XDG_CONFIG_HOME": "/nonexistent"}
        return {**base, **changes}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    root = tmp_path_factory.mktemp("guarded")
    project = Project(root / "project", FILES)
    env = {name: value for name, value in SECRETS.items() if name != "API_KEY"}
    (project.root / "token").write_text(SECRETS["CONTROL"])
    (project.root / "token").chmod(0o600)
    key, trusted = project.root / "keys" / "signing_key", project.root / "keys" / "trusted_keys"
    said: dict[str, str] = {}

    def preheat(*words: str, expected: int = 0) -> str:
        done = project.preheat(*words, env=env)
        assert done.code == expected, done
        said[" ".join(words)] = done.out + done.err
        return done.out

    made = json.loads(preheat("keys", "new", str(key), "--name", "the test", "--json"))
    preheat("keys", "trust", made["line"], "--file", str(trusted))
    answers = {}
    with project.serving("--json", env=env) as daemon:
        until(lambda: "hook_failed" in daemon.text() or not daemon.alive(), "a package")
        socket = next((project.root / "state").glob("control-*.sock"))
        for name, (method, path, body, _) in REQUESTS.items():
            answers[name] = ask(socket, path, body or None, method=method)
        said["no HTTP"] = raw(socket, b"\x16\x03\x01" + bytes(range(256))).decode("latin-1")
        for path in ("status", "plan", "explain/program", "history"):
            said[path] = ask(socket, f"/v1/{path}").body.decode()
        said["metrics"] = ask(socket, "/metrics").body.decode()
        for words in (("status",), ("status", "--json"), ("explain", "program"), ("plan",)):
            preheat(*words)
        assert daemon.alive()
        said["daemon"] = daemon.text()
    for words in (("status", "--history", "50"), ("plan", "--json"), ("keys", "list")):
        preheat(*words)
    said["doctor"] = project.preheat("doctor", env=env).out
    yield Guarded(project, trusted, said, answers)


def test_no_secret_is_in_the_store_the_state_or_in_anything_that_was_said(
    guarded: Guarded,
) -> None:
    project = guarded.project
    private = (project.root / "keys" / "signing_key").read_text().splitlines()[1]
    secrets = {**SECRETS, "signing key": private}
    assert "published" in guarded.said["daemon"]
    assert "hook_failed" in guarded.said["daemon"]
    looked = 0
    for place in (project.store_path, project.root / "state"):
        for path in place.rglob("*"):
            if path.is_file() and not path.is_symlink():
                looked += 1
                data = path.read_bytes() + str(path).encode()
                assert [n for n, secret in secrets.items() if secret.encode() in data] == [], path
    assert looked > 10
    for what, text in guarded.said.items():
        assert [name for name, secret in secrets.items() if secret in text] == [], what
    # That they matter is in the manifest, by digest.
    variables = {one.name for one in project.manifest("program").sources.variables}
    assert {"SERVICE_TOKEN", "DATABASE_URL", "API_KEY"} <= variables
    assert "AWS_SECRET_ACCESS_KEY" not in variables


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_is_refused_with_its_reason(guarded: Guarded, name: str) -> None:
    answer = guarded.answers[name]
    assert answer.status == REQUESTS[name][3]
    assert answer.error["message"]
    assert "Traceback" not in guarded.said["daemon"]


WORKER = """
import json, os, resource, signal, sys, warnings
import torch, preheat
from app.model import program

warnings.simplefilter("ignore")
CASES = json.loads(sys.stdin.read())


def look(case):
    os.chdir(case["cwd"])
    os.environ.update(case["env"])
    x = torch.linspace(0, 1, 16)
    loaded = preheat.load("program", program, store=case["store"], on_miss="eager", form=case["form"])
    right = bool(torch.allclose(loaded(x), program(x)))
    report = loaded.preheat
    return {
        "verdict": str(report.verdict), "form": report.form, "right": right,
        "kinds": [reason.kind for reason in report.reasons],
        "words": " ".join(map(str, report.reasons)),
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "unpickled": os.path.exists(MARK),
    }


for name, case in CASES.items():
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        print(json.dumps([name, look(case)]), flush=True)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        print(json.dumps([name, {"ended": status}]), flush=True)
"""


def run_workers(guarded: Guarded, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a worker process of its own says for each case: it has imported, and loaded nothing."""
    environment = guarded.environment()
    del environment["PREHEAT_STORE"]
    project = Project.__new__(Project)
    project.root, project.environment = guarded.project.root, environment
    script = f"MARK = {MARK!r}\n{WORKER}"
    done = project.run(sys.executable, "-c", script, stdin=json.dumps(cases))
    assert done.code == 0, done
    found = dict(json.loads(line) for line in done.out.splitlines())
    assert list(found) == list(cases), done
    return found


def case(guarded: Guarded, cwd: Path, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"cwd": str(cwd), "store": None, "form": None, "env": {}}
    return {**values, **changes}


@pytest.fixture(scope="module")
def results(
    guarded: Guarded, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """All attacks at once, because to import torch takes seconds."""
    place = tmp_path_factory.mktemp("attacked")
    trusting = {"PREHEAT_TRUSTED_KEYS": str(guarded.trusted)}
    intact = str(guarded.project.store_path)
    cases = {
        "intact": case(guarded, place, store=intact),
        "signed": case(guarded, place, store=intact, env=trusting),
    }
    for row in TABLE:
        if row.root_only and os.geteuid() != 0:
            continue
        root = place / row.name / "store"
        shutil.copytree(intact, root, symlinks=True)
        row.make(Attacked(root))
        env = trusting if row.signed else {}
        cases[row.name] = case(guarded, root.parent, store=str(root), form=row.form, env=env)
    for name, (data, mode, _) in KEY_FILES.items():
        file = place / f"keys-{name}"
        file.write_bytes(data)
        file.chmod(mode)
        env = {"PREHEAT_TRUSTED_KEYS": str(file)}
        cases[f"keys-{name}"] = case(guarded, place, store=intact, env=env)
    for name, (data, _) in CONFIGURATIONS.items():
        directory = place / f"configuration-{name}"
        directory.mkdir()
        (directory / "preheat.toml").write_bytes(data)
        cases[f"configuration-{name}"] = case(guarded, directory)
    return run_workers(guarded, cases)


def check(result: dict[str, Any], verdict: str, kind: str, words: str) -> None:
    assert "ended" not in result
    assert (result["verdict"], result["kinds"]) == (verdict, [kind]), result
    assert words in result["words"], result
    assert result["form"] == "eager"
    assert result["right"], "the worker goes on"
    assert result["mib"] < 1500, "no bomb went off"
    assert not result["unpickled"]


@pytest.mark.parametrize("name", ["intact", "signed"])
def test_the_store_that_is_attacked_is_a_good_one(
    results: dict[str, dict[str, Any]], name: str
) -> None:
    assert (results[name]["verdict"], results[name]["form"]) == ("FRESH", "lean"), results[name]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_hostile_file_is_refused_with_its_reason(
    results: dict[str, dict[str, Any]], row: Row
) -> None:
    if row.root_only and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    check(results[row.name], row.verdict, row.kind, row.words)


@pytest.mark.parametrize("name", KEY_FILES)
def test_a_hostile_file_of_keys_is_refused_with_its_reason(
    results: dict[str, dict[str, Any]], name: str
) -> None:
    kind = "no_trusted_keys" if name == "empty" else "keys_not_usable"
    check(results[f"keys-{name}"], "UNTRUSTED", kind, KEY_FILES[name][2])


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_hostile_configuration_is_refused_with_its_reason(
    results: dict[str, dict[str, Any]], name: str
) -> None:
    check(results[f"configuration-{name}"], "MISSING", "store_not_usable", CONFIGURATIONS[name][1])


def test_the_hostile_pickle_would_have_run(tmp_path: Path) -> None:
    """That nothing was unpickled above says something only if this does."""
    from fault.hostile import _hostile_pickle

    code = f"import pickle; pickle.loads({_hostile_pickle()!r})"
    project = Project(tmp_path, {})
    assert project.run(sys.executable, "-c", code).code == 0
    assert (tmp_path / MARK).exists()


class Here:
    """Commands in this process, in the project's directory: there are many, and each is quick."""

    def __init__(self, project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        self._patch = monkeypatch
        self._capsys = capsys
        monkeypatch.chdir(project.root)
        secrets = {name: value for name, value in SECRETS.items() if name != "API_KEY"}
        self.set(**project.environment, **secrets)

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._patch.setenv(name, value)

    def run(self, *words: str, expected: int = 0) -> str:
        code = cli.run(words)
        said: str = "".join(self._capsys.readouterr())
        assert code == expected, said
        return said


def test_keys_are_rotated_without_a_build(
    guarded: Guarded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A new key signs what a trusted one has signed; then the old one goes."""
    project = guarded.project
    here = Here(project, monkeypatch, capsys)
    store, trusted, new = tmp_path / "store", tmp_path / "trusted", tmp_path / "new"
    shutil.copytree(project.store_path, store)
    shutil.copy(guarded.trusted, trusted)
    here.set(
        PREHEAT_STORE=str(store),
        PREHEAT_TRUSTED_KEYS=str(trusted),
        PREHEAT_SIGNING_KEY=str(new),
    )
    here.run("keys", "new", str(new))
    assert "is there already" in here.run("keys", "new", str(new), expected=2)
    assert new.stat().st_mode & 0o777 == 0o600
    assert "not in the file of trusted keys" in here.run("keys", "list")
    here.run("keys", "trust", read_signer(new).public.line)
    assert "was already" in here.run("keys", "trust", read_signer(new).public.line)
    assert ": signed" in here.run("keys", "resign")
    assert "was signed already" in here.run("keys", "resign")
    old = read_signer(project.root / "keys" / "signing_key").public.id
    here.run("keys", "remove", old)
    assert "no keys" in here.run("keys", "remove", old, expected=2)
    assert "FRESH" in here.run("plan")


def test_what_nobody_signed_is_not_signed_in_passing(
    guarded: Guarded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project = guarded.project
    here = Here(project, monkeypatch, capsys)
    store = tmp_path / "store"
    shutil.copytree(project.store_path, store)
    attacked = Attacked(store)
    attacked.signatures_path.unlink()
    here.set(PREHEAT_STORE=str(store))
    assert "left out" in here.run("keys", "resign", expected=5)
    assert not attacked.signatures_path.exists()
    (line,) = json.loads(here.run("plan", "--json", expected=5))["targets"]
    assert (line["verdict"], line["action"]) == ("UNTRUSTED", "build")
    assert line["reasons"][0]["kind"] == "signature_missing"
    # Whoever cannot sign can do nothing about it.
    text = (project.root / "preheat.toml").read_text()
    other = tmp_path / "preheat.toml"
    for wanted in ("key = ", "trusted_keys = ", "token_file = ", "watch = "):
        text = text.replace(f"\n{wanted}", "\n# ")
    other.write_text(text.replace("tcp = ", "# "))
    here.set(PREHEAT_TRUSTED_KEYS=str(guarded.trusted))
    (tmp_path / "app").symlink_to(project.root / "app")
    said = here.run("plan", "--json", "--config", str(other), expected=5)
    assert json.loads(said)["targets"][0]["action"] == "none"
    assert ": signed" in here.run("keys", "resign", "--unsigned")
    assert "FRESH" in here.run("plan")
