"""The collector of garbage waits, and never longer than it was asked to."""

from __future__ import annotations

import gc

import pytest

from preheat.garbage import without_collector


def test_it_waits_and_goes_on_afterwards() -> None:
    assert gc.isenabled()
    with without_collector():
        assert not gc.isenabled()
        with without_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_exception() -> None:
    with pytest.raises(KeyError), without_collector():
        raise KeyError
    assert gc.isenabled()


def test_one_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
