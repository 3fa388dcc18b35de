"""Names of files: safe, short and different for different names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.errors import CorruptedError
from preheat.store.layout import NAME_LIMIT, Layout, encode_name
from preheat.store.temporary import GRACE_SECONDS, is_leftover, process_space, temporary_name

SAFE = re.compile(r"[A-Za-z0-9_%~-][A-Za-z0-9._%~-]*")
any_name = st.text(st.characters(exclude_categories=()), max_size=300)


@given(any_name)
def test_every_name_becomes_a_safe_file_name(name: str) -> None:
    encoded = encode_name(name)
    assert SAFE.fullmatch(encoded)
    assert len(encoded) <= NAME_LIMIT


@given(any_name, any_name)
def test_different_names_stay_different(one: str, other: str) -> None:
    assert (encode_name(one) == encode_name(other)) == (one == other)


@given(st.text("ab%.~", max_size=6), st.text("ab%.~", max_size=6))
def test_names_that_look_encoded_stay_different(one: str, other: str) -> None:
    assert (encode_name(one) == encode_name(other)) == (one == other)


@given(st.text("x", min_size=NAME_LIMIT - 3), st.text("x", min_size=NAME_LIMIT - 3))
def test_long_names_stay_different(one: str, other: str) -> None:
    assert (encode_name(one) == encode_name(other)) == (one == other)


@given(any_name)
def test_no_encoded_name_is_another_names_encoding_made_long(name: str) -> None:
    encoded = encode_name(name)
    assert encode_name(encoded) == encoded or encode_name(encoded) != encode_name(name)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("model", "model"),
        ("Model-1_b.v2", "Model-1_b.v2"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        (".", "%2E"),
        ("", "%"),
        ("%2F", "%252F"),
        ("ü", "%C3%BC"),
        ("\0", "%00"),
    ],
)
def test_encoding(name: str, encoded: str) -> None:
    assert encode_name(name) == encoded


@given(any_name, any_name)
def test_paths_stay_inside_and_fit(target: str, environment: str) -> None:
    layout = Layout(Path("/store"))
    paths = {
        layout.refs: layout.ref(target, environment),
        layout.locks: layout.lock(target, environment),
        layout.lock_holder(target, environment).parent: layout.lock_holder(target, environment),
    }
    for directory, path in paths.items():
        assert path.is_relative_to(directory)
        assert all(len(part) <= 240 for part in path.parts)
    assert layout.ref(target, environment).parent.parent == layout.refs


def test_the_layout() -> None:
    layout = Layout(Path("/store"))
    digest = "ab" + "0" * 62
    assert layout.object(digest) == Path("/store/v1/objects/ab") / digest
    assert layout.ref("a/b", "e0") == Path("/store/v1/refs/a%2Fb/e0.json")
    assert layout.lock("m.v2", "e0") == Path("/store/v1/locks/m.v2@e0.lock")
    assert layout.lock_holder("m.v2", "e0") == Path("/store/v1/locks/m.v2@e0.holder")


@pytest.mark.parametrize("digest", ["", "..", "/etc/passwd", "ab", "AB" + "0" * 62, "é" * 64])
def test_only_a_digest_names_an_object(digest: str) -> None:
    with pytest.raises(CorruptedError):
        Layout(Path("/store")).object(digest)


def left_over(name: str, age_seconds: float, *, alive: bool) -> bool:
    return is_leftover(
        name, age_seconds, space=process_space(), process_exists=lambda pid: alive and pid > 0
    )


def test_a_temporary_file_is_left_over_when_its_process_is_gone() -> None:
    assert temporary_name() != temporary_name()
    assert left_over(temporary_name(), 0, alive=False)
    assert not left_over(temporary_name(), 0, alive=True)


@pytest.mark.parametrize(
    "name", ["other-host.0123.77.0a0a", "stray", "", "a.b", f"{process_space()}.x.y"]
)
def test_a_temporary_file_of_unknown_origin_is_left_over_after_a_day(name: str) -> None:
    assert not left_over(name, GRACE_SECONDS, alive=False)
    assert left_over(name, GRACE_SECONDS + 1, alive=True)
