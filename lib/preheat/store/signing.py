"""Signatures in a disk store: reading and checking them, and adding one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.errors import StoreError, UnsignedPackageError, UntrustedStoreError
from preheat.manifest import Ref, encode, environment_digest
from preheat.store.failures import writing
from preheat.store.keys import Signing, read_signer
from preheat.store.signatures import (
    MAX_SIGNATURES_BYTES,
    Signatures,
    decode_signatures,
    joined,
)

if TYPE_CHECKING:
    import datetime
    from pathlib import Path

    from preheat.manifest import Digest, Manifest
    from preheat.store.layout import Layout
    from preheat.store.reading import Reader
    from preheat.store.writing import Writer

UNSIGNED = Signing("off")


def check_signed(
    reader: Reader, layout: Layout, signing: Signing, ref: Ref, manifest: Manifest
) -> None:
    """Raises ``UnsignedPackageError`` unless a trusted key signed the package that was read; or logs it."""
    try:
        _check_same(ref, manifest)
        found = read_signatures(reader, layout, ref)
    except UnsignedPackageError as error:
        signing.refuse(error)
    else:
        signing.check(found, ref)


def published_as(manifest: Manifest, digest: Digest) -> Ref:
    """The ref under which a manifest was or will be published, as far as signatures look at it."""
    return Ref(
        target=manifest.target,
        environment=environment_digest(manifest.environment),
        manifest=digest,
        generation=1,
        published_at="",
    )


def _check_same(ref: Ref, manifest: Manifest) -> None:
    """What is signed must be what is used, whatever the ref says."""
    named = (ref.target, ref.environment)
    if (manifest.target, environment_digest(manifest.environment)) != named:
        raise UnsignedPackageError(
            f"The ref of {ref.target!r} names another manifest than the one that was read.",
            kind="signature_wrong",
        )


def read_signatures(reader: Reader, layout: Layout, ref: Ref) -> Signatures | None:
    """The signatures of a package; None where there are none. Raises ``UnsignedPackageError``."""
    path = layout.signatures(ref.manifest)
    try:
        data = reader.read(path, MAX_SIGNATURES_BYTES)
    except UntrustedStoreError:
        raise
    except StoreError as error:
        raise UnsignedPackageError(error.message, kind="signature_damaged") from error
    return None if data is None else decode_signatures(data, ref.manifest, str(path))


def sign(
    reader: Reader,
    writer: Writer,
    layout: Layout,
    ref: Ref,
    key: Path,
    now: datetime.datetime,
) -> bool:
    """Add a signature, durably. False where the key's signature is there already."""
    signer = read_signer(key)
    try:
        found = read_signatures(reader, layout, ref)
    except UnsignedPackageError:
        found = None  # damaged: it is replaced
    made = signer.added_to(found, ref, now.isoformat(timespec="milliseconds"))
    if made is None:
        return False
    _write(writer, layout, made)
    return True


def accept(
    reader: Reader, writer: Writer, layout: Layout, signing: Signing, ref: Ref, data: bytes | None
) -> None:
    """Check a package that comes from elsewhere by the signatures here and in ``data``, and keep these.

    Raises ``UnsignedPackageError`` as for a package that lies here; then nothing is kept. Bytes that are no
    signatures count as none.
    """
    try:
        here = read_signatures(reader, layout, ref)
    except UnsignedPackageError:
        here = None  # damaged: what comes takes its place
    both = here
    if data is not None:
        try:
            both = joined(here, decode_signatures(data, ref.manifest, "what came with it"))
        except UnsignedPackageError as error:
            if signing.is_on:
                signing.refuse(error)
    if signing.is_on:
        signing.check(both, ref)
    if both is not None and both != here:
        _write(writer, layout, both)


def _write(writer: Writer, layout: Layout, made: Signatures) -> None:
    path = layout.signatures(made.manifest)
    with writing(path):
        writer.directory(path.parent.parent)
        writer.directory(path.parent)
        writer.put(path, encode(made))
