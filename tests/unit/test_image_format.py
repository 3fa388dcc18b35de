"""The bytes of images: round trips, damage, and the shapes of records that the format number stands for."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from preheat.errors import CorruptedError, IncompatibleError, PreheatError
from preheat.image import alone, surroundings
from preheat.image import format as image_format
from preheat.image.format import decode, encode
from support.images import Loaded, graph_of, image_of, trained_graphs

DATA = encode(image_of())
HEADER = struct.calcsize("<14sHQ32s")

# What format 2 means. Who changes a record raises FORMAT, and then this text.
SHAPES = {
    3: """
Access: parent method key source example kind
Check: expression subject expected
Code: data constants
Constant: data
ConstantTensor: name dtype shape stride offset size device
CppKernel: name object entry
ExampleValue: kind value size
Global: module name kind index value
Graph: code entry kernels names standins constants aligned mutated surroundings captured training kind
Image: interpreter torch guard_settings units graphs globals weights library
Leaf: parent method arguments text
LibraryConstant: attribute dtype shape stride device
LibraryRecord: code device constants values tensors stored capability
Mapping: kind pairs
Mark: parent method
Modes: grad inference autocast
MutationRule: index kind leaf
OutputRule: kind base requires_grad
Predicate: parent method name code text argument
Reference: kind path digest
Relation: name groups names text
Root:
Sequence: kind items
Surroundings: without_autocast versions mutations outputs grad_after arguments
Tangent: position memory_format shape stride
TracedGraphs: graphs constants interpreter
Training: backward returned unchecked numbers detached unsafe_views aliases constant tangents deterministic without_autocast
TritonKernel: name object function shared warps signature scratch launcher
Unit: role module names source digest original entry variants
Variant: code guards call_checks load_checks modes
Weight: name sha256
"""  # noqa: E501
}


def test_a_record_changes_together_with_the_format() -> None:
    """Records are arrays: a field's place is its meaning, and old images must not be read as new."""
    records = {
        name: kind
        for name, kind in {**vars(image_format), **vars(alone), **vars(surroundings)}.items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and name != "Record"
    }
    lines = [
        " ".join([f"{name}:", *kind.__struct_fields__]) for name, kind in sorted(records.items())
    ]
    assert lines == SHAPES[image_format.FORMAT].strip().splitlines(), (
        "a record of lean images has other fields: raise image.format.FORMAT and describe it here"
    )


def test_an_image_comes_back_as_it_was_and_has_one_spelling() -> None:
    image = image_of()
    assert decode(encode(image)) == image
    assert encode(decode(DATA)) == DATA
    assert decode(memoryview(DATA)) == image


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(position: int, change: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= change
    with pytest.raises(CorruptedError):
        decode(bytes(damaged))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(DATA) - 1), st.binary(min_size=1, max_size=64))
def test_any_other_length_is_noticed(length: int, more: bytes) -> None:
    for damaged in (DATA[:length], DATA + more, more):
        with pytest.raises(CorruptedError):
            decode(damaged)


def test_another_format_is_named() -> None:
    other = DATA[:14] + struct.pack("<H", image_format.FORMAT + 1) + DATA[16:]
    with pytest.raises(CorruptedError, match=f"format {image_format.FORMAT + 1}"):
        decode(other)


def test_what_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_format, "MAX_IMAGE_BYTES", len(DATA) - 1)
    with pytest.raises(CorruptedError, match="over the limit"):
        decode(DATA)


def with_body(body: bytes) -> bytes:
    """A body under a header that is right for it."""
    header = struct.pack(
        "<14sHQ32s", DATA[:14], image_format.FORMAT, len(body), hashlib.sha256(body).digest()
    )
    return header + body


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_a_body_that_is_no_image_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptedError):
        decode(with_body(body))


@pytest.mark.parametrize("depth", [50, 5_000, 200_000])
def test_a_body_that_is_nested_deeply_is_corrupt(depth: int) -> None:
    with pytest.raises(CorruptedError):
        decode(with_body(b"\x91" * depth + b"\xc0"))


# --- bodies that decode and make no sense ------------------------------------------------------
#
# Marshalled data is left as it is: it is code of the very interpreter, executed as it stands, and only
# the digests of objects in a trusted store stand for it. Everything else is data, and may say anything.

TREE = msgspec.msgpack.decode(encode(image_of(graphs=trained_graphs()))[HEADER:])


def places(tree: Any, path: tuple[int | str, ...] = ()) -> list[tuple[int | str, ...]]:
    """Every place of a decoded body, except for marshalled code."""
    found = [] if isinstance(tree, bytes) else [path]
    if isinstance(tree, list):
        for index, item in enumerate(tree):
            found += places(item, (*path, index))
    if isinstance(tree, dict):
        for key, item in tree.items():
            found += places(item, (*path, key))
    return found


def replaced(tree: Any, path: tuple[int | str, ...], value: Any) -> Any:
    if not path:
        return value
    head, *rest = path
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[head] = replaced(tree[head], tuple(rest), value)
    return copy


def at(tree: Any, path: tuple[int | str, ...]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


OTHERS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([2**40, -(2**40)]),
    st.sampled_from(
        ["", "x", "torch", "os", "no_such_module", "system", "graph", "resume", "nested", "wrapped",
         "main", "name", "module", "function", "operator", "tuple", "dict", "keys", "tensor", "mapping",
         "getattr_manager", "add_none_match_guard", "framelocals_manager", "__class__", "code"]
    ),
    st.lists(st.integers(0, 3), max_size=3),
)  # fmt: skip


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(places(TREE)), OTHERS, st.sampled_from(["replace", "move", "drop", "twice"]))
def test_a_body_that_makes_no_sense_is_refused(
    path: tuple[int | str, ...], value: Any, how: str
) -> None:
    """It loads or it raises one of preheat's errors: nothing else, and no crash.

    What loads is right or misses: nothing of the result is run here but what the build marshalled.
    """
    old = at(TREE, path)
    if how == "move":
        value = at(TREE, places(TREE)[(len(path) * 7 + len(str(value))) % len(places(TREE))])
    elif isinstance(old, list) and old and how in ("drop", "twice"):
        value = old[:-1] if how == "drop" else [*old, old[-1]]
    data = with_body(msgspec.msgpack.encode(replaced(TREE, path, value)))
    with contextlib.suppress(PreheatError):
        Loaded(data)


def test_indices_outside_of_the_image_are_corrupt() -> None:
    image = image_of()
    for one in (
        msgspec.structs.replace(image.globals[0], index=5),
        msgspec.structs.replace(image.globals[0], kind="resume", index=9),
        msgspec.structs.replace(image.globals[0], kind="no such kind"),
    ):
        with pytest.raises((CorruptedError, IncompatibleError)):
            Loaded(image_of(globals=(one,)))
    with pytest.raises((CorruptedError, IncompatibleError)):
        Loaded(image_of(units=()))
    with pytest.raises((CorruptedError, IncompatibleError)):
        Loaded(image_of(graphs=(graph_of(standins=(("name", "no such stand-in"),)),)))
    with pytest.raises(CorruptedError, match="no backward graph 1"):
        Loaded(image_of(graphs=trained_graphs()[:1]))
