"""What a manifest names, also one that is damaged or of another format. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from preheat.errors import CorruptedError
from preheat.manifest import decode_manifest, environment_digest, sha256

if TYPE_CHECKING:
    from preheat.manifest import Digest

MANIFEST_BEGIN = b'{"format":'
_DIGESTS = re.compile(rb"[0-9a-f]{64}")


class Names(NamedTuple):
    """What a manifest says about itself; ``code`` are the objects that only loads read."""

    target: str
    environment: str
    all: tuple[Digest, ...]
    code: tuple[Digest, ...]


class _Lenient(msgspec.Struct):
    format: int
    target: str


def names_of(data: bytes, digest: Digest) -> Names | None:
    """What a manifest names; of one in another format, all that could be the name of an object."""
    try:
        if sha256(data) == digest:
            manifest = decode_manifest(data)
            return Names(
                manifest.target,
                environment_digest(manifest.environment),
                (digest, *(one.sha256 for one in manifest.objects())),
                tuple(one.sha256 for one in manifest.code_objects()),
            )
    except CorruptedError:
        pass
    try:
        target = msgspec.json.decode(data, type=_Lenient).target
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    every = tuple(sorted(_digests_in(data) - {digest}))
    return Names(target, "", (digest, *every), every)


def _digests_in(data: bytes) -> set[Digest]:
    return {match.decode() for match in _DIGESTS.findall(data)}
