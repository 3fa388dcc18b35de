"""Limits on what is read: how large, how deep, before anything is made of it.

Whatever the bytes are, reading them ends soon, takes memory in proportion to them, and raises nothing but
what is documented. A parser's own trouble (recursion, numbers that it will not convert) is one of those.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_T = TypeVar("_T")

MAX_TOML_BYTES = 1024 * 1024
MAX_TOML_DEPTH = 32
MAX_RECORD_BYTES = 4 * 1024 * 1024

# Time and memory of the standard library's parser grow with the square of a key's parts.
_PART = r"""(?:(?<![\w-])[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?:{_PART}[ \t]*+\.[ \t]*+){{{MAX_TOML_DEPTH}}}", re.ASCII)


class TomlError(ValueError):
    """A text is no TOML, or none within the limits; says why."""


def decode_json(data: bytes, kind: type[_T], limit: int = MAX_RECORD_BYTES) -> _T:
    """JSON of one type. Raises ``msgspec.MsgspecError`` for everything that is wrong with it."""
    if len(data) > limit:
        raise msgspec.DecodeError(f"{len(data)} bytes is over the limit of {limit}")
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    except UnicodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_toml(data: bytes) -> dict[str, Any]:
    """A TOML document. Raises ``TomlError``."""
    if len(data) > MAX_TOML_BYTES:
        raise TomlError(f"{len(data)} bytes is over the limit of {MAX_TOML_BYTES}")
    import tomllib  # here, because most workers find no configuration

    try:
        text = data.decode()
        if _DEEP_KEY.search(text):
            raise TomlError(f"a key has more than {MAX_TOML_DEPTH} parts")
        return tomllib.loads(text)
    except RecursionError as error:
        raise TomlError("nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are such
        raise TomlError(str(error)) from error


def read_limited(path: Path, limit: int) -> bytes:
    """A regular file's bytes. ``OSError`` for another kind of file, and EFBIG for one over ``limit``."""
    # O_NONBLOCK: a FIFO must not keep anybody waiting.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags)
    try:
        return read_regular(descriptor, limit, path)
    finally:
        os.close(descriptor)


def read_regular(
    descriptor: int, limit: int, path: Path, read: Callable[[int, int], bytes] = os.read
) -> bytes:
    """The bytes of a regular file that is open. Raises as ``read_limited``."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    pieces: list[bytes] = []
    left = limit + 1
    while left and (piece := read(descriptor, min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise OSError(errno.EFBIG, f"over the limit of {limit} bytes", str(path))
    return b"".join(pieces)
