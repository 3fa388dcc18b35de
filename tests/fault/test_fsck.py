"""``preheat fsck``: every kind of damage is named, repaired where that is possible, and harms nobody."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preheat.errors import PreheatError, StoreError, UntrustedStoreError
from preheat.manifest import FORMAT, Manifest, Ref, encode, sha256
from preheat.store import DiskStore, build_lock
from preheat.store.examining import examine
from preheat.store.facts import Repair
from preheat.store.files import Files
from preheat.store.keys import signing_of
from preheat.store.layout import FORMAT_TEXT
from preheat.store.repairing import steps
from preheat.store.signatures import new_key
from preheatd.fsck_command import Checked, Checking, checking_of
from preheatd.state import Failure, State
from support.faults import (
    BROKEN,
    NEW,
    OLD,
    FailingFiles,
    Killed,
    QuickFiles,
    die,
    next_call,
    opened,
)
from support.manifests import ENVIRONMENT, manifest_of
from support.packages import proven

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    """A store with two generations of one target; the second one is published."""
    store = opened(tmp_path / "store")
    for content, started_at in ((OLD, "2026-01-01"), (NEW, "2026-01-02")):
        store.put_object(content)
        store.publish(proven(content, started_at))
    return store


def check(store: DiskStore, *, repair: bool = False, fits: bool = False) -> Checked:
    checking: Checking = checking_of(store.layout.root, None, QuickFiles())
    if fits:

        class Fitting(Checking):
            def _fits(self, manifest: Manifest) -> bool:
                return True

        fields = {one.name: getattr(checking, one.name) for one in dataclasses.fields(checking)}
        checking = Fitting(**fields)
    return checking.run(repair=repair)


def kinds(checked: Checked, level: str = "problem") -> set[str]:
    return {one.kind for one in checked.findings if one.level == level}


def new_object(store: DiskStore) -> Path:
    return store.layout.object(sha256(NEW))


def new_manifest(store: DiskStore) -> Path:
    return store.layout.object(sha256(encode(proven(NEW, "2026-01-02"))))


def the_ref(store: DiskStore) -> Path:
    return store.layout.ref("model", ENVIRONMENT)


def overwrite(path: Path, data: bytes) -> None:
    mode = path.stat().st_mode & 0o777
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(mode)


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


WAYS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: overwrite(path, b""),
    "truncated": lambda path: overwrite(path, path.read_bytes()[:-1]),
    "flipped": lambda path: overwrite(path, b"?" + path.read_bytes()[1:]),
    "random": lambda path: overwrite(path, bytes(range(256)) * 4),
    "link": replaced_by(lambda path: path.symlink_to("/etc/hostname")),
    "fifo": replaced_by(os.mkfifo),
    "directory": replaced_by(lambda path: path.mkdir()),
    "writable by all": lambda path: path.chmod(0o666),
    "gone": lambda path: path.unlink(),
}
FILES: dict[str, Callable[[DiskStore], Path]] = {
    "object": new_object,
    "manifest": new_manifest,
    "ref": the_ref,
}


@pytest.mark.parametrize("fits", [True, False], ids=["earlier fits", "nothing fits"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("which", FILES)
def test_each_damage_of_each_file_is_named_and_repaired(
    store: DiskStore, which: str, way: str, fits: bool
) -> None:
    path = FILES[which](store)
    WAYS[way](path)
    if (which, way) == ("ref", "gone"):
        assert kinds(check(store)) == set()  # a target that was never built looks the same
        return
    before = check(store)
    assert before.exit_code == (5 if way == "writable by all" else 3), before
    assert all(one.detail and one.fix for one in before.findings if one.level == "problem")
    assert any(
        one.place == str(path.relative_to(store.layout.root)) for one in before.findings
    ) or (way == "gone")
    repaired = check(store, repair=True, fits=fits)
    assert repaired.exit_code == 0, repaired
    assert not any(one.trouble for one in repaired.repairs)
    package = DiskStore(store.layout.root).read_package("model", ENVIRONMENT)
    if fits:
        # A damaged ref is all that is wrong: then the newest package is whole.
        kept = proven(NEW, "2026-01-02") if which == "ref" else proven(OLD, "2026-01-01")
        assert package is not None
        assert package[1] == kept
        if which != "ref":
            assert package[0].generation == 3
    else:
        assert package is None
    if way != "gone":  # nothing is lost: what was damaged can be looked at
        assert "quarantined" in kinds(repaired, "note")
    opened(store.layout.root).put_object(NEW)
    assert opened(store.layout.root).publish(proven(NEW)).generation >= 1
    assert check(store).exit_code == 0


def test_a_whole_store_is_whole(store: DiskStore) -> None:
    checked = check(store)
    assert checked.exit_code == 0
    assert kinds(checked, "note") == {"orphans"}  # the generation before
    assert check(store, repair=True).repairs == ()
    assert (checked.objects, checked.refs) == (4, 1)


def misplace_object(store: DiskStore) -> None:
    path = new_object(store)
    other = store.layout.objects / "zz" / path.name
    other.parent.mkdir()
    path.rename(other)


def misplace_ref(store: DiskStore) -> None:
    (store.layout.refs / "other").mkdir()
    the_ref(store).rename(store.layout.refs / "other" / "x.json")


def publish_unproven(store: DiskStore) -> None:
    store.publish(manifest_of(NEW))


def foreign_manifest(store: DiskStore) -> None:
    """A ref that names the manifest of another target."""
    digest, _ = store.put_object(encode(manifest_of(NEW, target="another")))
    rewrite_ref(store, manifest=digest)


def rewrite_ref(store: DiskStore, **fields: Any) -> None:
    ref = msgspec.json.decode(the_ref(store).read_bytes(), type=Ref)
    overwrite(the_ref(store), encode(msgspec.structs.replace(ref, **fields)))


def other_ref_format(store: DiskStore) -> None:
    rewrite_ref(store, format=99)


def other_manifest_format(store: DiskStore) -> None:
    data = encode(proven(NEW)).replace(f'"format":{FORMAT}'.encode(), b'"format":99', 1)
    digest, _ = store.put_object(data)
    rewrite_ref(store, manifest=digest)


def half_format(store: DiskStore) -> None:
    overwrite(store.layout.format_file, FORMAT_TEXT[:5])


def no_format(store: DiskStore) -> None:
    store.layout.format_file.unlink()


def block_directory(store: DiskStore) -> None:
    taken = {path.name for path in store.layout.objects.iterdir()}
    free = next(name for number in range(256) if (name := f"{number:02x}") not in taken)
    (store.layout.objects / free).write_bytes(b"")


def wrong_mode(store: DiskStore) -> None:
    new_object(store).chmod(0o600)


def old_temporary(store: DiskStore) -> None:
    path = store.layout.temporary / "left"
    path.write_bytes(b"half")
    os.utime(path, (0, 0))


def damaged_holder(store: DiskStore) -> None:
    store.layout.lock_holder("model", ENVIRONMENT).write_bytes(b"")


def damaged_record(store: DiskStore) -> None:
    state = State(store.layout.state)
    state.prepare()
    state.remember(Failure(target="model", environment=ENVIRONMENT, kind="build", message=""))
    (path,) = (store.layout.state / "failures").iterdir()
    path.write_bytes(b"")


def damaged_history(store: DiskStore) -> None:
    (store.layout.state / "history.jsonl").write_bytes(b'{"at": "", "event"\n')


CASES: list[tuple[Callable[[DiskStore], object], str, str, str]] = [
    # what happened, the finding, its level, what is left of it after a repair
    (misplace_object, "object_misplaced", "problem", ""),
    (misplace_ref, "ref_misplaced", "problem", ""),
    (publish_unproven, "unproven", "problem", ""),
    (foreign_manifest, "manifest_foreign", "problem", ""),
    (lambda store: rewrite_ref(store, manifest="0" * 64), "manifest_missing", "problem", ""),
    (lambda store: rewrite_ref(store, manifest=sha256(OLD)), "manifest_damaged", "problem", ""),
    (lambda store: rewrite_ref(store, manifest="../../x"), "ref_damaged", "problem", ""),
    (lambda store: rewrite_ref(store, generation=0), "ref_damaged", "problem", ""),
    (other_ref_format, "other_format", "note", "other_format"),
    (other_manifest_format, "other_format", "note", "other_format"),
    (half_format, "format_damaged", "problem", ""),
    (no_format, "format_missing", "problem", ""),
    (lambda store: store.layout.cachedir_tag.unlink(), "tag_missing", "note", ""),
    (lambda store: store.layout.temporary.rmdir(), "directory_missing", "problem", ""),
    (block_directory, "not_a_directory", "problem", ""),
    (wrong_mode, "object_mode", "note", ""),
    (old_temporary, "leftover", "note", ""),
    (damaged_holder, "holder_damaged", "note", ""),
    (damaged_record, "record_damaged", "note", ""),
    (damaged_history, "history_damaged", "note", "history_damaged"),
    (
        lambda store: (store.layout.objects / "README").write_bytes(b""),
        "unknown",
        "note",
        "unknown",
    ),
    (lambda store: (store.layout.root / "x").mkdir(), "unknown", "note", "unknown"),
    (lambda store: (store.layout.refs / "model/x").write_bytes(b""), "unknown", "note", "unknown"),
    (
        lambda store: store.quarantine_object(sha256(OLD), reason="looked odd"),
        "quarantined",
        "note",
        "quarantined",
    ),
]


@pytest.mark.parametrize(
    ("damage", "kind", "level", "left"),
    CASES,
    ids=[f"{kind}-{number}" for number, (_, kind, *_) in enumerate(CASES)],
)
def test_everything_else_that_can_be_wrong(
    store: DiskStore, damage: Callable[[DiskStore], object], kind: str, level: str, left: str
) -> None:
    damage(store)
    checked = check(store)
    (finding,) = (one for one in checked.findings if one.kind == kind)
    assert finding.level == level
    assert checked.exit_code == (3 if level == "problem" else 0)
    repaired = check(store, repair=True, fits=True)
    assert repaired.exit_code == 0, repaired
    after = kinds(repaired, "note") | kinds(repaired)
    assert (kind in after) == bool(left)
    again = check(store, repair=True, fits=True)
    assert again.repairs == ()  # a second time there is nothing to do
    if level == "note" and kind not in ("other_format",):
        assert opened(store.layout.root).read_package("model", ENVIRONMENT) is not None


def test_the_reason_in_a_quarantine_is_shown(store: DiskStore) -> None:
    store.quarantine_object(sha256(OLD), reason="looked odd")
    (finding,) = (one for one in check(store).findings if one.kind == "quarantined")
    assert "looked odd" in finding.detail
    note = next(path for path in store.layout.quarantine.iterdir() if path.suffix == ".note")
    overwrite(note, b"")
    (finding,) = (one for one in check(store).findings if one.kind == "quarantined")
    assert "no note" in finding.detail


def test_a_store_of_another_format_and_no_store_at_all_are_refused(store: DiskStore) -> None:
    overwrite(store.layout.format_file, b"preheat store 99\n")
    for repair in (False, True):
        with pytest.raises(StoreError, match="another format"):
            check(store, repair=repair)
    with pytest.raises(StoreError, match="There is no store"):
        checking_of(store.layout.root.parent / "nowhere", None).run(repair=True)


def test_nothing_is_taken_away_where_it_is_not_known_whose_it_is(store: DiskStore) -> None:
    WAYS["empty"](new_object(store))
    store.layout.objects.chmod(0o777)
    checked = check(store)
    assert checked.exit_code == 5
    with pytest.raises(UntrustedStoreError, match="Nothing was repaired"):
        check(store, repair=True)
    assert new_object(store).exists()


def test_without_repair_nothing_is_written(store: DiskStore) -> None:
    for way, which in (("empty", new_object), ("fifo", the_ref)):
        WAYS[way](which(store))
    before = sorted((path, path.lstat().st_mtime_ns) for path in store.layout.root.rglob("*"))

    class ReadOnly(QuickFiles):
        """As on a read-only file system."""

    for name in ("create", "replace", "unlink", "mkdir", "chmod", "fchmod", "touch"):
        setattr(ReadOnly, name, lambda *_: pytest.fail("a change"))
    checked = checking_of(store.layout.root, None, ReadOnly()).run(repair=False)
    assert checked.exit_code == 3
    after = sorted((path, path.lstat().st_mtime_ns) for path in store.layout.root.rglob("*"))
    assert before == after


def test_large_objects_are_not_kept_in_memory(store: DiskStore) -> None:
    large = store.layout.root.parent / "large"
    with large.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    store.put_object(large)
    tracemalloc.start()
    assert check(store).exit_code == 0
    assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    tracemalloc.stop()


def test_a_ref_whose_target_is_being_built_is_left_alone(store: DiskStore) -> None:
    WAYS["empty"](new_object(store))
    with build_lock(store.layout.root, "model", ENVIRONMENT):
        checked = check(store, repair=True)
    (busy,) = (one for one in checked.repairs if one.trouble)
    assert "is being built by" in busy.trouble
    assert the_ref(store).exists()
    assert check(store, repair=True).exit_code == 0


def test_what_was_mended_between_the_look_and_the_repair_is_left_alone(store: DiskStore) -> None:
    WAYS["empty"](new_object(store))
    checking = checking_of(store.layout.root, None, QuickFiles())
    facts, found = checking._look()
    assert {one.kind for one in found if one.level == "problem"} == {
        "object_damaged",
        "object_missing",
    }
    store.put_object(NEW)  # a build replaces it
    assert checking._repair(facts, found) == ()
    package = store.read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] == proven(NEW, "2026-01-02")


def test_an_object_that_was_replaced_in_the_very_moment_is_put_back(store: DiskStore) -> None:
    path = new_object(store)
    WAYS["empty"](path)

    class Late(QuickFiles):
        """A writer replaces the damaged object right before it is moved away."""

        def replace(self, source: Path | str, destination: Path | str, **where: Any) -> None:
            if source == path.name:
                store.put_object(NEW)
            super().replace(source, destination, **where)

    checked = checking_of(store.layout.root, None, Late()).run(repair=True)
    assert checked.exit_code == 0
    assert path.read_bytes() == NEW


@pytest.mark.parametrize(("instead", "once"), [(BROKEN, True), (die, False)])
def test_a_repair_that_goes_wrong_at_any_call_harms_nothing(
    tmp_path: Path, instead: Callable[[str], None], once: bool
) -> None:
    """The old package is what a reader gets before and after, and the next repair succeeds."""
    broken = opened(tmp_path / "before" / "store")
    for content in (OLD, NEW):
        broken.put_object(content)
    broken.publish(proven(OLD))
    overwrite(new_object(broken), b"")
    damaged_holder(broken)
    broken.layout.cachedir_tag.unlink()
    number, reached = 0, True
    while reached:
        number = next_call(number)
        root = tmp_path / str(number) / "store"
        shutil.copytree(tmp_path / "before", root.parent)
        files = FailingFiles(number, instead, once=once)
        with contextlib.suppress(PreheatError, Killed):
            checking_of(root, None, files).run(repair=True)
        reached = files.count >= number
        package = DiskStore(root, files=QuickFiles()).read_package("model", ENVIRONMENT)
        assert package is not None
        assert package[1] == proven(OLD)
        after = opened(root)
        assert check(after, repair=True).exit_code == 0
        after.sweep_temporary()
        assert list(after.layout.temporary.iterdir()) == []
        shutil.rmtree(root.parent)
    assert number > 50


def test_writers_and_readers_go_on_while_a_store_is_repaired(store: DiskStore) -> None:
    """Nobody meets an error but for what was damaged before, and no publication is lost."""
    stop, troubles = threading.Event(), list[BaseException]()
    contents = [f"content {number}".encode() * 500 for number in range(4)]

    def write() -> None:
        own = opened(store.layout.root)
        for number in range(10**6):
            if stop.is_set():
                return
            content = contents[number % len(contents)]
            try:
                own.put_object(content)
                with build_lock(store.layout.root, "model", ENVIRONMENT):
                    own.publish(proven(content))
            except PreheatError as error:
                if "is being built" not in str(error):
                    troubles.append(error)

    def read() -> None:
        reader = DiskStore(store.layout.root)
        while not stop.is_set():
            try:
                package = reader.read_package("model", ENVIRONMENT)
                assert package is not None
                for needed in package[1].objects():
                    reader.open_object(needed).close()
            except (PreheatError, AssertionError) as error:
                troubles.append(error)

    threads = [threading.Thread(target=work) for work in (write, read)]
    for thread in threads:
        thread.start()
    try:
        for number in range(15):
            store.put_object(f"orphan {number}".encode())
            overwrite(store.layout.object(sha256(f"orphan {number}".encode())), b"")
            # The real calls: these know that the process of the writer's temporary files is alive.
            checked = checking_of(store.layout.root, None, Files()).run(repair=True)
            assert all("withdrawn" not in one.done for one in checked.repairs), checked
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert troubles == []


def test_findings_are_data_that_says_what_where_and_what_to_do(store: DiskStore) -> None:
    WAYS["empty"](new_object(store))
    facts = checking_of(store.layout.root, None).inspector.inspect()
    found = {one.kind: one for one in examine(facts)}
    assert found["object_damaged"].repair is Repair.QUARANTINE
    ref = found["object_missing"]
    assert (ref.target, ref.environment) == ("model", ENVIRONMENT)
    assert "warm" in ref.fix
    assert isinstance(checking_of(store.layout.root, None).files, Files)


SIGNATURE_WAYS = {way: WAYS[way] for way in WAYS if way != "gone"}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    place = tmp_path / "key"
    place.touch(0o600)
    place.write_bytes(new_key())
    return place


def the_signatures(store: DiskStore, key: Path) -> Path:
    ref = store.read_ref("model", ENVIRONMENT)
    assert ref is not None
    store.sign(ref, key)
    return store.layout.signatures(ref.manifest)


@pytest.mark.parametrize("way", SIGNATURE_WAYS)
def test_damaged_signatures_are_named_and_put_away(store: DiskStore, key: Path, way: str) -> None:
    path = the_signatures(store, key)
    assert check(store).findings == check(store, repair=True).findings
    assert "unknown" not in kinds(check(store), "note")
    SIGNATURE_WAYS[way](path)
    assert kinds(check(store)) == {"signatures_damaged"}
    assert check(store, repair=True).exit_code == 0
    assert not path.exists()
    ref = store.read_ref("model", ENVIRONMENT)
    assert ref is not None
    store.sign(ref, key)
    assert check(store).exit_code == 0


def test_signatures_that_were_made_anew_meanwhile_stay(store: DiskStore, key: Path) -> None:
    path = the_signatures(store, key)
    whole = path.read_bytes()
    overwrite(path, b"")
    checking = checking_of(store.layout.root, None, QuickFiles())
    facts = checking.inspector.inspect()
    finding = next(one for one in examine(facts) if one.kind == "signatures_damaged")
    overwrite(path, whole)
    step = steps(facts, (finding,), [])[0]
    assert checking._mender(facts).mend(step) == ""
    assert path.read_bytes() == whole


def test_signatures_of_a_manifest_that_is_gone_are_a_note(store: DiskStore, key: Path) -> None:
    the_signatures(store, key)
    new_manifest(store).unlink()
    assert "signatures_alone" in kinds(check(store), "note")


def test_only_a_package_that_was_signed_is_gone_back_to(
    store: DiskStore, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREHEAT_SIGNING_KEY", str(key))  # which signs what is published
    overwrite(new_object(store), b"")
    assert check(store, repair=True, fits=True).exit_code == 0
    assert DiskStore(store.layout.root).read_package("model", ENVIRONMENT) is None

    store.put_object(OLD)
    signed = DiskStore(store.layout.root, create=True, signing=signing_of(os.environ))
    signed.publish(proven(OLD, "2026-01-01"))
    store.put_object(NEW)
    store.publish(proven(NEW, "2026-01-03"))
    overwrite(new_object(store), b"")
    assert check(store, repair=True, fits=True).exit_code == 0
    package = DiskStore(store.layout.root).read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] == proven(OLD, "2026-01-01")
