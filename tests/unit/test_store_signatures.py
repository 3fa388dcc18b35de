"""Signatures over packages: who may sign, what a signature covers, and every way in which one is wrong."""

from __future__ import annotations

import base64
import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.errors import (
    ConfigurationError,
    PreheatError,
    UnsignedPackageError,
    UntrustedStoreError,
)
from preheat.manifest import encode
from preheat.store import DiskStore
from preheat.store.files import Files
from preheat.store.keys import Signing, read_signer, read_trusted, signing_of
from preheat.store.signatures import (
    PREFIX,
    PublicKey,
    Signatures,
    Statement,
    decode_signatures,
    new_key,
    parse_keys,
    signer_of,
)
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.manifest import Manifest, Ref


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PREHEAT_TRUSTED_KEYS", "PREHEAT_SIGNING_KEY", "PREHEAT_SIGNATURES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def make_key(path: Path) -> PublicKey:
    path.write_bytes(new_key())
    path.chmod(0o600)
    return read_signer(path).public


def trust(path: Path, *keys: PublicKey) -> None:
    path.write_text("".join(f"{key.line}\n" for key in keys))
    path.chmod(0o644)


class Place:
    """A store with one package that was signed with ``key``, and a file that trusts it."""

    def __init__(self, root: Path) -> None:
        self.key = root / "key"
        self.public = make_key(self.key)
        self.trusted = root / "trusted"
        trust(self.trusted, self.public)
        self.root = root / "store"
        self.writer = DiskStore(
            self.root, create=True, signing=Signing("require", self.trusted, self.key)
        )
        self.writer.put_object(b"content")
        self.ref = self.writer.publish(manifest_of(b"content"))
        self.file = self.writer.layout.signatures(self.ref.manifest)

    def read(self) -> tuple[Ref, Manifest]:
        """As a worker reads it."""
        store = DiskStore(self.root, signing=Signing("require", self.trusted))
        package = store.read_package("model", ENVIRONMENT)
        assert package is not None
        store.check_signed(*package)
        return package

    def refusal(self) -> str:
        with pytest.raises(UnsignedPackageError) as raised:
            self.read()
        return raised.value.kind

    def rewrite(self, **changes: object) -> None:
        """Change the one signature."""
        found = decode_signatures(self.file.read_bytes(), self.ref.manifest, "")
        one = msgspec.structs.replace(found.signatures[0], **changes)
        self.replace(encode(msgspec.structs.replace(found, signatures=(one,))))

    def replace(self, data: bytes) -> None:
        self.file.unlink(missing_ok=True)
        self.file.write_bytes(data)
        self.file.chmod(0o444)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_signed_package_is_read_and_published_again_without_another_signature(
    place: Place,
) -> None:
    assert place.read()[1] == manifest_of(b"content")
    before = place.file.read_bytes()
    place.writer.publish(manifest_of(b"content"))
    assert place.file.read_bytes() == before
    assert place.file.stat().st_mode & 0o777 == 0o444


def test_a_package_without_a_signature_is_refused(place: Place) -> None:
    place.file.unlink()
    assert place.refusal() == "signature_missing"


def test_another_package_under_the_same_name_is_refused(place: Place) -> None:
    attacker = DiskStore(place.root, create=True)
    attacker.put_object(b"hostile")
    ref = attacker.publish(manifest_of(b"hostile"))
    assert place.refusal() == "signature_missing"
    # Nor with the signature of the other one, under its name or under its own.
    for digest in (ref.manifest, place.ref.manifest):
        signed = decode_signatures(place.file.read_bytes(), place.ref.manifest, "")
        path = attacker.layout.signatures(ref.manifest)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(msgspec.structs.replace(signed, manifest=digest)))
        path.chmod(0o444)
        kind = "signature_wrong" if digest == ref.manifest else "signature_damaged"
        assert place.refusal() == kind


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"signature": base64.b64encode(bytes(64)).decode()}, "signature_wrong"),
        ({"signature": "AAAA"}, "signature_wrong"),
        ({"signature": "?" * 88}, "signature_wrong"),
        ({"signed_at": "2999-01-01T00:00:00.000+00:00"}, "signature_wrong"),
        ({"key": "0" * 32}, "signature_unknown_key"),
    ],
)
def test_a_signature_that_was_changed_is_refused(
    place: Place, changes: dict[str, object], kind: str
) -> None:
    place.rewrite(**changes)
    assert place.refusal() == kind


def test_a_signature_of_something_else_with_the_same_key_is_refused(place: Place) -> None:
    signer = read_signer(place.key)
    statement = Statement(
        target="model", environment=ENVIRONMENT, manifest=place.ref.manifest, signed_at="now"
    )
    body = statement.message().removeprefix(PREFIX)
    for message, kind in ((body, "signature_wrong"), (PREFIX + body, "")):
        made = base64.b64encode(signer._sign(message)).decode()
        place.rewrite(signature=made, signed_at="now")
        if kind:
            assert place.refusal() == kind
        else:
            place.read()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[" * 100_000, b'{"format": 2, "manifest": ""}', b"x" * 70_000]
)
def test_a_damaged_file_of_signatures_is_refused_and_signing_again_repairs_it(
    place: Place, data: bytes
) -> None:
    place.replace(data)
    assert place.refusal() == "signature_damaged"
    assert place.writer.sign(place.ref, place.key)
    place.read()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_what_cannot_be_read_is_no_signature_and_no_key(place: Place) -> None:
    place.file.chmod(0o000)
    assert place.refusal() == "signature_damaged"
    place.trusted.chmod(0o000)
    assert place.refusal() == "signature_damaged"
    place.file.chmod(0o444)
    assert place.refusal() == "keys_not_usable"


class Unreadable(Files):
    """Stands for an account that may not read some files."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open_for_reading(
        self, path: Path | str, *, follow: bool = False, dir_fd: int | None = None
    ) -> int:
        if str(path).endswith(self.name):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return super().open_for_reading(path, follow=follow, dir_fd=dir_fd)


def test_a_file_of_signatures_that_may_not_be_read_is_no_signature(place: Place) -> None:
    files = Unreadable(f"{place.ref.manifest}.json")
    store = DiskStore(place.root, signing=Signing("require", place.trusted), files=files)
    package = store.read_package("model", ENVIRONMENT)
    assert package is not None
    with pytest.raises(UnsignedPackageError, match="Permission denied") as raised:
        store.check_signed(*package)
    assert raised.value.kind == "signature_damaged"


def test_rotation(place: Place, tmp_path: Path) -> None:
    """A new key signs too; the old one is trusted until it is removed."""
    new = make_key(tmp_path / "new")
    trust(place.trusted, new)
    assert place.refusal() == "signature_unknown_key"
    trust(place.trusted, place.public, new)
    place.read()
    assert place.writer.sign(place.ref, tmp_path / "new")
    assert not place.writer.sign(place.ref, tmp_path / "new")
    trust(place.trusted, new)
    place.read()
    trust(place.trusted, place.public)
    place.read()


def test_levels(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.file.unlink()
    for level, count in (("off", 0), ("warn", 1)):
        store = DiskStore(place.root, signing=Signing(level, place.trusted))  # type: ignore[arg-type]
        package = store.read_package("model", ENVIRONMENT)
        assert package is not None
        store.check_signed(*package)
        assert len(caplog.messages) == count
    assert "is not signed" in caplog.messages[0]


def test_a_reader_does_as_variables_and_known_places_say(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = DiskStore(place.root)
    package = store.read_package("model", ENVIRONMENT)
    assert package is not None
    place.file.unlink()
    store.check_signed(*package)  # nobody asks for it
    monkeypatch.setenv("PREHEAT_TRUSTED_KEYS", str(tmp_path / "nothing"))
    with pytest.raises(UnsignedPackageError) as raised:
        store.check_signed(*package)
    assert raised.value.kind == "keys_not_usable"
    monkeypatch.setenv("PREHEAT_SIGNATURES", "off")
    store.check_signed(*package)
    monkeypatch.setenv("PREHEAT_SIGNATURES", "maybe")
    with pytest.raises(ConfigurationError, match="require, warn or off"):
        store.check_signed(*package)
    monkeypatch.delenv("PREHEAT_SIGNATURES")
    monkeypatch.delenv("PREHEAT_TRUSTED_KEYS")
    (tmp_path / "config" / "preheat").mkdir(parents=True)
    trust(tmp_path / "config" / "preheat" / "trusted_keys", place.public)
    with pytest.raises(UnsignedPackageError):
        store.check_signed(*package)
    monkeypatch.setenv("PREHEAT_SIGNATURES", "require")
    (tmp_path / "config" / "preheat" / "trusted_keys").unlink()
    with pytest.raises(UnsignedPackageError) as raised:
        store.check_signed(*package)
    assert raised.value.kind == "no_trusted_keys"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_private_key_that_others_can_read_is_refused(place: Place, mode: int) -> None:
    place.key.chmod(mode)
    with pytest.raises(UntrustedStoreError, match=str(place.key)):
        read_signer(place.key)
    with pytest.raises(UntrustedStoreError):
        place.writer.publish(manifest_of(b"content", target="another"))
    assert place.writer.read_ref("another", ENVIRONMENT) is None


def test_a_credential_of_the_service_manager_may_be_readable_for_its_group(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = tmp_path / "credentials"
    directory.mkdir()
    key = directory / "preheat-signing-key"
    public = make_key(key)
    key.chmod(0o440)
    with pytest.raises(UntrustedStoreError):
        read_signer(key)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(directory))
    assert read_signer(key).public == public
    signing = signing_of(os.environ)
    assert (signing.level, signing.key) == ("require", key)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_trusted_keys_that_others_can_change_are_refused(place: Place, mode: int) -> None:
    place.trusted.chmod(mode)
    assert place.refusal() == "keys_not_usable"
    place.trusted.chmod(0o644)
    place.trusted.parent.chmod(0o777)
    with pytest.raises(UntrustedStoreError):
        place.read()


def test_a_link_in_the_place_of_keys_is_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(place.trusted)
    with pytest.raises(UntrustedStoreError, match="symbolic link"):
        read_trusted(tmp_path / "link")
    (tmp_path / "private").symlink_to(place.key)
    with pytest.raises(UntrustedStoreError, match="symbolic link"):
        read_signer(tmp_path / "private")


@pytest.mark.parametrize(
    "text",
    [
        "rsa AAAA",
        "ed25519",
        "ed25519 AAAA",
        "ed25519 " + base64.b64encode(bytes(33)).decode(),
        "ed25519 " + base64.b64encode(bytes(32)).decode().replace("A=", "B="),
        "\udcff",
        "\n".join(PublicKey(number.to_bytes(32, "big")).line for number in range(300)),
    ],
)
def test_a_file_that_is_partly_wrong_is_not_used_at_all(text: str) -> None:
    good = PublicKey(bytes(32), "good").line
    data = f"# a comment\n\n{good} # the first\n{text}\n".encode("utf-8", "surrogateescape")
    with pytest.raises(ConfigurationError, match="file"):
        parse_keys(data, "file")


def test_keys_are_read_as_they_are_written() -> None:
    keys = (PublicKey(bytes(32), "the build host"), PublicKey(bytes(range(32))))
    assert parse_keys("\n".join(key.line for key in keys).encode(), "") == keys


@pytest.mark.parametrize(
    "pem", [b"", b"-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----"]
)
def test_what_is_no_private_key_is_refused_without_showing_it(pem: bytes) -> None:
    with pytest.raises(ConfigurationError, match="no Ed25519") as raised:
        signer_of(pem, "file")
    assert "QUJD" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_signer_shows_nothing_of_its_key(place: Place) -> None:
    secret = place.key.read_bytes().splitlines()[1].decode()
    shown = repr(read_signer(place.key))
    assert secret not in shown
    assert "_sign" not in shown


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_any_bytes_as_keys_and_signatures(data: bytes) -> None:
    for attempt in (
        lambda: parse_keys(data, ""),
        lambda: parse_keys(b"ed25519 " + data, ""),
        lambda: decode_signatures(data, "0" * 64, ""),
        lambda: signer_of(data, ""),
    ):
        try:
            attempt()
        except PreheatError:
            pass


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_json_as_signatures(value: object) -> None:
    data = msgspec.json.encode({"format": 1, "manifest": "0" * 64, "signatures": value})
    try:
        assert isinstance(decode_signatures(data, "0" * 64, ""), Signatures)
    except UnsignedPackageError as error:
        assert error.kind == "signature_damaged"


def test_a_reader_without_keys_imports_no_cryptography(place: Place) -> None:
    code = (
        "import sys; from preheat.store import DiskStore\n"
        f"store = DiskStore({str(place.root)!r})\n"
        f"store.check_signed(*store.read_package('model', {ENVIRONMENT!r}))\n"
        "assert not any(name.startswith('cryptography') for name in sys.modules)\n"
        "assert 'preheat.store.signatures' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    environ = {**os.environ, "PREHEAT_TRUSTED_KEYS": str(place.trusted)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environ)
    assert b"AssertionError" in done.stderr
