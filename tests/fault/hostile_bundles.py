"""Bundles that somebody made to do harm, or that were damaged on their way: each with its refusal.

``CASES``: name -> (the bytes, a pattern that the refusal must match). All are made from one good
bundle.
"""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import msgspec

from preheat.manifest import FORMAT, encode, sha256
from preheat.store import bundle_format as form
from preheat.store import bundle_headers as headers
from support.bundles import DECODER, ENCODER, archive, member, proven

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANIFESTS = (proven(*DECODER, target="decoder"), proven(*ENCODER, target="encoder"))
CONTENTS = (*DECODER, *ENCODER)
GOOD = archive(MANIFESTS, CONTENTS)
INDEX = form.make_index((one, ()) for one in MANIFESTS)
FIRST_OBJECT = INDEX.objects[0]
LAST_OBJECT = INDEX.objects[-1]

_GNU_LONG_NAME = b"././@LongLink"


def _replaced_header(change: Callable[[bytearray], None], *, checksum: bool = True) -> bytes:
    """The good bundle, with the first object's header changed."""
    name = f"objects/{FIRST_OBJECT.sha256}"
    start = GOOD.index(headers.header(name, FIRST_OBJECT.size))
    block = bytearray(GOOD[start : start + headers.BLOCK_BYTES])
    change(block)
    if checksum:
        block[148:156] = b" " * 8
        block[148:156] = f"{sum(block):06o}\0 ".encode()
    return GOOD[:start] + bytes(block) + GOOD[start + headers.BLOCK_BYTES :]


def _named(name: bytes) -> bytes:
    def change(block: bytearray) -> None:
        block[:100] = name.ljust(100, b"\0")

    return _replaced_header(change)


def _typed(kind: bytes, link: bytes = b"") -> bytes:
    def change(block: bytearray) -> None:
        block[156:157] = kind
        block[157:257] = link.ljust(100, b"\0")

    return _replaced_header(change)


def _field(start: int, content: bytes) -> bytes:
    def change(block: bytearray) -> None:
        block[start : start + len(content)] = content

    return _replaced_header(change)


def _with_index(**changes: object) -> bytes:
    """A bundle that follows from another index, with an index that nobody checked."""
    index = msgspec.structs.replace(INDEX, **changes)
    return archive(MANIFESTS, CONTENTS, index=index)


def _raw_index(text: bytes) -> bytes:
    return member(form.INDEX_NAME, text) + GOOD[len(member(form.INDEX_NAME, encode(INDEX))) :]


def _declared(size: int) -> bytes:
    """An object that declares so many bytes, in the index and in its header, and brings none of them."""
    objects = (*INDEX.objects[:-1], form.Part(sha256=LAST_OBJECT.sha256, size=size))
    data = encode(msgspec.structs.replace(INDEX, objects=objects))
    head = headers.header(f"objects/{LAST_OBJECT.sha256}", size)
    return (
        member(form.INDEX_NAME, data) + GOOD[len(member(form.INDEX_NAME, encode(INDEX))) :] + head
    )


def _unknown_object() -> bytes:
    data = b"nobody names me"
    part = form.part_of(data)
    objects = tuple(sorted((*INDEX.objects, part), key=lambda one: one.sha256))
    index = msgspec.structs.replace(INDEX, objects=objects)
    return archive(MANIFESTS, (*CONTENTS, data), index=index)


def _without_object() -> bytes:
    index = msgspec.structs.replace(INDEX, objects=INDEX.objects[1:])
    return archive(MANIFESTS, CONTENTS, index=index)


def _contradicting_size() -> bytes:
    """Two forms name one object with two sizes."""
    (good,) = MANIFESTS[1:]
    (form_,) = good.forms
    lying = msgspec.structs.replace(form_.objects[0], size=form_.objects[0].size + 1)
    other = msgspec.structs.replace(form_, objects=(*form_.objects, lying))
    return archive([msgspec.structs.replace(good, forms=(other,))], CONTENTS)


def _manifest_bytes(data: bytes, target: str = "model", environment: str = "e" * 32) -> bytes:
    """A bundle whose one manifest is these bytes."""
    package = form.PackageEntry(
        target=target, environment=environment, manifest=sha256(data), size=len(data)
    )
    index = form.Index(packages=(package,), objects=())
    return (
        member(form.INDEX_NAME, encode(index))
        + member(f"manifests/{sha256(data)}.json", data)
        + headers.END
    )


def _plain_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        made.addfile(tarfile.TarInfo("../../etc/passwd"))
    return file.getvalue()


def _other_target() -> bytes:
    packages = (INDEX.packages[0], msgspec.structs.replace(INDEX.packages[1], target="other"))
    return _with_index(packages=packages)


def _other_environment() -> bytes:
    last = msgspec.structs.replace(INDEX.packages[1], environment="0" * 32)
    return _with_index(packages=(INDEX.packages[0], last))


def _altered_object() -> bytes:
    content = DECODER[0]
    return GOOD.replace(content, content[:-1] + b"E")


def _nested() -> bytes:
    """A bundle in a bundle, as a member that nothing names."""
    return GOOD[: -len(headers.END)] + member("objects/inner.tar", GOOD) + headers.END


_DEEP = b'{"format":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
_UNPROVEN = msgspec.structs.replace(MANIFESTS[0], proof=None)


def _cases() -> Iterator[tuple[str, bytes, str]]:
    yield "a name that leads out", _named(b"../../etc/cron.d/x"), "leads out of the archive"
    yield "a name that leads out inside", _named(b"objects/../../x"), "leads out of the archive"
    yield "an absolute name", _named(b"/etc/passwd"), "absolute name"
    yield "a long name's prefix leads out", _field(345, b"../.."), "leads out of the archive"
    yield "a symbolic link", _typed(b"2", b"/etc/passwd"), "a symbolic link"
    yield "a hard link", _typed(b"1", b"/etc/passwd"), "a hard link"
    yield "a character device", _typed(b"3"), "a device"
    yield "a block device", _typed(b"4"), "a device"
    yield "a directory", _typed(b"5"), "a directory"
    yield "a FIFO", _typed(b"6"), "a FIFO"
    yield "a sparse file", _typed(b"S"), "a sparse file"
    yield "an extended header", _typed(b"x"), "an extended header"
    yield "a global header", _typed(b"g"), "an extended header"
    yield "a long name", _typed(b"L", _GNU_LONG_NAME), "an extended header"
    yield "a long link", _typed(b"K", _GNU_LONG_NAME), "an extended header"
    yield "a duplicate name", _named(form.INDEX_NAME.encode()), "a second time"
    yield "an unknown name", _named(b"objects/extra"), "which the index does not name"
    yield "an owner", _field(108, b"0001750\0"), "an owner, a time or a mode"
    yield "a time", _field(136, b"15000000000\0"), "an owner, a time or a mode"
    yield "a set-uid mode", _field(100, b"0004755\0"), "an owner, a time or a mode"
    yield "another size", _field(124, b"00000000777\0"), "declares 511 bytes instead of"
    yield "a size that is no number", _field(124, b"xxxxxxxxxxx\0"), "declares -1 bytes"
    yield (
        "a huge binary size",
        _field(124, b"\x80" + b"\xff" * 11),
        "declares 3094850098213450687247810",
    )
    yield (
        "a header without its sum",
        _replaced_header(lambda block: block.__setitem__(0, 65), checksum=False),
        "damaged header",
    )
    yield "a nested bundle", _nested(), "more bytes after its end|something else than the end"
    yield "an altered object", _altered_object(), "altered or damaged"
    yield "an object that nothing names", _unknown_object(), "No package in the bundle names"
    yield "a missing object", _without_object(), "is not in the bundle"
    yield "two sizes of one object", _contradicting_size(), "and the manifest says"
    yield "a bomb of declared bytes", _declared(2**33), "cut off|was altered|manifest says"
    yield "a bomb beyond the cap of an object", _declared(2**40), "the limit is"
    yield "a negative size", _declared_raw(-1), "the limit is"
    yield (
        "a bomb of many large objects",
        _many_large(),
        "over the limit of",
    )
    yield "an unproven package", _hand_made(_UNPROVEN), "is not proven"
    yield "another target's manifest", _other_target(), "of another target or environment"
    yield "another environment's manifest", _other_environment(), "of another target or environment"
    yield (
        "another format of bundle",
        _raw_index(encode(INDEX).replace(b":1,", b":2,", 1)),
        "format 2",
    )
    yield (
        "packages of another version",
        _raw_index(encode(msgspec.structs.replace(INDEX, manifest_format=FORMAT + 1))),
        "another version of preheat",
    )
    yield "no packages", _raw_index(encode(form.Index(packages=(), objects=()))), "holds no package"
    yield "an index with spaces", _raw_index(encode(INDEX) + b" "), "not written as preheat writes"
    yield "an index with a field more", _raw_index(encode(INDEX)[:-1] + b',"x":1}'), "unknown field"
    yield "an index that is no JSON", _raw_index(b"\xff\x00"), "cannot be read"
    yield "an index of great depth", _raw_index(_DEEP), "cannot be read"
    yield (
        "an index beyond the cap",
        headers.header(form.INDEX_NAME, form.MAX_INDEX_BYTES + 1),
        "over the limit of",
    )
    yield (
        "the same package twice",
        _with_index(packages=(INDEX.packages[0], INDEX.packages[0])),
        "the same packages twice",
    )
    yield (
        "objects out of order",
        _with_index(objects=tuple(reversed(INDEX.objects))),
        "in order",
    )
    yield (
        "an object's name that is a path",
        _raw_index(
            encode(
                msgspec.structs.replace(
                    INDEX, objects=(form.Part(sha256="../../../etc/passwd", size=1),)
                )
            )
        ),
        "an impossible object",
    )
    yield "a manifest of great depth", _manifest_bytes(_DEEP), "manifests/"
    yield "a manifest that is no JSON", _manifest_bytes(b"[]"), "manifests/"
    yield "a manifest with spaces", _manifest_bytes(encode(MANIFESTS[0]) + b" "), "not written as"
    yield "a tar archive", _plain_tar(), "It is not a bundle"
    yield "nothing", b"", "cut off"
    yield "zeros", bytes(4096), "It is not a bundle"
    yield "another kind of file", b"\x1f\x8b\x08" + bytes(2000), "It is not a bundle"
    yield "one byte more", GOOD + b"\0", "more bytes after its end"
    yield "padding of other tar programs", GOOD + bytes(8192), "more bytes after its end"
    yield "two bundles in one file", GOOD + GOOD, "more bytes after its end"
    yield "no end", GOOD[: -len(headers.END)], "cut off"
    yield "half an end", GOOD[:-512], "cut off"
    yield "another end", GOOD[:-1] + b"x", "something else than the end"
    yield (
        "an early end",
        GOOD[: -len(headers.END) - 1024] + bytes(2048),
        "end of the archive|altered|not zero",
    )


def _declared_raw(size: int) -> bytes:
    objects = (*INDEX.objects[:-1], form.Part(sha256=LAST_OBJECT.sha256, size=size))
    return _raw_index(encode(msgspec.structs.replace(INDEX, objects=objects)))


def _many_large() -> bytes:
    objects = tuple(form.Part(sha256=f"{number:064x}", size=2**36) for number in range(20))
    return _raw_index(encode(msgspec.structs.replace(INDEX, objects=objects)))


def _hand_made(manifest: object) -> bytes:
    data = encode(manifest)  # type: ignore[arg-type]
    package = msgspec.structs.replace(
        INDEX.packages[0], manifest=sha256(data), size=len(data), target="decoder"
    )
    index = msgspec.structs.replace(INDEX, packages=(package, INDEX.packages[1]))
    return (
        member(form.INDEX_NAME, encode(index))
        + member(f"manifests/{sha256(data)}.json", data)
        + member(f"manifests/{INDEX.packages[1].manifest}.json", encode(MANIFESTS[1]))
        + GOOD[GOOD.index(headers.header(f"objects/{FIRST_OBJECT.sha256}", FIRST_OBJECT.size)) :]
    )


CASES: dict[str, tuple[bytes, str]] = {name: (data, words) for name, data, words in _cases()}
