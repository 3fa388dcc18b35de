"""Checks that stand for guards on identity: the fast comparison never says more than the checks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from preheat.image.call_checks import CallChecks, Check
from preheat.image.fingerprints import fingerprint


def check_of(expression: str, value: Any) -> Check:
    found = fingerprint(value)
    assert found is not None
    return Check(expression, "value", found)


plain = st.one_of(
    st.integers(-2, 2), st.booleans(), st.sampled_from([0.0, -0.0, 1.0, math.nan]), st.text("ab")
)


@given(built=st.tuples(plain, plain), calls=st.lists(st.tuples(plain, plain), max_size=8))
def test_a_call_passes_exactly_when_every_value_is_the_builds(
    built: tuple[Any, Any], calls: list[tuple[Any, Any]]
) -> None:
    checks = CallChecks(
        [check_of("L['x']", built[0]), check_of("G['y'][0]", built[1])], {"G": (scope := {})}
    )
    for x, y in [*calls, built, built, *calls]:
        scope["y"] = [y]
        same = (fingerprint(x), fingerprint(y)) == (fingerprint(built[0]), fingerprint(built[1]))
        assert checks({"x": x}) is same


@pytest.mark.parametrize("value", [torch.relu, math, dict, torch.nn.functional.gelu, torch.float32])
def test_an_object_is_known_again_and_another_is_not(value: Any) -> None:
    checks = CallChecks([check_of("L['x']", value)], {"G": {}})
    for _ in range(3):
        assert checks({"x": value})
        assert not checks({"x": torch.sin})
        assert not checks({})


def test_a_function_of_the_same_code_passes_and_one_of_other_code_does_not() -> None:
    def made(factor: int) -> Any:
        def times(x: int) -> int:
            return x * factor

        return times

    checks = CallChecks([check_of("L['f']", made(2))], {"G": {}})
    assert checks({"f": made(2)})
    assert checks({"f": made(3)})
    assert not checks({"f": lambda x: x})
