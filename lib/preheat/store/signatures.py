"""Signatures over manifests: Ed25519, by whoever builds, verified by whoever loads.

A manifest names the sha256 of every object, so a signature over its digest covers the whole package. What is
signed is ``PREFIX`` and the JSON of a ``Statement``; the prefix keeps it from being taken for anything else.
The signatures of a manifest lie beside it (``Layout.signatures``); several keys may sign one manifest.

Not promised: that a package is the newest one. An older package of the same target and environment, signed by
a key that is still trusted, verifies (see ``docs/security.md``).

Needs the library cryptography (``preheat[sign]``), which is imported when something is signed or verified.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.errors import ConfigurationError, UnsignedPackageError
from preheat.limits import decode_json
from preheat.manifest import Digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from preheat.manifest import Ref

FORMAT = 1
PREFIX = b"preheat package signature 1\n"
MAX_SIGNATURES_BYTES = 64 * 1024
MAX_SIGNATURES = 64
MAX_KEYS_BYTES = 64 * 1024
MAX_KEYS = 256
_KIND = "ed25519"
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Statement(_Record, frozen=True, kw_only=True):
    """What is signed: this manifest is a package of this target in this environment."""

    target: str
    environment: Digest
    manifest: Digest
    signed_at: str

    def message(self) -> bytes:
        """The bytes under the signature."""
        return PREFIX + msgspec.json.encode(self, order="deterministic")


class Signature(_Record, frozen=True, kw_only=True):
    """One signature: the id of the key, when it was made (UTC, ISO 8601), and its bytes in base64."""

    key: str
    signed_at: str
    signature: str


class Signatures(_Record, frozen=True, kw_only=True):
    """The file beside a manifest."""

    format: int = FORMAT
    manifest: Digest
    signatures: tuple[Signature, ...] = ()


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """A key that may be trusted. ``name`` is for people."""

    raw: bytes
    name: str = ""

    @property
    def id(self) -> str:
        """32 hexadecimal digits that stand for the key."""
        return hashlib.sha256(self.raw).hexdigest()[:32]

    @property
    def line(self) -> str:
        """The key as a file of trusted keys holds it."""
        return f"{_KIND} {base64.b64encode(self.raw).decode()} {self.name}".rstrip()

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether this key made the signature. Raises ``UnsignedPackageError`` without the library."""
        exceptions, ed25519 = _library()
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (exceptions.InvalidSignature, ValueError):
            return False
        return True


def parse_keys(data: bytes, where: str) -> tuple[PublicKey, ...]:
    """The keys of a file of trusted keys: lines ``ed25519 BASE64 NAME``; ``#`` begins a comment.

    Raises ``ConfigurationError`` that names the line. A file that is partly wrong is not used at all.
    """
    keys: dict[str, PublicKey] = {}
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{where}: is no text: {error.reason}.") from error
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split(None, 2)
        if words:
            key = _parse_key(words, f"{where}: line {number}")
            keys.setdefault(key.id, key)
    if len(keys) > MAX_KEYS:
        raise ConfigurationError(f"{where}: {len(keys)} keys, {MAX_KEYS} are the most.")
    return tuple(keys.values())


def _parse_key(words: list[str], where: str) -> PublicKey:
    remedy = "A line is `ed25519 BASE64 NAME`, as `preheat keys list` prints it."
    if len(words) < 2 or words[0] != _KIND:
        raise ConfigurationError(f"{where} is no key of the kind {_KIND}.", remedy=remedy)
    raw = _decoded(words[1], _KEY_BYTES)
    name = words[2].strip() if len(words) > 2 else ""
    if raw is None or len(name) > 200 or not name.isprintable():
        raise ConfigurationError(f"{where} is no key of {_KEY_BYTES} bytes.", remedy=remedy)
    return PublicKey(raw, name)


def decode_signatures(data: bytes, manifest: Digest, where: str) -> Signatures:
    """The file beside a manifest. Raises ``UnsignedPackageError``."""
    try:
        found = decode_json(data, Signatures, MAX_SIGNATURES_BYTES)
    except msgspec.MsgspecError as error:
        raise UnsignedPackageError(f"{where}: {error}.", kind="signature_damaged") from error
    if found.format != FORMAT or found.manifest != manifest:
        raise UnsignedPackageError(
            f"{where}: is of another format or of another manifest.", kind="signature_damaged"
        )
    if len(found.signatures) > MAX_SIGNATURES:
        raise UnsignedPackageError(
            f"{where}: {len(found.signatures)} signatures, {MAX_SIGNATURES} are the most.",
            kind="signature_damaged",
        )
    return found


def joined(found: Signatures | None, arriving: Signatures) -> Signatures:
    """The signatures of two files beside one manifest; of a key that signed both, the one in ``found``."""
    here = found.signatures if found is not None else ()
    known = {one.key for one in here}
    new = tuple(one for one in arriving.signatures if one.key not in known)
    return Signatures(manifest=arriving.manifest, signatures=(*here, *new)[:MAX_SIGNATURES])


def check(found: Signatures | None, ref: Ref, keys: Iterable[PublicKey]) -> PublicKey:
    """The trusted key that signed the package of ``ref``. Raises ``UnsignedPackageError``: why none did."""
    trusted = {key.id: key for key in keys}
    if not trusted:
        raise UnsignedPackageError("No key is trusted here.", kind="no_trusted_keys")
    if found is None or not found.signatures:
        raise UnsignedPackageError(
            f"The package of {ref.target!r} is not signed.", kind="signature_missing"
        )
    wrong = False
    for one in found.signatures:
        key = trusted.get(one.key)
        signature = _decoded(one.signature, _SIGNATURE_BYTES)
        if key is not None and signature is not None:
            if key.verifies(signature, _statement(ref, one.signed_at).message()):
                return key
        wrong = wrong or key is not None
    if wrong:
        raise UnsignedPackageError(
            f"The signature of the package of {ref.target!r} is wrong: it was made over something else.",
            kind="signature_wrong",
        )
    others = ", ".join(dict.fromkeys(one.key[:32] for one in found.signatures[:4]))
    raise UnsignedPackageError(
        f"The package of {ref.target!r} is signed by keys that are not trusted here: {others}.",
        kind="signature_unknown_key",
    )


@dataclasses.dataclass(frozen=True)
class Signer:
    """Signs with one private key, which is never shown."""

    public: PublicKey
    _sign: Callable[[bytes], bytes] = dataclasses.field(repr=False)

    def sign(self, ref: Ref, signed_at: str) -> Signature:
        """The signature of the package that a ref names."""
        made = self._sign(_statement(ref, signed_at).message())
        return Signature(
            key=self.public.id, signed_at=signed_at, signature=base64.b64encode(made).decode()
        )

    def added_to(self, found: Signatures | None, ref: Ref, signed_at: str) -> Signatures | None:
        """The file with this key's signature in it; None where a good one is there already."""
        before = found.signatures if found is not None else ()
        own = [one for one in before if one.key == self.public.id]
        if own and found is not None:
            try:
                check(msgspec.structs.replace(found, signatures=tuple(own)), ref, (self.public,))
                return None
            except UnsignedPackageError:
                pass
        others = tuple(one for one in before if one.key != self.public.id)[: MAX_SIGNATURES - 1]
        return Signatures(manifest=ref.manifest, signatures=(self.sign(ref, signed_at), *others))


def new_key() -> bytes:
    """A new private key, PEM (PKCS 8)."""
    _, ed25519 = _library()
    from cryptography.hazmat.primitives import serialization

    made: bytes = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return made


def signer_of(pem: bytes, where: str, name: str = "") -> Signer:
    """What signs with a private key. Raises ``ConfigurationError``, which shows nothing of the key."""
    _, ed25519 = _library()
    from cryptography.hazmat.primitives import serialization

    try:
        key: Any = serialization.load_pem_private_key(pem, None)
    except Exception:  # the library has many; none may carry the key's bytes on
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ConfigurationError(
            f"{where} is no Ed25519 private key without a passphrase, in PEM.",
            remedy="Make one with `preheat keys new`.",
        ) from None
    return Signer(PublicKey(key.public_key().public_bytes_raw(), name), key.sign)


def _statement(ref: Ref, signed_at: str) -> Statement:
    return Statement(
        target=ref.target,
        environment=ref.environment,
        manifest=ref.manifest,
        signed_at=signed_at,
    )


def _decoded(text: str, size: int) -> bytes | None:
    """Base64 in its only spelling, of just so many bytes."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if len(data) == size and base64.b64encode(data).decode() == text else None


def _library() -> tuple[Any, Any]:
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise UnsignedPackageError(
            "Signatures need the library cryptography.",
            kind="signatures_not_supported",
            remedy="Install preheat[sign] in this interpreter's environment.",
        ) from error
    return exceptions, ed25519
