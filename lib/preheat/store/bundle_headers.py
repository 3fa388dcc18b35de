"""Headers of the archive that a bundle is: ustar, POSIX.1-1988, in the one way that a bundle has them."""

from __future__ import annotations

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
_OCTAL_LIMIT = 8**11


def padding(size: int) -> int:
    """How many zero bytes follow a member of this size."""
    return -size % BLOCK_BYTES


def header(name: str, size: int) -> bytes:
    """The one header that a member of this name and size has: no owner, no time, mode 0444."""
    number = f"{size:011o}\0".encode() if size < _OCTAL_LIMIT else _binary_number(size)
    before = b"".join(
        (
            name.encode("ascii").ljust(100, b"\0"),
            b"0000444\0" + b"0000000\0" * 2,  # mode, owner, group
            number,
            b"00000000000\0",  # time
        )
    )
    after = b"".join(
        (
            b"0" + bytes(100),  # a regular file, no link
            b"ustar\0" + b"00",
            bytes(64),  # names of owner and group
            b"0000000\0" * 2,  # device
            bytes(167),
        )
    )
    checksum = sum(before) + 8 * ord(" ") + sum(after)
    return before + f"{checksum:06o}\0 ".encode() + after


def _binary_number(size: int) -> bytes:
    """A size from 8 GiB on: the extension of GNU tar, which other programs read as well."""
    return b"\x80" + size.to_bytes(11, "big")


def checksum_fits(block: bytes) -> bool:
    """Whether a block is a header that nothing has damaged."""
    return block[148:156] == f"{sum(block[:148]) + 256 + sum(block[156:]):06o}\0 ".encode()


def name_and_size(block: bytes) -> tuple[str, int]:
    """What a header says, for messages. -1 for a size that is no number."""
    prefix = block[345:500].partition(b"\0")[0] if block[257:262] == b"ustar" else b""
    name = block[:100].partition(b"\0")[0]
    text = (prefix + b"/" + name if prefix else name).decode("ascii", "replace")
    field = block[124:136]
    if field[:1] == b"\x80":
        return text, int.from_bytes(field[1:], "big")
    try:
        return text, int(field.rstrip(b"\0 ").decode("ascii") or "-1", 8)
    except ValueError:
        return text, -1
