"""Names in a package, looked up in this process, and globals that packages share."""

from __future__ import annotations

import collections
import os.path
from typing import Any

import pytest

from preheat.errors import IncompatibleError
from preheat.image.values import import_object
from preheat.torch_internals.install import provide
from preheat.torch_internals.installed import Installed


class Outer:
    """Has a class inside."""

    class Inner:
        """Reached by a qualified name."""


def test_modules_and_what_is_in_them() -> None:
    assert import_object("os.path") is os.path
    assert import_object("collections:OrderedDict") is collections.OrderedDict
    assert import_object(f"{__name__}:Outer.Inner") is Outer.Inner


@pytest.mark.parametrize("path", ["no_such_module_at_all", "collections:NoSuch", "os:path.no.such"])
def test_what_is_not_there_raises(path: str) -> None:
    with pytest.raises((ImportError, AttributeError)):
        import_object(path)


def test_a_name_means_one_thing_in_a_process() -> None:
    """Two build processes may give one name to two classes: numbers in names are addresses."""
    scope: dict[str, Any] = {"__name__": "model"}
    first, second = Installed(("first", 1)), Installed(("second", 2))
    provide("__subclass_T_9_c0", Outer, scope, first)
    provide("__subclass_T_9_c0", Outer, scope, second)
    with pytest.raises(IncompatibleError) as caught:
        provide("__subclass_T_9_c0", Outer.Inner, scope, second)
    (reason,) = caught.value.reasons
    assert (reason.kind, reason.symbol) == ("name_taken", "model.__subclass_T_9_c0")
    assert scope["__subclass_T_9_c0"] is Outer
