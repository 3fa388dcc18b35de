"""What a file says about a factory, without importing it."""

from __future__ import annotations

import pytest

from preheat.sources.declaration import binds, declared_name, find_declaration


@pytest.mark.parametrize(
    ("head", "decorator", "name"),
    [
        ("import preheat", "@preheat.target(name='mlp')", "mlp"),
        ("import preheat as ph", "@ph.target(name='mlp')", "mlp"),
        ("from preheat import target", "@target(name='mlp')", "mlp"),
        ("from preheat import target as warm", "@warm(name='mlp')", "mlp"),
        ("from preheat.spec import target", "@target(name='mlp')", "mlp"),
        ("import preheat", "@preheat.target()", None),
        ("import preheat", "@preheat.target", None),
        ("import preheat", "@preheat.target(name=NAME)", None),
        ("import preheat", "@preheat.target(name=3)", None),
        ("import preheat", "@preheat.target(name=f'a')", None),
        ("import preheat", "@other\n@preheat.target(name='mlp')\n@cache", "mlp"),
    ],
)
def test_names(head: str, decorator: str, name: str | None) -> None:
    source = f"{head}\n{decorator}\ndef build():\n    pass\n".encode()
    declared = find_declaration(source, "build")
    assert declared is not None
    assert declared.marked
    assert declared.name == name == declared_name(source, "build")


def test_another_decorator_is_no_mark() -> None:
    declared = find_declaration(b"@warm(name='x')\ndef build(): pass", "build")
    assert declared is not None
    assert (declared.line, declared.marked, declared.name) == (2, False, None)


def test_the_last_definition_wins_also_inside_of_blocks() -> None:
    source = b"""
@target(name="a")
def build(): pass
try:
    import fast
except ImportError:
    with x:
        @target(name="b")
        async def build(): pass
match y:
    case 1:
        @target(name="c")
        def other(): pass
"""
    assert declared_name(source, "build") == "b"
    assert declared_name(source, "other") == "c"


def test_a_method() -> None:
    source = b"class Models:\n @staticmethod\n @target(name='m')\n def build(): pass"
    assert declared_name(source, "Models.build") == "m"
    assert declared_name(source, "Models.other") is None
    assert declared_name(source, "build") is None


def test_a_nested_function_is_not_the_factory() -> None:
    source = b"def outer():\n @target(name='x')\n def build(): pass"
    assert find_declaration(source, "build") is None
    assert not binds(source, "build")


@pytest.mark.parametrize(
    "source",
    [
        "def build(): pass",
        "from models import build",
        "from models import make as build",
        "from models import *",
        "import build.more",
        "build = target(make)",
        "build: object = make",
        "if x:\n (build := 1)",
        "for build in y: pass",
        "def __getattr__(name): pass",
        "def build(: broken",
    ],
)
def test_a_name_that_may_be_bound(source: str) -> None:
    assert binds(source.encode(), "build")


@pytest.mark.parametrize("source", ["", "def other(): pass", "import other", "x.build = 1"])
def test_a_name_that_is_not_bound(source: str) -> None:
    assert not binds(source.encode(), "build")


@pytest.mark.parametrize("source", [b"def build(:", b"\0", b"\xff\xff"])
def test_a_broken_file_declares_nothing(source: bytes) -> None:
    assert declared_name(source, "build") is None
