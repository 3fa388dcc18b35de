"""Properties of the finer rule: what never changes a digest, and what always does."""

from __future__ import annotations

import ast
import importlib
import textwrap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.programs import Program
from preheat.sources.digest import code_digest
from preheat.sources.pieces import function_digest
from preheat.sources.tables import read_table

TEXT = textwrap.dedent('''
    """Module."""
    import math

    SCALE = 3
    SHIFT = 0.5
    NAMES = ("a", "b")


    def first(x, y=2, *rest, z=4, **more):
        """First."""
        total = x * SCALE + y - z
        for item in rest:
            if item > 10 and (item < 20 or item == 7):
                total += item * 2
            elif item is None:
                continue
            else:
                total -= 1
        try:
            total = total / (x - 1)
        except ZeroDivisionError as error:
            raise ValueError(f"{x} is 1") from error
        finally:
            total = total + SHIFT
        return total if total > 0 else -total


    def second(x):
        values = [first(n, z=1) for n in range(x) if n % 2]
        with open("nothing") as file:
            while file.read(1):
                x, values = values, x
        return {"k": values, NAMES[0]: len(values) or x}


    class Third:
        """Third."""

        width = 4

        def __init__(self, depth=5):
            self.depth = depth

        def run(self, x):
            assert x != 6, "no"
            return lambda y: second(y) + x * self.width - self.depth

        def forward(self, x):
            yield from (self.run(x)(n) for n in (1, 2))


    def make():
        return Third(), first, second
    ''')
LINES = TEXT.splitlines()
PROGRAM = Program.of({"m.py": TEXT}, "m:make", "m:Third.run", "m:Third.forward")


def rewritten(text: str) -> list[str]:
    return PROGRAM.rewritten("m.py", text)


@given(
    st.lists(
        st.tuples(st.integers(1, len(LINES)), st.sampled_from(["", "   ", "# why", "    # x"])),
        max_size=12,
    ),
    st.lists(st.integers(1, len(LINES) - 1), max_size=6),
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
    assert rewritten("\n".join(lines)) == []


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_formatting_never_counts(random: Any) -> None:
    """Line breaks inside of brackets, wherever the tokens allow them."""
    lines = []
    for line in ast.unparse(ast.parse(TEXT)).splitlines():
        depth, text = 0, ""
        quote = ""
        for letter in line:
            if quote:
                quote = "" if letter == quote else quote
            elif letter in "'\"":
                quote = letter
            depth += (letter in "([{") - (letter in ")]}") if not quote else 0
            text += letter
            if depth > 0 and not quote and letter in ",([{" and random.random() < 0.4:
                text += "  # broken\n" + " " * random.randrange(9)
        lines.append(text)
    assert rewritten("\n".join(lines)) == []


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_functions_and_constants_never_counts(random: Any) -> None:
    tree = ast.parse(TEXT)
    random.shuffle(tree.body)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            random.shuffle(node.body)
    assert rewritten(ast.unparse(tree)) == []


def _spots(tree: ast.AST) -> list[Any]:
    kinds = (ast.Constant, ast.BinOp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.AugAssign)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node for node in ast.walk(tree) if isinstance(node, kinds) and id(node) not in docstrings
    ]


def _change(node: Any, draw: Any) -> None:
    if isinstance(node, ast.Constant):
        old = node.value
        values: Any = st.sampled_from(
            [st.integers(), st.floats(allow_nan=False), st.text("abc")]
        ).flatmap(lambda one: one)
        node.value = draw(
            values.filter(lambda new: (type(new), repr(new)) != (type(old), repr(old)))
        )
    elif isinstance(node, ast.Compare):
        node.ops[0] = ast.GtE() if not isinstance(node.ops[0], ast.GtE) else ast.LtE()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.Invert()
    else:
        others = [one for one in (ast.Add, ast.Sub, ast.Mult) if not isinstance(node.op, one)]
        node.op = draw(st.sampled_from(others))()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_constants_and_operators_in_the_closure_always_count(data: st.DataObject) -> None:
    tree = ast.parse(TEXT)
    spots = [one for one in _spots(tree) if not isinstance(getattr(one, "op", 0), ast.Not)]
    # Parts of an f-string are no expressions of their own.
    inside = {id(n) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for n in one.values}
    node = data.draw(st.sampled_from([one for one in spots if id(one) not in inside]))
    _change(node, data.draw)
    assert rewritten(ast.unparse(tree)) != []


def _functions(code: CodeType) -> list[CodeType]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [one for code in inner for one in (code, *_functions(code))]


def test_the_same_digest_from_text_and_from_the_imported_function() -> None:
    scope: dict[str, Any] = {"__name__": "m"}
    exec(compile(TEXT, "m.py", "exec", dont_inherit=True), scope)  # noqa: S102
    units = PROGRAM.units("m")
    for name, function in (
        ("first", scope["first"]),
        ("second", scope["second"]),
        ("Third.run", scope["Third"].run),
        ("Third.forward", scope["Third"].forward),
    ):
        assert isinstance(function, FunctionType)
        assert function_digest(function.__code__) == units[name].digest


@pytest.mark.parametrize("module", ["argparse", "dataclasses", "inspect", "tarfile", "typing"])
def test_layout_never_shows_in_code(module: str) -> None:
    """Programs nobody wrote for this test: with their line breaks and without any."""
    file = importlib.import_module(module).__file__
    assert file is not None
    tree = ast.parse(Path(file).read_bytes())
    before = [function_digest(one) for one in _functions(_compiled(tree))]
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            node.lineno = node.end_lineno = 1  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
    after = [function_digest(one) for one in _functions(_compiled(tree))]
    # Without line numbers the compiler keeps equal lambdas once.
    assert set(before) == set(after)


def _compiled(tree: ast.Module) -> CodeType:
    code: CodeType = compile(tree, "", "exec", dont_inherit=True, optimize=0)
    return code


def test_tables_read_each_statement_once() -> None:
    table = read_table(TEXT.encode())
    assert table is not None
    symbols = [piece.symbol for piece in (*table.pieces, *table.methods) if piece.kind != "runs"]
    assert symbols == [
        *("math", "SCALE", "SHIFT", "NAMES", "first", "second", "Third", "make"),
        *("Third.__init__", "Third.run", "Third.forward"),
    ]


def test_swapped_branches_are_told_apart() -> None:
    one = "def f(x, y):\n    if x{}:\n        return 1\n    return 2\n"
    texts = [one.format(test) for test in ("", " is None", " and y", " or y", " is not None")]
    texts += [text.replace("return 1", "return 3").replace("2", "1") for text in texts]
    digests = set()
    for text in texts:
        scope: dict[str, Any] = {}
        exec(text, scope)  # noqa: S102
        digests.add(code_digest(scope["f"].__code__))
    assert len(digests) == len(texts)
