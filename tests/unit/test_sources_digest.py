"""Digests: what never changes them, and what always does."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.sources.digest import code_digest, compiled, exact_digest, module_digest

PROGRAM = '''"""Module."""
from __future__ import annotations

import math

SCALE = 3
TABLE = {"a": 1.5, "b": (1, 2, (3, None))}


class Layer:
    """Class."""

    width: int = 4

    def forward(self, x, *, bias=0.0):
        """Method."""
        self.seen = x
        if x in {1, 2, 3}:
            return x * SCALE + bias
        try:
            return [math.sqrt(y) for y in range(x) if y > 1]
        except ValueError as error:
            raise TypeError(f"{x!r} of {error}") from error


@property
def outer(x):
    """Function."""

    async def inner():
        """Inner."""
        return x

    pass
    return inner
'''
LINES = PROGRAM.splitlines()
DOCSTRINGS = ('"""Module."""', '"""Class."""', '"""Method."""', '"""Function."""', '"""Inner."""')


def of(text: str) -> str:
    return module_digest(text.encode())


def function(text: str, name: str = "f") -> Any:
    """A function compiled as import compiles it."""
    scope: dict[str, Any] = {}
    exec(compile(text, "somewhere.py", "exec"), scope)  # noqa: S102
    return scope[name]


def of_function(text: str) -> str:
    return code_digest(function(text).__code__)


@given(
    st.lists(
        st.tuples(st.integers(0, len(LINES)), st.sampled_from(["", "   ", "# why", "        # x"])),
        max_size=12,
    ),
    st.lists(st.integers(0, len(LINES) - 1), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_comments_and_blank_lines_never_count(
    insertions: list[tuple[int, str]], trailing: list[int]
) -> None:
    lines = list(LINES)
    for index in trailing:
        lines[index] += "  # trailing" if lines[index].strip() else ""
    for index, line in sorted(insertions, reverse=True):
        lines.insert(index, line)
    assert of("\n".join(lines)) == of(PROGRAM)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_docstrings_never_count(data: st.DataObject) -> None:
    text = PROGRAM
    for docstring in DOCSTRINGS:
        words = data.draw(st.text("abc \n'é", max_size=8))
        text = text.replace(docstring, data.draw(st.sampled_from(["", repr(words)])))
    assert of(text) == of(PROGRAM)


def test_a_second_leading_string_does_not_become_the_docstring() -> None:
    assert of('def f():\n "a"\n "b"\n return 1') == of("def f():\n return 1")


def test_a_body_of_nothing_but_a_docstring() -> None:
    assert of('class E(Exception):\n "why"') == of("class E(Exception): pass")


def test_docstrings_count_in_a_module_that_reads_them() -> None:
    text = 'def f():\n "{}"\nX = f.__doc__'
    assert of(text.format("a")) != of(text.format("b"))


def test_formatting_never_counts() -> None:
    assert of(ast.unparse(ast.parse(PROGRAM))) == of(PROGRAM)
    assert of("if x:\n    pass\nelse:\n    y = (1,\n  2)") == of("if x: pass\nelse: y = 1, 2")


def test_formatting_of_the_standard_library_never_counts() -> None:
    for module in (ast, subprocess, pytest):
        source = inspect.getsource(module).encode()
        assert module_digest(ast.unparse(ast.parse(source)).encode()) == module_digest(source)


CONSTANTS = [
    *("0", "1", "True", "False", "1.0", "0.0", "-0.0", "1j", "-1j", "None", "..."),
    *("''", "b''", "'1'", "b'1'", "'é'", "(1,)", "(True,)", "(1.0,)", "(1, 2)", "(1, (2,))"),
    *("((1, 2),)", "()", "[]", "{1}", "{1, 2}", "1e300", "1e309", "255", "256", "257", "10**40"),
    *("'\\ud800'", "'a'", "('a', 'b')", "('ab',)", "('b', 'a')", "x[1:2]", "x[(1, 2)]"),
]


@pytest.mark.parametrize("place", ["X = {}", "def f(x):\n return {}", "def f(x={}): return x"])
def test_every_constant_has_a_digest_of_its_own(place: str) -> None:
    seen: dict[str, str] = {}
    for constant in CONSTANTS:
        digest = of(place.format(constant))
        assert digest not in seen, f"{constant} and {seen[digest]}"
        seen[digest] = constant


@given(st.integers() | st.floats() | st.text() | st.binary() | st.booleans() | st.complex_numbers())
@settings(max_examples=100, deadline=None)
def test_another_constant_is_another_digest(value: object) -> None:
    base = repr(PROGRAM)
    if repr(value) not in ("3", base):
        text = repr(value).replace("nan", "1e999-1e999").replace("inf", "1e999")
        assert of(PROGRAM.replace("SCALE = 3", f"SCALE = {text}")) != of(PROGRAM)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SCALE = 3", "SCALE = 4"),
        ("x * SCALE", "x + SCALE"),
        ("x * SCALE", "x * WIDTH"),
        ("math.sqrt", "math.cbrt"),
        ("bias=0.0", "bias=-0.0"),
        ("{1, 2, 3}", "{1, 2, 4}"),
        ("class Layer:", "class Layer(Base):"),
        ("@property\n", ""),
        ("async def inner", "def inner"),
        ("from __future__ import annotations\n", ""),
        ("width: int", "width: float"),
        ("ValueError as", "KeyError as"),
        ("y > 1", "y >= 1"),
        ("import math", "import cmath as math"),
    ],
)
def test_what_the_program_does_always_counts(before: str, after: str) -> None:
    assert before in PROGRAM
    assert of(PROGRAM.replace(before, after)) != of(PROGRAM)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (complex(0.0, 1.0), complex(-0.0, 1.0)),
        (float("nan"), float("inf")),
        (frozenset({1, 2}), frozenset({1, 3})),
        (frozenset({1}), (1,)),
        ((1, (2, 3)), ((1, 2), 3)),
        (slice(1, 2), (1, 2, None)),
        pytest.param(16**5000, 16**5000 + 1, id="huge"),
    ],
)
def test_constants_that_no_text_shows(first: object, second: object) -> None:
    code: CodeType = function("def f(): return 'x'").__code__

    def replaced(value: object) -> str:
        consts = tuple(value if const == "x" else const for const in code.co_consts)
        return code_digest(code.replace(co_consts=consts))

    assert replaced(first) == replaced(first)
    assert replaced(first) != replaced(second)


def test_asserts_count() -> None:
    assert of("def f(x):\n assert x > 0") != of("def f(x):\n assert x > 1")


@pytest.mark.parametrize("broken", [b"def f(:", b"\0", b"\xff\xfe\xff", b"(" * 5000, b"a = 08"])
def test_a_broken_file_is_another_file(broken: bytes) -> None:
    assert module_digest(broken) == module_digest(broken)
    assert module_digest(broken) != module_digest(broken + b" ")
    assert module_digest(broken) != module_digest(b"")


def test_the_files_own_encoding_is_honoured() -> None:
    latin = "# coding: latin-1\nX = 'é'".encode("latin-1")
    assert module_digest(latin) == module_digest("X = 'é'".encode())


def test_warnings_of_the_compiler_are_neither_shown_nor_raised() -> None:
    assert of("X = '\\d'\nY = 1 is 1") != of("X = '\\d'\nY = 2 is 1")


def test_digests_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "import sys; from preheat.sources.digest import module_digest as m;"
        'print(m(b\'def f(x): return x in {"a", "b", "c", "d"}\\n'
        "class A:\\n def f(self): self.a = self.b = self.c = 1'))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(answers) == 1


def test_live_code_ignores_docstring_place_and_formatting() -> None:
    plain = "def f(x):\n    if x:\n        return [x, 'a']\n    return None\n"
    moved = "\n\n# why\n" + plain.replace("[x, 'a']", "[\n x,\n  'a'\n ]")
    documented = plain.replace("(x):\n", '(x):\n    """Doc."""\n')
    pass_added = plain.replace("    return None", "    pass\n    return None")
    assert len({of_function(text) for text in (plain, moved, documented, pass_added)}) == 1


def test_live_code_ignores_a_documented_class_inside() -> None:
    text = 'def f(x):\n class A:\n  "{}"\n  y = 300\n return A'
    assert of_function(text.format("a")) == of_function("\n" * 300 + text.format("b"))


def test_live_code_keeps_a_constant_that_equals_its_docstring() -> None:
    same = 'def f():\n "a"\n return "a"'
    assert of_function(same) == of_function('def f():\n return "a"')
    assert of_function(same) != of_function('def f():\n "a"\n return "b"')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x + 1", "x + 2"),
        ("x + 1", "x - 1"),
        ("range(9)", "range(True)"),
        ("KeyError", "ValueError"),
        ("k=2", "k=2, z=0"),
        ("x.a", "x.b"),
        ("if y", "if not y"),
        ("lambda: x", "lambda: y"),
    ],
)
def test_live_code_counts_what_it_does(before: str, after: str) -> None:
    text = (
        "def f(x, k=2):\n for y in range(9):\n  if y:\n   x = x + 1\n try:\n  return x.a\n"
        " except KeyError:\n  return lambda: x\n"
    )
    assert before in text
    assert of_function(text) != of_function(text.replace(before, after))


def test_live_code_is_the_same_after_it_ran_hot() -> None:
    f: FunctionType = function("def f(x):\n t = 0\n for i in range(x):\n  t += i\n return t")
    before = code_digest(f.__code__)
    for _ in range(200):
        f(50)
    assert code_digest(f.__code__) == before


def test_nested_code_counts() -> None:
    code = compile("def f():\n def g():\n  return {}\n".format("1"), "a", "exec")
    other = compile("def f():\n def g():\n  return {}\n".format("2"), "a", "exec")
    assert isinstance(code, CodeType)
    assert code_digest(code) != code_digest(other)


def test_more_than_255_constants() -> None:
    many = "def f():\n return [" + ", ".join(f"'{i}'" for i in range(600)) + ", x]\n"
    assert of_function(many) == of_function(many.replace("():\n", '():\n "doc"\n', 1))
    assert of_function(many) != of_function(many.replace("'599'", "'5990'"))


def test_importing_sources_imports_neither_torch_nor_asyncio() -> None:
    program = (
        "import sys, preheat.sources, preheat.sources.check, preheat.sources.declaration,"
        "preheat.sources.running, preheat.sources.places;"
        "print(sorted({'torch', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


def test_the_exact_digest_sees_everything_but_positions() -> None:
    def exact(text: str) -> str:
        return exact_digest(compiled(text.encode()))

    plain = exact("def f(x, y=0.0):\n    return x + 1, 'a'\n")
    assert plain == exact("# why\n\ndef f(x, y = 0.0):\n    return (x + 1, 'a')  # so\n")
    for other in (
        "def f(x, y=-0.0):\n    return x + 1, 'a'\n",
        "def f(x, y=0.0):\n    return x + 1.0, 'a'\n",
        "def f(x, y=0.0):\n    return x + True, 'a'\n",
        "def f(x, y=0.0):\n    return x + 1, 'b'\n",
        "def f(x, y=0.0):\n    'doc'\n    return x + 1, 'a'\n",
        "def f(x, z=0.0):\n    return x + 1, 'a'\n",
        "async def f(x, y=0.0):\n    return x + 1, 'a'\n",
        "def f(x, y=0.0):\n    return x - 1, 'a'\n",
        "def f(x, y=0.0):\n    return x + 1, 'a'\nimport os\n",
    ):
        assert exact(other) != plain
