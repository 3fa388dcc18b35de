"""Hostile files: how each is made, in a copy of a whole store, and the reason by which it is refused.

A row damages a store in which the target ``program`` has a signed package. ``kind`` is the reason that a
worker gives for not loading it, ``verdict`` its verdict, ``words`` what the reason says. The workers of a row
that is not ``signed`` trust no keys, and ask for no signature.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.image.format import _HEADER, _MAGIC
from preheat.image.format import FORMAT as IMAGE_FORMAT
from preheat.manifest import Manifest, ObjectRef, Ref, encode, sha256
from preheat.store import DiskStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MARK = "hostile-code-ran"


class Attacked:
    """A copy of the store, and what an attacker who can write to it may want to change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = DiskStore(root)
        self.layout = self.store.layout
        (self.ref,) = self.store.refs("program")
        self.manifest = self.store.read_manifest(self.ref.manifest)
        self.ref_path = self.layout.ref("program", self.ref.environment)
        self.manifest_path = self.layout.object(self.ref.manifest)
        self.signatures_path = self.layout.signatures(self.ref.manifest)

    def part(self, form: str, name: str) -> ObjectRef:
        found = self.manifest.form(form)
        assert found is not None
        return next(one for one in found.objects if one.name.startswith(name))

    def object_path(self, form: str, name: str) -> Path:
        return self.layout.object(self.part(form, name).sha256)

    def replace(self, path: Path, data: bytes) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(0o444)

    def put(self, data: bytes) -> str:
        """An object with its right name, as somebody may put it who can write here."""
        path = self.layout.object(sha256(data))
        path.parent.mkdir(exist_ok=True)
        self.replace(path, data)
        return sha256(data)

    def point_to(self, manifest: Manifest) -> None:
        """A whole and consistent package of the attacker's, without a signature."""
        self.change_ref(manifest=self.put(encode(manifest)))

    def change_ref(self, **changes: Any) -> None:
        changed: Ref = msgspec.structs.replace(self.ref, **changes)
        self.replace(self.ref_path, encode(changed))

    def with_objects(self, change: Callable[[ObjectRef], ObjectRef]) -> Manifest:
        """The manifest with the objects of each form changed."""
        forms = tuple(
            msgspec.structs.replace(form, objects=tuple(map(change, form.objects)))
            for form in self.manifest.forms
        )
        return msgspec.structs.replace(self.manifest, forms=forms)

    def with_content(self, name: str, data: bytes) -> None:
        """A consistent package in which every object of this name has other bytes."""
        digest = self.put(data)

        def change(one: ObjectRef) -> ObjectRef:
            if one.name != name:
                return one
            return ObjectRef(name=one.name, sha256=digest, size=len(data))

        self.point_to(self.with_objects(change))


@dataclasses.dataclass(frozen=True)
class Row:
    """One hostile file."""

    name: str
    make: Callable[[Attacked], None]
    verdict: str
    kind: str
    words: str
    signed: bool = False  # the worker has trusted keys
    form: str | None = None
    root_only: bool = False


def _image(body: bytes, length: int | None = None, number: int = IMAGE_FORMAT) -> bytes:
    size = len(body) if length is None else length
    return _HEADER.pack(_MAGIC, number, size, hashlib.sha256(body).digest()) + body


def _hostile_pickle() -> bytes:
    # Executed by whoever unpickles it: os.mkdir("hostile-code-ran")
    return b"cos\nmkdir\n(V" + MARK.encode() + b"\ntR."


def _link(path: Path) -> None:
    kept = path.with_name("kept")
    path.rename(kept)
    path.symlink_to(kept)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _sparse(path: Path) -> None:
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o444)


def _stranger(path: Path) -> None:
    os.chown(path, 54321, -1)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(bytes(data))
    path.chmod(0o444)


def _signature(attacked: Attacked, **changes: Any) -> None:
    found = msgspec.json.decode(attacked.signatures_path.read_bytes())
    found["signatures"][0].update(changes)
    attacked.replace(attacked.signatures_path, msgspec.json.encode(found))


_DEEP_JSON = b'{"format": 1, "target": ' + b"[" * 30_000
_DEEP_MSGPACK = b"\x91" * 1_000_000  # a list in a list in a list ...
_HUGE_MSGPACK = b"\xdd\xff\xff\xff\xff"  # a list that promises four thousand million items

CORRUPTED, UNTRUSTED = "package_corrupted", "store_untrusted"
TABLE = (
    # refs
    Row("ref-no-json", lambda a: a.replace(a.ref_path, b"\x80\x04."), "MISSING", CORRUPTED, "JSON"),
    Row("ref-empty", lambda a: a.replace(a.ref_path, b""), "MISSING", CORRUPTED, "truncated"),
    Row("ref-deep", lambda a: a.replace(a.ref_path, _DEEP_JSON), "MISSING", CORRUPTED, "target"),
    Row(
        "ref-deep-unknown",
        lambda a: a.replace(a.ref_path, b'{"format": 1, "more": ' + b'{"a":' * 10_000),
        "MISSING",
        CORRUPTED,
        "unknown field",
    ),
    Row("ref-large", lambda a: a.replace(a.ref_path, b" " * 70_000), "MISSING", CORRUPTED, "limit"),
    Row("ref-sparse", lambda a: _sparse(a.ref_path), "MISSING", CORRUPTED, "limit"),
    Row(
        "ref-huge-number",
        lambda a: a.replace(
            a.ref_path, encode(a.ref).replace(b'"generation":1', b'"generation":' + b"9" * 9_999)
        ),
        "MISSING",
        CORRUPTED,
        "generation",
    ),
    Row(
        "ref-of-another-target",
        lambda a: a.change_ref(target="other"),
        "MISSING",
        CORRUPTED,
        "another target",
    ),
    Row(
        "ref-that-leaves-the-store",
        lambda a: a.change_ref(manifest="../" * 20 + "etc/passwd"),
        "MISSING",
        CORRUPTED,
        "names no manifest",
    ),
    Row("ref-link", lambda a: _link(a.ref_path), "UNTRUSTED", UNTRUSTED, "symbolic link"),
    Row("ref-fifo", lambda a: _fifo(a.ref_path), "UNTRUSTED", UNTRUSTED, "regular file"),
    Row("ref-directory", lambda a: _directory(a.ref_path), "UNTRUSTED", UNTRUSTED, "regular file"),
    Row(
        "ref-writable",
        lambda a: a.ref_path.chmod(0o646),
        "UNTRUSTED",
        UNTRUSTED,
        "writable by everybody",
    ),
    Row(
        "refs-writable",
        lambda a: a.layout.refs.chmod(0o775),
        "UNTRUSTED",
        UNTRUSTED,
        "writable by its group",
    ),
    Row(
        "ref-of-a-stranger",
        lambda a: _stranger(a.ref_path),
        "UNTRUSTED",
        UNTRUSTED,
        "uid 54321",
        root_only=True,
    ),
    Row(
        "root-of-a-stranger",
        lambda a: _stranger(a.root),
        "UNTRUSTED",
        UNTRUSTED,
        "uid 54321",
        root_only=True,
    ),
    # manifests
    Row("manifest-changed", lambda a: _flip(a.manifest_path), "MISSING", CORRUPTED, "digest"),
    Row("manifest-link", lambda a: _link(a.manifest_path), "UNTRUSTED", UNTRUSTED, "symbolic link"),
    Row("manifest-sparse", lambda a: _sparse(a.manifest_path), "MISSING", CORRUPTED, "limit"),
    Row(
        "manifest-deep",
        lambda a: a.change_ref(manifest=a.put(b'{"live": ' + b"[" * 5_000_000)),
        "MISSING",
        CORRUPTED,
        "live",
    ),
    Row(
        "manifest-of-later-days",
        lambda a: a.change_ref(manifest=a.put(b'{"format": 999, "soul": 1}')),
        "MISSING",
        "other_format",
        "999",
    ),
    Row(
        "manifest-that-leaves-the-store",
        lambda a: a.point_to(
            a.with_objects(lambda one: msgspec.structs.replace(one, sha256="../" * 21 + "x"))
        ),
        "MISSING",
        CORRUPTED,
        "name of an object",
    ),
    Row(
        "manifest-of-another-target",
        lambda a: a.point_to(msgspec.structs.replace(a.manifest, target="other")),
        "MISSING",
        CORRUPTED,
        "another target",
    ),
    Row(
        "manifest-without-proof",
        lambda a: a.point_to(msgspec.structs.replace(a.manifest, proof=None)),
        "STALE",
        "not_proven",
        "",
    ),
    # objects
    Row(
        "object-changed",
        lambda a: _flip(a.object_path("dynamo", "payload")),
        "MISSING",
        CORRUPTED,
        "digest",
        form="dynamo",
    ),
    Row(
        "object-that-is-a-pickle-of-the-attackers",
        lambda a: a.replace(a.object_path("dynamo", "payload"), _hostile_pickle()),
        "MISSING",
        CORRUPTED,
        "the manifest says",
        form="dynamo",
    ),
    Row(
        "object-sparse",
        lambda a: _sparse(a.object_path("lean", "image")),
        "MISSING",
        CORRUPTED,
        "the manifest says",
        form="lean",
    ),
    Row(
        "object-link",
        lambda a: _link(a.object_path("lean", "image")),
        "UNTRUSTED",
        UNTRUSTED,
        "symbolic link",
        form="lean",
    ),
    Row(
        "kernel-fifo",
        lambda a: _fifo(a.object_path("lean", "kernel")),
        "UNTRUSTED",
        UNTRUSTED,
        "regular file",
        form="lean",
    ),
    # images, in packages that are consistent otherwise
    Row(
        "image-no-image",
        lambda a: a.with_content("image", b"\x7fELF" + bytes(200)),
        "MISSING",
        CORRUPTED,
        "no image",
        form="lean",
    ),
    Row(
        "image-short",
        lambda a: a.with_content("image", _MAGIC),
        "MISSING",
        CORRUPTED,
        "shorter",
        form="lean",
    ),
    Row(
        "image-of-later-days",
        lambda a: a.with_content("image", _image(b"", number=999)),
        "MISSING",
        CORRUPTED,
        "format 999",
        form="lean",
    ),
    Row(
        "image-long",
        lambda a: a.with_content("image", _image(b"x", length=1 << 62)),
        "MISSING",
        CORRUPTED,
        "not those that were written",
        form="lean",
    ),
    Row(
        "image-deep",
        lambda a: a.with_content("image", _image(_DEEP_MSGPACK)),
        "MISSING",
        CORRUPTED,
        "does not decode",
        form="lean",
    ),
    Row(
        "image-bomb",
        lambda a: a.with_content("image", _image(_HUGE_MSGPACK)),
        "MISSING",
        CORRUPTED,
        "does not decode",
        form="lean",
    ),
    # the store itself
    Row(
        "format-other",
        lambda a: a.replace(a.layout.format_file, b"preheat store 999\n"),
        "MISSING",
        "load_failed",
        "another format",
    ),
    Row("format-sparse", lambda a: _sparse(a.layout.format_file), "MISSING", CORRUPTED, "limit"),
    Row(
        "format-link",
        lambda a: _link(a.layout.format_file),
        "UNTRUSTED",
        UNTRUSTED,
        "symbolic link",
    ),
    # packages that nobody whom the worker trusts has signed
    Row(
        "unsigned-pickle",
        lambda a: a.with_content("payload", _hostile_pickle()),
        "UNTRUSTED",
        "signature_missing",
        "is not signed",
        signed=True,
        form="dynamo",
    ),
    Row(
        "unsigned",
        lambda a: a.signatures_path.unlink(),
        "UNTRUSTED",
        "signature_missing",
        "is not signed",
        signed=True,
    ),
    Row(
        "signature-of-a-stranger",
        lambda a: _signature(a, key="0" * 32),
        "UNTRUSTED",
        "signature_unknown_key",
        "0" * 32,
        signed=True,
    ),
    Row(
        "signature-changed",
        lambda a: _signature(a, signed_at="2999-01-01T00:00:00.000+00:00"),
        "UNTRUSTED",
        "signature_wrong",
        "something else",
        signed=True,
    ),
    Row(
        "signature-deep",
        lambda a: a.replace(a.signatures_path, _DEEP_JSON),
        "UNTRUSTED",
        "signature_damaged",
        "target",
        signed=True,
    ),
    Row(
        "signature-large",
        lambda a: _sparse(a.signatures_path),
        "UNTRUSTED",
        "signature_damaged",
        "limit",
        signed=True,
    ),
    Row(
        "signature-link",
        lambda a: _link(a.signatures_path),
        "UNTRUSTED",
        UNTRUSTED,
        "symbolic link",
        signed=True,
    ),
)

# Files of trusted keys: content, mode, what the worker says.
KEY_FILES = {
    "no-key": (b"-----BEGIN OPENSSH PRIVATE KEY-----\n", 0o644, "no key of the kind"),
    "short-key": (b"ed25519 AAAA\n", 0o644, "no key of 32 bytes"),
    "no-text": (b"\xff\xfe\x00", 0o644, "is no text"),
    "large": (b"#" * 70_000, 0o644, "limit"),
    "writable": (b"", 0o666, "writable by everybody"),
    "empty": (b"", 0o644, "No key is trusted"),
}

# Configurations that a worker meets when it looks for its store, and what it says.
CONFIGURATIONS = {
    "deep-array": (b"store = " + b"[" * 100_000, "nested too deeply"),
    "deep-key": (b"a." * 100_000 + b"store = 1", "more than 32 parts"),
    "large": (b"store = '" + b"x" * 2_000_000 + b"'", "limit"),
    "huge-number": (b"jobs = " + b"9" * 10_000, "digits"),
    "no-text": (b"store = '\xff'", "utf-8"),
    "no-string": (b"store = {a = 1}", "must be a path"),
}

# Requests to the control socket: method, path, body, the status of the answer.
REQUESTS: dict[str, tuple[str, str, bytes, int]] = {
    "deep-body": ("POST", "/v1/kick", b'{"targets": ' + b"[" * 50_000, 400),
    "deep-unknown": ("POST", "/v1/pause", b'{"more": ' + b'{"a": ' * 8_000, 400),
    "large-body": ("POST", "/v1/pause", b'{"detail": "' + b"x" * 100_000 + b'"}', 413),
    "no-text": ("POST", "/v1/pause", b'{"detail": "\xff"}', 400),
    "huge-number": ("POST", "/v1/kick", b'{"rebuild": ' + b"9" * 50_000 + b"}", 400),
    "leaves-its-path": ("GET", "/v1/explain/..%2f..%2fetc%2fpasswd", b"", 404),
    "unknown-method": ("DELETE", "/v1/status", b"", 405),
    "number-of-entries": ("GET", "/v1/history?count=1e308", b"", 400),
    "not-a-number": ("GET", "/v1/wait?timeout=nan", b"", 400),
    "long-path": ("GET", "/" + "x" * 100_000, b"", 400),
}
