"""The format of a bundle: packages in one file. Pure: bytes in, checked parts out; nothing is opened.

A bundle is an uncompressed tar archive in the narrowest sense of POSIX ``ustar``, so that people can
look inside with ``tar tf``. Nothing in it is left to choice: after the first member, ``preheat-bundle.json``
(the index), every byte of every header follows from the index. A reader therefore parses no headers; it
compares them with those that must be there, and takes one apart only to say what is wrong with it. No
name in an archive ever becomes a path.

Order: the index; each package's manifest and its signature records, packages by target and environment; the
objects by digest; 1024 zero bytes. The same packages have the same bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import BundleError, CorruptedError
from preheat.manifest import (
    FORMAT,
    MAX_MANIFEST_BYTES,
    Digest,
    Manifest,
    ObjectRef,
    decode_manifest,
    encode,
    environment_digest,
    sha256,
)
from preheat.store.bundle_headers import (
    BLOCK_BYTES,
    END,
    checksum_fits,
    header,
    name_and_size,
    padding,
)
from preheat.store.layout import is_digest
from preheat.store.records import MAX_OBJECT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

BUNDLE_FORMAT = 1
INDEX_NAME = "preheat-bundle.json"

MAX_INDEX_BYTES = 32 * 1024 * 1024
MAX_BUNDLE_BYTES = 1024**4
MAX_SIGNATURES = 16
MAX_SIGNATURE_BYTES = 64 * 1024
_MAX_TEXT = 4096


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Part(_Record, frozen=True, kw_only=True):
    """Bytes of the archive by digest and size: an object, or one signature record."""

    sha256: Digest
    size: int


class PackageEntry(_Record, frozen=True, kw_only=True):
    """One package: ``manifest`` and ``size`` are the digest and size of the manifest's JSON.

    ``signatures``: opaque records that belong to the manifest, carried beside it. What they mean is
    no business of the format.
    """

    target: str
    environment: Digest
    manifest: Digest
    size: int
    signatures: tuple[Part, ...] = ()


class Index(_Record, frozen=True, kw_only=True):
    """The first member. ``manifest_format``: of all manifests in the bundle."""

    format: int = BUNDLE_FORMAT
    manifest_format: int = FORMAT
    packages: tuple[PackageEntry, ...]
    objects: tuple[Part, ...]


class _Numbered(msgspec.Struct):
    format: int


@dataclasses.dataclass(frozen=True)
class Member:
    """One member after the index: its name, and what must be in it. ``package`` is None for an object."""

    name: str
    part: Part
    package: PackageEntry | None = None

    @property
    def is_manifest(self) -> bool:
        return self.name.startswith("manifests/")


def make_index(
    packages: Iterable[tuple[Manifest, Sequence[bytes]]],
) -> Index:
    """The index of these packages, each with its signature records. Order does not matter.

    Raises ``BundleError`` for packages that no bundle can hold together.
    """
    entries, objects = [], {}
    for manifest, signatures in packages:
        data = encode(manifest)
        entries.append(
            PackageEntry(
                target=manifest.target,
                environment=environment_digest(manifest.environment),
                manifest=sha256(data),
                size=len(data),
                signatures=tuple(
                    sorted((part_of(one) for one in signatures), key=lambda part: part.sha256)
                ),
            )
        )
        objects.update({ref.sha256: ref.size for ref in manifest.objects()})
    index = Index(
        packages=tuple(sorted(entries, key=_package_order)),
        objects=tuple(Part(sha256=digest, size=objects[digest]) for digest in sorted(objects)),
    )
    _check_index(index)
    return index


def part_of(data: bytes) -> Part:
    """Digest and size."""
    return Part(sha256=sha256(data), size=len(data))


def members(index: Index) -> Iterator[Member]:
    """Every member after the index, in the order of the archive."""
    for package in index.packages:
        manifest = Part(sha256=package.manifest, size=package.size)
        yield Member(f"manifests/{package.manifest}.json", manifest, package)
        for number, part in enumerate(package.signatures):
            yield Member(f"signatures/{package.manifest}/{number}", part, package)
    for part in index.objects:
        yield Member(f"objects/{part.sha256}", part)


def total_bytes(index: Index, index_bytes: int) -> int:
    """How long the whole archive is; ``index_bytes``: its index as JSON."""
    sizes = (index_bytes, *(member.part.size for member in members(index)))
    return sum(BLOCK_BYTES + size + padding(size) for size in sizes) + len(END)


def index_size(block: bytes) -> int:
    """The size of the index from the first header. Raises ``BundleError`` for anything else."""
    name, size = name_and_size(block)
    if name != INDEX_NAME or block != header(INDEX_NAME, max(size, 0)):
        raise BundleError(
            f"It is not a bundle: it does not begin with {INDEX_NAME}"
            + (f", but with {name!r}." if name else "."),
            remedy="Give a file that `preheat export` wrote.",
        )
    if size > MAX_INDEX_BYTES:
        raise BundleError(f"Its index has {size} bytes, over the limit of {MAX_INDEX_BYTES}.")
    return size


def parse_index(data: bytes) -> Index:
    """The index, checked as far as it can be by itself. Raises ``BundleError``."""
    _check_version(data)
    try:
        index = msgspec.json.decode(data, type=Index, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"Its index cannot be read: {error}.") from error
    if index.manifest_format != FORMAT:
        raise BundleError(
            f"Its packages were built by another version of preheat: manifests of format "
            f"{index.manifest_format}, and this version knows {FORMAT}.",
            remedy="Use the version of preheat that made it, or build the packages again.",
        )
    _check_index(index)
    if encode(index) != data:
        raise BundleError("Its index is not written as preheat writes it.")
    return index


def _check_version(data: bytes) -> None:
    try:
        found = msgspec.json.decode(data, type=_Numbered, strict=True).format
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"Its index cannot be read: {error}.") from error
    if found != BUNDLE_FORMAT:
        raise BundleError(
            f"It is a bundle of format {found}, and this version of preheat knows {BUNDLE_FORMAT}.",
            remedy="Use the version of preheat that made it.",
        )


def _check_index(index: Index) -> None:
    if not index.packages:
        raise BundleError("It holds no package.")
    _check_order(index.packages, [_package_order(one) for one in index.packages], "packages")
    _check_order(index.objects, [one.sha256 for one in index.objects], "objects")
    for package in index.packages:
        _check_package(package)
    for part in index.objects:
        _check_part(part, MAX_OBJECT_BYTES, "object")
    total = sum(member.part.size for member in members(index))
    if total > MAX_BUNDLE_BYTES:
        raise BundleError(f"It declares {total} bytes, over the limit of {MAX_BUNDLE_BYTES}.")


def _check_package(package: PackageEntry) -> None:
    if not 0 < len(package.target) <= _MAX_TEXT or not 0 < len(package.environment) <= _MAX_TEXT:
        raise BundleError("Its index has a package without a target or environment.")
    _check_part(Part(sha256=package.manifest, size=package.size), MAX_MANIFEST_BYTES, "manifest")
    if len(package.signatures) > MAX_SIGNATURES:
        raise BundleError(
            f"It has {len(package.signatures)} signatures for one package, over the limit of "
            f"{MAX_SIGNATURES}."
        )
    digests = [one.sha256 for one in package.signatures]
    _check_order(package.signatures, digests, "signatures")
    for part in package.signatures:
        _check_part(part, MAX_SIGNATURE_BYTES, "signature")


def _check_part(part: Part, limit: int, what: str) -> None:
    if not is_digest(part.sha256):
        raise BundleError(f"Its index names an impossible {what}: {part.sha256[:80]!r}.")
    if not 0 <= part.size <= limit:
        raise BundleError(
            f"It declares an {what} of {part.size} bytes; the limit is {limit} ({part.sha256})."
        )


def _check_order(parts: Sequence[object], keys: Sequence[object], what: str) -> None:
    for earlier, later in itertools.pairwise(keys):
        if earlier == later:
            raise BundleError(f"Its index names the same {what} twice: {earlier}.")
    if list(keys) != sorted(keys):  # type: ignore[type-var]
        raise BundleError(f"Its index does not have its {len(parts)} {what} in order.")


def _package_order(package: PackageEntry) -> tuple[str, str]:
    return package.target, package.environment


def check_header(block: bytes, member: Member, earlier: Mapping[str, object]) -> None:
    """Whether a header is exactly the one of ``member``. Raises ``BundleError`` that says what it is.

    ``earlier``: the names of the members before.
    """
    if block != header(member.name, member.part.size):
        raise BundleError(
            f"Where {member.name} must be, there is {_described(block, member, earlier)}"
        )


_TYPES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"5": "a directory",
    b"6": "a FIFO",
    b"S": "a sparse file",
    b"x": "an extended header",
    b"g": "an extended header",
    b"L": "an extended header",
    b"K": "an extended header",
}


def _described(block: bytes, member: Member, earlier: Mapping[str, object]) -> str:
    if not block.strip(b"\0"):
        return "the end of the archive."
    if not checksum_fits(block):
        return "a damaged header."
    name, size = name_and_size(block)
    kind = _TYPES.get(block[156:157])
    if kind:
        return f"{kind} ({name!r}); a bundle has none."
    if name.startswith("/"):
        return f"an absolute name, {name!r}; a bundle has none."
    if ".." in name.split("/"):
        return f"a name that leads out of the archive, {name!r}; a bundle has none."
    if name in earlier:
        return f"{name} a second time."
    if name != member.name:
        return f"{name!r}, which the index does not name there."
    if size != member.part.size:
        return f"a member that declares {size} bytes instead of {member.part.size}."
    return "a member with an owner, a time or a mode of its own; a bundle has none."


def check_zeros(block: bytes, where: str) -> None:
    """The bytes that fill a member up to a whole block."""
    if block.strip(b"\0"):
        raise BundleError(f"The bytes after {where} are not zero.")


def check_part(data: bytes, member: Member) -> None:
    """Raises ``BundleError`` unless these are the bytes that the index names."""
    if part_of(data) != member.part:
        raise altered(member.name)


def altered(name: str) -> BundleError:
    """The content of a member is not what its name says."""
    return BundleError(
        f"{name} does not have the content that the index names: the bundle was altered or damaged.",
        remedy="Copy or export it again.",
    )


def check_manifest(data: bytes, member: Member) -> Manifest:
    """The manifest of one package, which must be the one that the index describes, and proven."""
    check_part(data, member)
    assert member.package is not None
    try:
        manifest = decode_manifest(data, where=member.name)
    except CorruptedError as error:
        raise BundleError(error.message) from error
    if encode(manifest) != data:
        raise BundleError(f"{member.name} is not written as preheat writes it.")
    named = (member.package.target, member.package.environment)
    if (manifest.target, environment_digest(manifest.environment)) != named:
        raise BundleError(f"{member.name} is the manifest of another target or environment.")
    if not manifest.is_proven():
        raise BundleError(
            f"{member.name}: the package of {manifest.target!r} is not proven.",
            remedy="Build it with `preheat warm`, and export that.",
        )
    return manifest


class Completeness:
    """Whether the manifests of a bundle and its objects belong together: none missing, none left over."""

    def __init__(self, index: Index) -> None:
        self._sizes = {part.sha256: part.size for part in index.objects}
        self._named: set[Digest] = set()

    def add(self, manifest: Manifest) -> None:
        """Raises ``BundleError`` for an object of the manifest that the bundle does not have."""
        for ref in every_object(manifest):
            size = self._sizes.get(ref.sha256)
            if size is None:
                raise BundleError(
                    f"The object {ref.name} ({ref.sha256}) of {manifest.target!r} is not in the bundle."
                )
            if size != ref.size:
                raise BundleError(
                    f"The object {ref.name} ({ref.sha256}) of {manifest.target!r} has {size} bytes in the "
                    f"bundle, and the manifest says {ref.size}."
                )
            self._named.add(ref.sha256)

    def finish(self) -> None:
        """After the last manifest. Raises ``BundleError`` for an object that none of them names."""
        for digest in self._sizes:
            if digest not in self._named:
                raise BundleError(f"No package in the bundle names its object {digest}.")


def every_object(manifest: Manifest) -> Iterator[ObjectRef]:
    """All that a manifest names, the same object under two names twice: their sizes may contradict."""
    for form in manifest.forms:
        yield from form.objects
    for module in manifest.sources.modules:
        text = module.text()
        if text is not None:
            yield text
