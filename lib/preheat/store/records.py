"""What both stores decide in the same way about refs and manifests. Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import CorruptedError, StoreError
from preheat.manifest import (
    Digest,
    Manifest,
    ObjectRef,
    Ref,
    decode_manifest,
    decode_ref,
    encode,
    environment_digest,
    sha256,
)
from preheat.store.layout import is_digest

if TYPE_CHECKING:
    from collections.abc import Callable

# Far above any real object: it only keeps a damaged manifest from asking for all memory.
MAX_OBJECT_BYTES = 64 * 1024**3


def utc_now() -> datetime.datetime:
    """The real clock."""
    return datetime.datetime.now(datetime.UTC)


def encode_checked(manifest: Manifest) -> bytes:
    """A manifest's JSON bytes, which are known to decode again. Raises ``StoreError`` if they do not."""
    try:
        data = encode(manifest)
        decode_manifest(data)
    except (msgspec.MsgspecError, CorruptedError, UnicodeError, TypeError, ValueError) as error:
        raise StoreError(
            f"The manifest of {manifest.target!r} has no JSON form: {error}",
            remedy="Nothing was published.",
        ) from error
    return data


def parse_ref(data: bytes, target: str, environment: Digest, where: str) -> Ref:
    """The ref in ``data``, which must be the one that was asked for. Raises ``CorruptedError``."""
    ref = decode_ref(data, where=where)
    if (ref.target, ref.environment) != (target, environment):
        raise CorruptedError(f"{where}: is the ref of another target or environment.")
    if not is_digest(ref.manifest) or ref.generation < 1:
        raise CorruptedError(f"{where}: names no manifest.")
    return ref


def parse_manifest(data: bytes, digest: Digest, where: str) -> Manifest:
    """The manifest in ``data``, which must have this digest. Raises ``CorruptedError``."""
    check_digest(data, digest, where)
    return decode_manifest(data, where=where)


def check_digest(data: bytes, digest: Digest, where: str) -> None:
    """Raises ``CorruptedError`` unless ``data`` has this digest."""
    if sha256(data) != digest:
        raise CorruptedError(f"{where}: the content does not have the digest {digest}.")


def check_declared_size(ref: ObjectRef, actual: int, where: str) -> None:
    """Raises ``CorruptedError`` unless an object is as large as the manifest says."""
    if actual != ref.size or actual > MAX_OBJECT_BYTES:
        raise CorruptedError(f"{where}: {actual} bytes, the manifest says {ref.size}.")


def next_ref(
    manifest: Manifest, digest: Digest, previous: Ref | None, at: datetime.datetime
) -> Ref:
    """The ref that points to ``manifest``."""
    return Ref(
        target=manifest.target,
        environment=environment_digest(manifest.environment),
        manifest=digest,
        generation=1 if previous is None else previous.generation + 1,
        published_at=at.isoformat(timespec="milliseconds"),
    )


def missing_object(manifest: Manifest, ref: ObjectRef) -> StoreError:
    """The refusal to publish a manifest whose object is not there."""
    return StoreError(
        f"{manifest.target!r} was not published: its object {ref.name} ({ref.sha256}) is not in the store.",
        remedy="Put every object before publishing.",
    )


def read_package(
    ref_now: Callable[[], Ref | None], manifest_of: Callable[[Ref], Manifest | None]
) -> tuple[Ref, Manifest] | None:
    """Ref and manifest together, with one more look at the ref when the manifest vanished.

    Between reading the two, a newer package may be published and the older one collected.
    """
    for _ in range(2):
        ref = ref_now()
        if ref is None:
            return None
        manifest = manifest_of(ref)
        if manifest is not None:
            _check_belongs(manifest, ref)
            return ref, manifest
        missing = ref.manifest
    raise missing_manifest(missing)


def _check_belongs(manifest: Manifest, ref: Ref) -> None:
    if (manifest.target, environment_digest(manifest.environment)) != (ref.target, ref.environment):
        raise CorruptedError(
            f"The ref of {ref.target!r} names the manifest of another target or environment."
        )


def missing_manifest(digest: Digest) -> CorruptedError:
    """A ref's manifest, or any that was asked for by digest, is not there."""
    return CorruptedError(f"The manifest {digest} is not in the store.")
