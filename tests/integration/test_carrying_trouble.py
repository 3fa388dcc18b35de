"""Packages from elsewhere that are no good, as a person meets them: a sentence, a fixed exit code.

What each refusal is about is tried one by one in test_bundles.py, test_remotes.py, test_layers.py and
fault/test_bundles_hostile.py; here are the commands.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from preheat.manifest import FORMAT, encode
from preheat.store import DiskStore
from preheat.store import bundle_format as form
from preheat.store.keys import read_signer
from preheat.store.signatures import new_key
from preheatd import cli
from support import container
from support.bundles import DECODER, ENCODER, exported, member, proven, two_packages
from support.container import IN_FULL, PATH, Container

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.walkthrough import Walkthrough

INDEX = form.make_index(
    (one, ()) for one in (proven(*DECODER, target="decoder"), proven(*ENCODER, target="encoder"))
)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somewhere without a configuration; the store that is filled is ``to``."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("PREHEAT_STORE", str(tmp_path / "to"))
    for name in ("TRUSTED_KEYS", "SIGNING_KEY", "SIGNATURES", "STATE"):
        monkeypatch.delenv(f"PREHEAT_{name}", raising=False)


def nothing_visible(place: Path) -> bool:
    store = DiskStore(place)
    left = list(store.layout.temporary.iterdir()) if place.exists() else []
    return list(store.refs()) == [] and left == []


def other_version(data: bytes) -> bytes:
    other = encode(msgspec.structs.replace(INDEX, manifest_format=FORMAT + 1))
    return member(form.INDEX_NAME, other) + data[len(member(form.INDEX_NAME, encode(INDEX))) :]


def altered(data: bytes) -> bytes:
    middle = data.index(ENCODER[0])
    return data[:middle] + b"X" + data[middle + 1 :]


BUNDLES: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "cut off": (lambda data: data[: len(data) // 2], 2, "cut off"),
    "empty": (lambda data: b"", 2, "cut off|empty|no bundle"),
    "altered": (altered, 2, "was altered or damaged"),
    "of another version": (other_version, 2, "another version of preheat"),
    "something else": (lambda data: b"\x7fELF" + bytes(2000), 2, "bundle"),
    "longer than it says": (lambda data: data + b"more", 2, "after its end|longer|bytes"),
}


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_is_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change, code, words = BUNDLES[name]
    bundle = tmp_path / "a.bundle"
    bundle.write_bytes(change(exported(two_packages(tmp_path / "from"), tmp_path / "good")))
    assert cli.run(["import", str(bundle)]) == code
    said = capfd.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1, said.err
    assert re.search(words, said.err), said.err
    assert nothing_visible(tmp_path / "to")
    assert cli.run(["import", str(bundle), "--json"]) == code
    assert json.loads(capfd.readouterr().out)["error"]["message"]


def test_a_bundle_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for file in (tmp_path / "nothing", tmp_path):
        assert cli.run(["import", str(file)]) == 2
        assert str(file) in capfd.readouterr().err
    assert nothing_visible(tmp_path / "to")


def test_a_bundle_of_another_signer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cryptography")
    keys = [tmp_path / "mine", tmp_path / "theirs"]
    for key in keys:
        key.touch(0o600)
        key.write_bytes(new_key())
    trusted = tmp_path / "trusted_keys"
    trusted.write_text(f"{read_signer(keys[0]).public.line}\n")
    store = two_packages(tmp_path / "from")
    for ref in store.refs():
        store.sign(ref, keys[1])
    exported(store, tmp_path / "theirs.bundle")
    monkeypatch.setenv("PREHEAT_TRUSTED_KEYS", str(trusted))
    assert cli.run(["import", str(tmp_path / "theirs.bundle")]) == 5
    assert "not trusted" in capfd.readouterr().err
    assert cli.run(["push", str(tmp_path / "remote")]) == 2  # there is nothing to push
    monkeypatch.setenv("PREHEAT_STORE", str(tmp_path / "from"))
    monkeypatch.setenv("PREHEAT_SIGNATURES", "off")
    assert cli.run(["push", str(tmp_path / "remote")]) == 0
    monkeypatch.setenv("PREHEAT_STORE", str(tmp_path / "to"))
    monkeypatch.delenv("PREHEAT_SIGNATURES")
    assert cli.run(["pull", str(tmp_path / "remote"), "--all-environments"]) == 5
    assert nothing_visible(tmp_path / "to")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_export_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    two_packages(tmp_path / "from")
    monkeypatch.setenv("PREHEAT_STORE", str(tmp_path / "from"))
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m preheatd export -o - > /dev/full"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "No space left" in done.stderr, done
    assert cli.run(["export", "-o", str(tmp_path / "no" / "such" / "directory")]) == 2
    assert "cannot be written" in capfd.readouterr().err


def damage(remote: Path) -> None:
    largest = max(
        (path for path in remote.rglob("objects/*/*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )
    largest.chmod(0o644)
    largest.write_bytes(b"X" * largest.stat().st_size)


def shorten(remote: Path) -> None:
    for path in remote.rglob("objects/*/*"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1])


def stop_answering(remote: Path) -> None:
    (remote / "FORMAT").unlink()
    os.mkfifo(remote / "FORMAT")


REMOTES: dict[str, tuple[Callable[[Path], None], str]] = {
    "gone": (shutil.rmtree, "There is no store at"),
    "altered": (damage, "does not have the digest|damaged"),
    "lying about sizes": (shorten, "bytes|damaged"),
    "slow": (stop_answering, "did not answer within"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one == "slow" else [IN_FULL]) for one in REMOTES]
)
def test_a_remote_is_refused(name: str, tmp_path: Path) -> None:
    """In a process of its own: what hangs must not keep the command from ending."""
    change, words = REMOTES[name]
    exported(two_packages(tmp_path / "from"), tmp_path / "good")
    remote = tmp_path / "remote"
    pushed = preheat("push", str(remote), store=tmp_path / "from")
    assert pushed.returncode == 0, pushed
    change(remote)
    done = preheat(
        "pull", str(remote), "--all-environments", "--timeout", "1", store=tmp_path / "to"
    )
    assert (done.returncode, done.stdout) == (7, ""), done
    assert len(done.stderr.splitlines()) == 1, done
    assert re.search(words, done.stderr), done
    assert nothing_visible(tmp_path / "to")


def preheat(*words: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preheatd", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PREHEAT_STORE": str(store)},
    )


def at_once(*commands: tuple[str, ...], store: Path) -> list[int]:
    """Exit codes of commands that run at the same time."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "preheatd", *words],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PREHEAT_STORE": str(store)},
        )
        for words in commands
    ]
    return [process.wait(120) for process in running]


def test_two_at_once(tmp_path: Path) -> None:
    """Two exports to one file, two pushes to one remote, two pulls into one store: each is whole."""
    store = two_packages(tmp_path / "from")
    bundle, remote = tmp_path / "a.bundle", tmp_path / "remote"
    export = ("export", "-o", str(bundle))
    push, pull = ("push", str(remote)), ("pull", str(remote), "--all-environments")
    assert at_once(export, export, push, push, store=tmp_path / "from") == [0, 0, 0, 0]
    assert bundle.read_bytes() == exported(store, tmp_path / "once")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("a.bundle", "cwd", "from", "once", "remote")
    ]
    take = ("import", str(bundle))
    assert at_once(pull, pull, take, take, store=tmp_path / "to") == [0, 0, 0, 0]
    there = DiskStore(tmp_path / "to")
    assert {ref.manifest for ref in there.refs()} == {ref.manifest for ref in store.refs()}
    for ref in there.refs():
        for needed in there.read_manifest(ref.manifest).objects():
            there.open_object(needed).close()
    assert list(there.layout.temporary.iterdir()) == []


WORKER = """
import pathlib, sys, time, torch, preheat
from app.model import Classifier

module, x = Classifier().eval(), torch.ones(32, 64)
with torch.no_grad():
    loaded = preheat.load("classifier", module, on_miss="eager")
    print(loaded.preheat.form, torch.allclose(loaded(x), module(x)), flush=True)
    while len(sys.argv) > 1 and not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    print(loaded.preheat.form, torch.allclose(loaded(x), module(x)), flush=True)
for reason in loaded.preheat.reasons:
    print(reason)
"""
UNMOUNTED = """
mount --bind /mnt/packages /mnt/layer
cd /srv/shop
/venv/bin/python /srv/worker.py /run/go > /run/first & first=$!
while [ ! -s /run/first ] && kill -0 $first; do sleep 0.1; done
umount --lazy /mnt/layer
touch /run/go
wait $first; echo "code $?"; cat /run/first
/venv/bin/python /srv/worker.py; echo "code $?"
"""


@pytest.mark.skipif(
    bool(container.REASON), reason=f"no container can be made here: {container.REASON}"
)
@IN_FULL
def test_a_layer_that_is_unmounted(walkthrough: Walkthrough, tmp_path: Path) -> None:
    """Under a worker that has loaded from it, which goes on; the next one has a miss, with its reason."""
    node = Container(tmp_path / "node")
    node.bind(Path(sys.prefix), "/venv")
    node.bind(walkthrough.project / "app", "/srv/shop/app")
    node.bind(walkthrough.remote / "shop", "/mnt/packages")
    node.at("/mnt/layer").mkdir()
    node.write("/srv/worker.py", WORKER)
    done = node.run(
        *("sh", "-c", UNMOUNTED),
        env={
            "PATH": PATH,
            "HOME": "/",
            "PYTHONPATH": "/srv/shop",
            "PREHEAT_STORE": "/srv/own:/mnt/layer",
        },
    )
    said = done.stdout.splitlines()
    assert said[:5] == ["code 0", "lean True", "lean True", "eager True", "eager True"], done
    assert any("in the layer /mnt/layer" in line for line in said), done
    assert said[-1] == "code 0"
