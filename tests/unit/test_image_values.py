"""Portable values: what comes back is exactly what went in, or it was refused."""

from __future__ import annotations

import collections
import enum
import functools
import math
import operator
import types
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import given, settings

from preheat.errors import IncompatibleError
from preheat.image.format import Reference, Value
from preheat.image.values import UnportableError, decode, encode, encode_code, on_device

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.just(...),
)
HASHABLE = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3).map(collections.OrderedDict),
        st.sets(HASHABLE, max_size=3),
        st.builds(slice, inner, inner, inner),
    ),
    max_leaves=6,
)


def spelt(value: Any) -> Any:
    """A text that tells apart what ``==`` does not: ``True`` and 1, ``0.0`` and ``-0.0``."""
    kind = type(value)
    if kind in (list, tuple):
        return kind.__name__, [spelt(item) for item in value]
    if kind in (set, frozenset):
        return kind.__name__, sorted((spelt(item) for item in value), key=repr)
    if isinstance(value, dict):
        return kind.__name__, [(spelt(k), spelt(v)) for k, v in value.items()]
    if kind is slice:
        return "slice", [spelt(part) for part in (value.start, value.stop, value.step)]
    return kind.__name__, repr(value)


def through_bytes(value: Any) -> Any:
    data = msgspec.msgpack.encode(encode(value))
    return decode(msgspec.msgpack.decode(data, type=Value))


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_plain_values_come_back_with_their_exact_types(value: Any) -> None:
    assert spelt(through_bytes(value)) == spelt(value)


class Color(enum.Enum):
    RED = 1
    ALSO_RED = 1


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Owner:
    class Inner:
        @classmethod
        def make(cls) -> None: ...

    def method(self) -> None: ...


def function(x: int) -> int:
    return x + 1


NAMED = [
    Color.RED,
    Color.ALSO_RED,
    Flags.A,
    Owner,
    Owner.Inner,
    Owner.method,
    Owner.Inner.make,
    dict.fromkeys,
    function,
    int,
    len,
    math.inf,
    operator.add,
    torch,
    torch.nn.functional,
    torch.float32,
    torch.strided,
    torch.channels_last,
    torch.device("cpu"),
    torch.Size((1, 2)),
    torch.relu,
    torch.nn.functional.linear,
    torch._C._nn.gelu,
    torch.ops.aten.add.Tensor,
    torch.ops.aten.relu.default,
    torch.ops.aten.add,
    range(1, 9, 3),
    functools.reduce,
]


@pytest.mark.parametrize("value", NAMED, ids=lambda value: repr(value).partition(" at 0x")[0])
def test_what_has_a_name_is_found_again(value: Any) -> None:
    again = through_bytes(value)
    assert again == value
    assert type(again) is type(value)
    if isinstance(value, (type, types.FunctionType, types.ModuleType, enum.Enum)):
        assert again is value


def test_a_mapping_proxy_keeps_its_names_and_keys_their_order() -> None:
    assert list(through_bytes(types.MappingProxyType({"b": object(), "a": 1}))) == ["b", "a"]
    keys = through_bytes({"b": 1, "a": 2}.keys())
    assert type(keys) is type({}.keys())
    assert list(keys) == ["b", "a"]


def _local_class() -> Any:
    class Local: ...

    return Local


class Number(int):
    """Not an int: guards tell them apart."""


class Listing(list):  # type: ignore[type-arg]
    """Not a list."""


REFUSED = {
    "instance": Owner(),
    "local class": _local_class(),
    "instance of a local class": _local_class()(),
    "lambda": lambda x: x,
    "local function": (lambda: lambda: 1)(),
    "bound method": Owner().method,
    "subclass of int": Number(3),
    "subclass of list": Listing([1]),
    "tensor": torch.ones(2),
    "partial": functools.partial(function, 1),
    "generator": (i for i in ()),
    "member of no name": Flags.A | Flags.B,
    "local enum": enum.Enum("Local", "A B").A,  # type: ignore[attr-defined]
    "inside of a list": [1, {"a": (2, Owner())}],
    "as a key": {Owner(): 1},
    "an array view": memoryview(b"abc"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(UnportableError):
        encode(REFUSED[name])


def test_what_is_nested_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnportableError, match="too deeply"):
        encode(endless)


def test_a_function_is_the_same_only_with_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = encode(function)

    def edited(x: int) -> int:
        return x + 2

    monkeypatch.setattr(function, "__code__", edited.__code__)
    with pytest.raises(IncompatibleError) as caught:
        decode(recorded)
    (reason,) = caught.value.reasons
    assert reason.kind == "live_code_differs"
    assert reason.file == __file__
    assert "function" in (reason.symbol or "")


@pytest.mark.parametrize(
    "missing",
    [
        Reference("module", ("no_such_module",)),
        Reference("name", ("math", "no_such_name")),
        Reference("name", ("no_such_module", "name")),
        Reference("function", ("math", "no_such_name"), "digest"),
        Reference("enum", (__name__, "Color", "BLUE")),
        Reference("torch", ("float7",)),
        Reference("operator", ("no_such_library::operator", "default")),
        Reference("operator", ("aten::add", "NoSuchOverload")),
        Reference("packet", ("no_such_library::operator",)),
        Reference("device", ("no such device",)),
    ],
    ids=lambda reference: "-".join((reference.kind, *reference.path)),
)
def test_a_name_that_leads_nowhere_is_a_reason(missing: Reference) -> None:
    with pytest.raises(IncompatibleError) as caught:
        decode(missing)
    (reason,) = caught.value.reasons
    assert reason.kind == "live_code_missing"
    assert reason.detail


def test_a_gpu_of_the_build_stands_for_the_one_of_the_worker() -> None:
    recorded = encode([torch.device("cuda", 0), torch.device("cuda"), torch.device("cpu")])
    assert decode(recorded) == [
        torch.device("cuda", 0),
        torch.device("cuda"),
        torch.device("cpu"),
    ]
    with on_device(3):
        assert decode(recorded)[0] == torch.device("cuda", 3)
        assert decode(recorded)[1:] == [torch.device("cuda"), torch.device("cpu")]
        with on_device(1):
            assert decode(recorded)[0] == torch.device("cuda", 1)
        assert decode(recorded)[0] == torch.device("cuda", 3)
    assert decode(recorded)[0] == torch.device("cuda", 0)


def test_code_with_constants_that_marshal_refuses_is_written_one_by_one() -> None:
    code = function.__code__
    odd = code.replace(
        co_consts=(*code.co_consts, torch.float16, globals(), (Color.RED, function.__code__))
    )
    again = decode(msgspec.msgpack.decode(msgspec.msgpack.encode(encode_code(odd)), type=Value))
    assert isinstance(again, types.CodeType)
    assert again.co_code == code.co_code
    assert again.co_consts[-3] is torch.float16
    assert again.co_consts[-2] is globals()
    assert again.co_consts[-1] == (Color.RED, function.__code__)
    assert encode_code(code).constants is None
    assert decode(encode_code(code)) == code
