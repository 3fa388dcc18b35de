"""Whatever the bytes are, reading them ends soon and raises nothing but what is documented."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.limits import (
    MAX_TOML_BYTES,
    MAX_TOML_DEPTH,
    TomlError,
    decode_json,
    decode_toml,
    read_limited,
)

if TYPE_CHECKING:
    from pathlib import Path


class Known(msgspec.Struct):
    name: str = ""


DEPTH = 200_000


@pytest.mark.parametrize(
    "data",
    [
        b"[" * DEPTH,
        b'{"unknown": ' + b"[" * DEPTH,
        b'{"unknown": ' + b'{"a": ' * DEPTH,
        b'{"name": ' + b"9" * DEPTH + b"}",
        b'{"name": "\xff"}',
        b'{"name": "\\ud800"}',
        b'{"name": "long"}' + b" " * 100,
        b"",
    ],
)
def test_json_that_is_not_to_be_read_is_a_msgspec_error(data: bytes) -> None:
    limit = 64 if data.endswith(b" " * 100) else 4 * 1024 * 1024
    with pytest.raises(msgspec.MsgspecError):
        decode_json(data, Known, limit)
    if limit == 4 * 1024 * 1024 and data[:1] in b"[{":
        with pytest.raises(msgspec.MsgspecError):
            decode_json(data + b"x", dict[str, Any], limit)


@pytest.mark.parametrize(
    "data",
    [
        b"a." * 100_000 + b"b = 1",
        b"[" + b"a . " * 100_000 + b"b]",
        b'"a\\"".' * 100_000 + b"b = 1",
        b"'a' . \"b\" ." * 20 + b"b = 1",
        b"x = {" + b"a." * 100_000 + b"b = 1}",
        b"a = " + b"[" * 100_000,
        b"a = " + b"{b = " * 100_000,
        b"a = " + b"9" * 5_000,
        b"a = \xff",
        b"a = 1979-99-99",
        b"a = '" + b"x" * MAX_TOML_BYTES + b"'",
    ],
)
def test_toml_that_is_not_to_be_read_is_a_toml_error(data: bytes) -> None:
    with pytest.raises(TomlError):
        decode_toml(data)


def test_what_people_write_is_read() -> None:
    deep = ".".join("a" for _ in range(MAX_TOML_DEPTH))
    words = ", ".join(f'"pack.age{number}:f"' for number in range(300))
    text = f"[{deep}]\nb = 1\n[x]\ntargets = [{words}]\n{'long' * 20_000} = '../../../..'\n"
    assert len(decode_toml(text.encode())["x"]["targets"]) == 300


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    for attempt in (lambda: decode_toml(data), lambda: decode_json(data, Known)):
        try:
            attempt()
        except (TomlError, msgspec.MsgspecError):
            pass


def test_only_regular_files_within_the_limit_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_limited(file, 5) == b"12345"
    os.mkfifo(tmp_path / "fifo")
    for path, limit, number in (
        (file, 4, errno.EFBIG),
        (tmp_path / "fifo", 5, errno.EINVAL),
        (tmp_path, 5, errno.EISDIR),
        (tmp_path / "none", 5, errno.ENOENT),
    ):
        with pytest.raises(OSError) as raised:
            read_limited(path, limit)
        assert raised.value.errno == number
