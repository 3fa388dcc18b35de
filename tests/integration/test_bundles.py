"""``preheat export`` and ``preheat import`` with real files: whole, resumed, interrupted, at once."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from preheat.errors import (
    BundleError,
    CorruptedError,
    IncompatibleError,
    StoreError,
    UnsignedPackageError,
)
from preheat.manifest import environment_digest, sha256
from preheat.store import DiskStore
from preheat.store.files import Files
from preheat.store.keys import Signing, read_signer
from preheat.store.signatures import new_key
from preheatd import cli
from preheatd.arriving import Arrivals, decide
from preheatd.bundles.exporting import Exporter
from preheatd.bundles.importing import Imported, Importer, import_bundle
from preheatd.selection import selected
from support.bundles import DECODER, ENCODER, exported, proven, publish, two_packages

MEBIBYTE = 1024 * 1024


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    file = tmp_path / "two.bundle"
    exported(two_packages(tmp_path / "from"), file)
    return file


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without a configuration, whose store PREHEAT_STORE names."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("PREHEAT_STORE", str(tmp_path / "to"))
    return place


def take(file: Path, store: Path | DiskStore, **options: Any) -> Imported:
    opened = store if isinstance(store, DiskStore) else None
    importer = Importer(
        lambda: opened or DiskStore(Path(str(store)), create=True),
        Arrivals(None, **options),
        length=file.stat().st_size,
    )
    return asyncio.run(import_bundle(file, importer))


def targets(store: Path) -> list[str]:
    return [ref.target for ref in DiskStore(store).refs()]


def test_there_and_back(bundle: Path, tmp_path: Path) -> None:
    done = take(bundle, tmp_path / "to")
    assert [(one.target, one.result) for one in done.packages] == [
        ("decoder", "new"),
        ("encoder", "new"),
    ]
    assert (done.written, done.reused) == (4, 0)
    to, frm = DiskStore(tmp_path / "to"), DiskStore(tmp_path / "from")
    assert {ref.manifest for ref in to.refs()} == {ref.manifest for ref in frm.refs()}
    for ref in to.refs():
        for needed in to.read_manifest(ref.manifest).objects():
            to.open_object(needed).close()
    assert exported(to, tmp_path / "again") == bundle.read_bytes()
    again = take(bundle, tmp_path / "to")
    assert {one.result for one in again.packages} == {"same"}
    assert again.written == 0


def test_one_target_alone(bundle: Path, tmp_path: Path) -> None:
    take(bundle, tmp_path / "to", targets=frozenset({"encoder"}))
    assert targets(tmp_path / "to") == ["encoder"]
    there = set(DiskStore(tmp_path / "to").object_digests())
    assert sha256(DECODER[0]) not in there
    with pytest.raises(BundleError, match="it holds decoder, encoder"):
        take(bundle, tmp_path / "none", targets=frozenset({"other"}))


def test_another_environment_is_refused_before_anything_is_written(
    bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(IncompatibleError, match="No package in the bundle is for an environment"):
        take(bundle, tmp_path / "to", only=frozenset({"f" * 32}))
    assert list(DiskStore(tmp_path / "to").object_digests()) == []


def test_packages_of_other_environments_are_left_out(tmp_path: Path) -> None:
    store = two_packages(tmp_path / "from")
    publish(store, b"newer code", target="encoder", torch="2.14")
    exported(store, tmp_path / "bundle")
    here = environment_digest(proven().environment)
    done = take(tmp_path / "bundle", tmp_path / "to", only=frozenset({here}))
    assert sorted(one.result for one in done.packages) == ["left_out", "new", "new"]
    assert {ref.environment for ref in DiskStore(tmp_path / "to").refs()} == {here}


def test_the_current_package_stays_unless_it_is_asked_for(bundle: Path, tmp_path: Path) -> None:
    own = DiskStore(tmp_path / "to", create=True)
    publish(own, b"my own code", target="encoder")
    mine = next(iter(own.refs("encoder"))).manifest
    done = take(bundle, tmp_path / "to")
    assert [one.result for one in done.packages] == ["new", "kept"]
    assert next(iter(own.refs("encoder"))).manifest == mine
    assert sha256(ENCODER[0]) not in set(own.object_digests())  # nobody would use it
    done = take(bundle, tmp_path / "to", replace=True)
    assert [one.result for one in done.packages] == ["same", "replaced"]
    assert next(iter(own.refs("encoder"))).manifest != mine


def test_a_damaged_package_gives_way(bundle: Path, tmp_path: Path) -> None:
    own = DiskStore(tmp_path / "to", create=True)
    publish(own, b"my own code", target="encoder")
    own.layout.object(next(iter(own.refs())).manifest).unlink()
    assert [one.result for one in take(bundle, tmp_path / "to").packages] == ["new", "new"]


@pytest.mark.parametrize(
    ("current", "arriving", "result"),
    [(True, True, "kept"), (False, True, "replaced"), (False, False, "kept"), (None, None, "kept")],
)
def test_content_decides_between_two_packages(
    current: bool | None, arriving: bool | None, result: str
) -> None:
    decided = decide(
        "a", "b", replace=False, current_fits=lambda: current, arriving_fits=lambda: arriving
    )
    assert decided == result


class Full(Files):
    """A disk that is full after so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return super().write(descriptor, data)


def test_a_disk_that_fills_up(bundle: Path, tmp_path: Path) -> None:
    """At every moment: the message names the place, no name leads to a part, and the next import goes on."""
    refused = 0
    for room in range(0, 20_000, 150):
        root = tmp_path / f"to{room}"
        DiskStore(root, create=True)
        try:
            take(bundle, DiskStore(root, files=Full(room)))
        except StoreError as error:
            refused += 1
            assert "No space left" in error.message
            assert str(root) in error.message
        else:
            break
        for ref in DiskStore(root).refs():  # each package is whole, or not there
            for needed in DiskStore(root).read_manifest(ref.manifest).objects():
                DiskStore(root).open_object(needed).close()
        assert list(DiskStore(root).layout.temporary.iterdir()) == []
        if room % 1500 == 0:
            take(bundle, root)
            assert targets(root) == ["decoder", "encoder"]
    assert refused > 10
    assert targets(root) == ["decoder", "encoder"]


def test_too_little_room_is_said_at_once(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage())
    with pytest.raises(StoreError, match=r"has 10 bytes left, and the packages need \d+"):
        take(bundle, tmp_path / "to")
    assert list(DiskStore(tmp_path / "to").object_digests()) == []


class _Usage:
    free = 10


def test_an_interrupted_import_is_gone_on_with(bundle: Path, tmp_path: Path) -> None:
    data = bundle.read_bytes()
    half = tmp_path / "half"
    half.write_bytes(data[: len(data) - 1200])
    importer = Importer(lambda: DiskStore(tmp_path / "to", create=True), Arrivals(None))
    with pytest.raises(BundleError, match="cut off"):
        asyncio.run(import_bundle(half, importer))
    assert targets(tmp_path / "to") == []
    done = take(bundle, tmp_path / "to")
    assert done.reused > 0
    assert done.reused + done.written == 4
    assert targets(tmp_path / "to") == ["decoder", "encoder"]


def test_a_killed_import(tmp_path: Path) -> None:
    """SIGKILL in the middle: nothing is visible, and the next import sweeps and goes on."""
    store = DiskStore(tmp_path / "from", create=True)
    publish(store, *(os.urandom(100_000) for _ in range(40)), target="encoder")
    exported(store, tmp_path / "bundle")
    environ = {**os.environ, "PREHEAT_STORE": str(tmp_path / "to")}
    command = [sys.executable, "-m", "preheatd", "import", "-", "--json"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd=tmp_path
    ) as process:
        assert process.stdin is not None
        process.stdin.write((tmp_path / "bundle").read_bytes()[:2_000_000])
        process.stdin.flush()
        objects = DiskStore(tmp_path / "to")
        deadline = time.monotonic() + 300
        while sum(1 for _ in objects.object_digests()) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert targets(tmp_path / "to") == []
    done = take(tmp_path / "bundle", tmp_path / "to")
    assert done.reused >= 5
    assert targets(tmp_path / "to") == ["encoder"]


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    store = two_packages(tmp_path / "from")
    file = tmp_path / "bundle"
    file.write_bytes(b"the one from before")
    damaged = store.layout.object(sha256(DECODER[0]))
    damaged.chmod(0o644)
    damaged.write_bytes(b"x" * len(DECODER[0]))
    with pytest.raises(CorruptedError, match="digest"):
        exported(store, file)
    assert file.read_bytes() == b"the one from before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "from"]
    with pytest.raises(BundleError, match="cannot be written: No such file"):
        exported(two_packages(tmp_path / "other"), tmp_path / "none" / "bundle")


def test_two_exports_at_once(tmp_path: Path) -> None:
    store = two_packages(tmp_path / "from")
    refs = selected(store, ())

    async def both() -> None:
        await asyncio.gather(
            *(Exporter(store).to_file(refs, tmp_path / "bundle") for _ in range(4))
        )

    asyncio.run(both())
    once = exported(store, tmp_path / "once")
    assert (tmp_path / "bundle").read_bytes() == once
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "from", "once"]


def test_an_unproven_package_is_not_exported(tmp_path: Path) -> None:
    store = two_packages(tmp_path / "from")
    store.publish(msgspec.structs.replace(proven(*ENCODER, target="encoder"), proof=None))
    with pytest.raises(BundleError, match="not proven"):
        exported(store, tmp_path / "bundle")


def run_cli(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.run(words)
    said = capfd.readouterr()
    return code, said.out, said.err


def test_the_commands(
    bundle: Path, tmp_path: Path, alone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_cli(capfd, "import", str(bundle))
    assert (code, err) == (0, "")
    assert "encoder" in out
    assert "4 objects written" in out
    code, out, err = run_cli(capfd, "export", "-o", "mine", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["bytes"] == (alone / "mine").stat().st_size
    assert (alone / "mine").read_bytes() == bundle.read_bytes()
    code, out, err = run_cli(capfd, "export", "encode", "-o", "other")
    assert code == 2
    assert "no package of `encode`. Did you mean `encoder`?" in err
    code, out, err = run_cli(capfd, "import", "missing", "--json")
    assert code == 2
    assert json.loads(out)["error"]["kind"] == "bundle"
    (alone / "text").write_text("no bundle")
    code, out, err = run_cli(capfd, "import", "text")
    assert code == 2
    assert "text: It ends after 9 bytes, in its first header" in err


def test_from_one_store_to_another_through_a_pipe(bundle: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "PREHEAT_STORE": str(tmp_path / "from")}
    command = [sys.executable, "-m", "preheatd"]
    with subprocess.Popen(
        [*command, "export", "-o", "-"], stdout=subprocess.PIPE, env=environ, cwd=tmp_path
    ) as source:
        done = subprocess.run(
            [*command, "import", "-"],
            stdin=source.stdout,
            env={**environ, "PREHEAT_STORE": str(tmp_path / "to")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert (source.returncode, done.returncode, done.stderr) == (0, 0, "")
    assert targets(tmp_path / "to") == ["decoder", "encoder"]


_MEASURED = """
import asyncio, sys
from pathlib import Path
from preheat.store import DiskStore
from preheatd.arriving import Arrivals
from preheatd.bundles.exporting import Exporter
from preheatd.bundles.importing import Importer, import_bundle
from preheatd.selection import selected

frm, to, file = map(Path, sys.argv[1:])
store = DiskStore(frm)
asyncio.run(Exporter(store).to_file(selected(store, ()), file))
importer = Importer(lambda: DiskStore(to, create=True), Arrivals(None), length=file.stat().st_size)
done = asyncio.run(import_bundle(file, importer))
assert done.written == 3, done
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def test_memory_does_not_grow_with_the_bundle(tmp_path: Path) -> None:
    """Export and import of a large bundle of large objects take as much memory as those of a smaller one."""
    peaks = []
    for size in (32 * MEBIBYTE, 70 * MEBIBYTE):
        store = DiskStore(tmp_path / f"from{size}", create=True)
        publish(store, *(os.urandom(1 << 20) * (size >> 20) for _ in range(3)))
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _MEASURED,
                *(str(tmp_path / f"{word}{size}") for word in ("from", "to", "bundle")),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout) * 1024)
    assert (tmp_path / f"bundle{size}").stat().st_size > 200 * MEBIBYTE
    assert peaks[1] - peaks[0] < 40 * MEBIBYTE, peaks
    assert max(peaks) < 160 * MEBIBYTE, peaks


@pytest.fixture
def key(tmp_path: Path) -> Path:
    place = tmp_path / "key"
    place.touch(0o600)
    place.write_bytes(new_key())
    return place


def signed_bundle(tmp_path: Path, key: Path) -> Path:
    store = two_packages(tmp_path / "signed")
    for ref in store.refs():
        store.sign(ref, key)
    exported(store, tmp_path / "signed.bundle")
    return tmp_path / "signed.bundle"


def trusting(tmp_path: Path, *keys: Path) -> Signing:
    file = tmp_path / "trusted_keys"
    file.write_text("".join(f"{read_signer(one).public.line}\n" for one in keys))
    return Signing("require", trusted=file)


def test_signatures_come_along_and_count(tmp_path: Path, key: Path) -> None:
    bundle = signed_bundle(tmp_path, key)
    signing = trusting(tmp_path, key)
    done = take(bundle, DiskStore(tmp_path / "to", create=True, signing=signing))
    assert done.signatures == 2
    reader = DiskStore(tmp_path / "to", signing=signing)
    for ref in reader.refs():
        reader.check_signed(ref, reader.read_manifest(ref.manifest))
    assert exported(reader, tmp_path / "again") == bundle.read_bytes()


def test_what_no_trusted_key_signed_is_not_imported(
    bundle: Path, tmp_path: Path, key: Path
) -> None:
    other = tmp_path / "other"
    other.touch(0o600)
    other.write_bytes(new_key())
    signing = trusting(tmp_path, other)
    for file, kind in (
        (bundle, "signature_missing"),
        (signed_bundle(tmp_path, key), "unknown_key"),
    ):
        store = DiskStore(tmp_path / kind, create=True, signing=signing)
        with pytest.raises(UnsignedPackageError) as raised:
            take(file, store)
        assert kind in raised.value.kind
        assert targets(tmp_path / kind) == []


def test_what_comes_from_elsewhere_is_never_signed_here(
    bundle: Path, tmp_path: Path, key: Path
) -> None:
    """Whoever signs says that a package may run; that is not for an import to say."""
    store = DiskStore(tmp_path / "to", create=True, signing=Signing("off", key=key))
    take(bundle, store)
    assert targets(tmp_path / "to") == ["decoder", "encoder"]
    assert [store.signatures(ref.manifest) for ref in store.refs()] == [None, None]


def test_signatures_that_are_none_are_no_signatures(tmp_path: Path, key: Path) -> None:
    store = two_packages(tmp_path / "from")
    for ref in store.refs():
        store.sign(ref, key)
        path = store.layout.signatures(ref.manifest)
        path.chmod(0o644)
        path.write_bytes(b"{}")
    exported(store, tmp_path / "bundle")
    take(tmp_path / "bundle", tmp_path / "off")
    assert targets(tmp_path / "off") == ["decoder", "encoder"]
    strict = DiskStore(tmp_path / "strict", create=True, signing=trusting(tmp_path, key))
    with pytest.raises(UnsignedPackageError):
        take(tmp_path / "bundle", strict)
    assert targets(tmp_path / "strict") == []
