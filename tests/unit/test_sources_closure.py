"""Which edits change a closure and which do not, one kind of program at a time."""

from __future__ import annotations

import pytest

from conformance.programs import Program

MODEL = {
    "model.py": """
        import torch
        from helpers import scale, unused_helper
        import constants
        UNUSED = 1
        WIDTH = 4
        def unrelated(x):
            return x
        def inner(x: int) -> int:
            '''Doc.'''
            return x * WIDTH  # why
        def forward(x, bias=constants.BIAS):
            return inner(x) + scale(x) + bias + constants.OFFSET
        def make():
            return forward
        """,
    "helpers.py": """
        FACTOR = 2
        def scale(x):
            return x * FACTOR
        def unused_helper(x):
            return x
        """,
    "constants.py": """
        BIAS = 1.0
        OFFSET = 2.0
        OTHER = 3.0
        """,
}


@pytest.fixture(scope="module")
def model() -> Program:
    return Program.of(MODEL, "model:make", "model:forward")


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        ("model.py", "x * WIDTH", "x + WIDTH", "inner"),
        ("model.py", "WIDTH = 4", "WIDTH = 5", "WIDTH"),
        ("model.py", "bias=constants.BIAS", "bias=constants.OFFSET", "forward"),
        ("helpers.py", "x * FACTOR", "FACTOR", "scale"),
        ("helpers.py", "FACTOR = 2", "FACTOR = 3", "FACTOR"),
        ("constants.py", "OFFSET = 2.0", "OFFSET = 2", "OFFSET"),
        ("constants.py", "BIAS = 1.0", "BIAS = -1.0", "BIAS"),
        ("model.py", "helpers import scale,", "helpers import unused_helper as scale,", "scale"),
    ],
)
def test_an_edit_of_what_is_used_counts(
    model: Program, path: str, old: str, new: str, expected: str
) -> None:
    assert model.edited(path, old, new) == [f"symbol_edited {expected}"]


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("model.py", "# why", "# because"),
        ("model.py", "'''Doc.'''", ""),
        ("model.py", "x: int) -> int", "x: 'float')"),
        ("model.py", "inner(x) + scale(x)", "inner(\n        x\n    ) + scale(x,)"),
        ("model.py", "UNUSED = 1", "UNUSED = 2"),
        ("model.py", "UNUSED = 1\n", ""),
        ("model.py", "import torch\n", "import torch, json\nimport torch.nn as nn\n"),
        ("model.py", "    return x\n", "    return -x\n"),
        ("helpers.py", "    return x\n", "    return -x\n"),
        ("constants.py", "OTHER = 3.0", "OTHER = 4.0"),
        ("constants.py", "OTHER = 3.0", "OTHER = 4.0\ndef more():\n    return 1"),
        ("constants.py", "BIAS = 1.0\nOFFSET = 2.0", "OFFSET = 2.0\nBIAS = 1.0"),
    ],
)
def test_an_edit_of_what_is_not_used_does_not(
    model: Program, path: str, old: str, new: str
) -> None:
    assert model.edited(path, old, new) == []


def test_a_name_that_appears_counts_when_it_is_looked_up(model: Program) -> None:
    assert model.appended("model.py", "def forward(x): return x") == ["symbol_added forward"]
    assert model.appended("helpers.py", "scale = abs") == ["symbol_added scale"]
    assert model.appended("helpers.py", "print('at import')") == ["symbol_added print"]
    assert model.appended("helpers.py", "import made_by_others") == [
        "symbol_added import made_by_others"
    ]


def test_a_name_that_goes_counts(model: Program) -> None:
    assert model.edited("constants.py", "OFFSET = 2.0", "") == ["symbol_deleted OFFSET"]


def test_text_that_does_not_compile_counts(model: Program) -> None:
    assert model.rewritten("model.py", "def (") == ["module_edited"]
    broken = model.files["model.py"] + "def inner(x):\n    nonlocal x\n"
    assert model.rewritten("model.py", broken) == ["module_edited"]


def test_a_local_variable_has_no_name_unless_somebody_looks() -> None:
    text = "def f(x):\n    y = x + 1\n    return y{}\n"
    plain = Program.of({"m.py": text.format("")}, "m:f")
    assert plain.rewritten("m.py", text.format("").replace("y", "z")) == []
    shown = Program.of({"m.py": text.format(" + len(locals())")}, "m:f")
    assert shown.rewritten("m.py", text.format(" + len(locals())").replace("y", "z"))


IMPORT_TIME = {
    "registry": """
        TABLE = {}
        def register(fn):
            TABLE[fn.__name__] = fn
            return fn
        @register
        def one(x):
            return x + 1
        def f(x):
            return TABLE["one"](x)
        """,
    "monkeypatch": """
        class Box:
            pass
        def patch():
            Box.fn = one
        def one(x):
            return x + 1
        patch()
        def f(x):
            return Box.fn(x)
        """,
    "loop": """
        import math
        class Box:
            pass
        def one(x):
            return x + 1
        for name in ("a", "b"):
            setattr(Box, name, one)
        def f(x):
            return Box.a(x)
        """,
    "subclasses": """
        class Base:
            found = []
            def __init_subclass__(cls):
                Base.found.append(cls)
        class Hidden(Base):
            def run(self, x):
                return one(x)
        def one(x):
            return x + 1
        def f(x):
            return Base.found[0]().run(x)
        """,
    "conditional": """
        import math
        if math.pi > 3:
            def one(x):
                return x + 1
        else:
            def one(x):
                return x + 2
        def f(x):
            return one(x)
        """,
    "global statement": """
        K = 0
        def one():
            global K
            K = K + 1
        one()
        def f(x):
            return x + K
        """,
    "exec": """
        exec("def one(x):\\n    return x + 1")
        def f(x):
            return one(x)
        """,
    "computed exec": """
        text = "def one(x):\\n    return x + {}"
        exec(text.format(1))
        def f(x):
            return one(x)
        """,
    "globals": """
        globals()["on" + "e"] = lambda x: x + 1
        def f(x):
            return one(x)
        """,
    "property": """
        class A:
            @property
            def one(self):
                return self.x + 1
        def f(x):
            return A().one
        """,
    "dunder": """
        class A:
            def __call__(self, x):
                return x + 1
        a = A()
        def f(x):
            return a(x)
        """,
    "metaclass": """
        class Meta(type):
            @property
            def one(cls):
                return cls.x + 1
        class A(metaclass=Meta):
            x = 1
        def f(x):
            return x + A.one
        """,
    "closure": """
        def outer(k):
            def inner(x):
                return x + 1
            return inner
        g = outer(1)
        def f(x):
            return g(x)
        """,
    "lambda": """
        TABLE = {"one": lambda x: (x
            + 1)}
        def f(x):
            return TABLE["one"](x)
        """,
    "operator by string": """
        import torch
        @torch.library.custom_op("own::one", mutates_args=())
        def one(x: torch.Tensor) -> torch.Tensor:
            return x + 1
        @one.register_fake
        def _(x):
            return torch.empty_like(x)
        def f(x):
            return torch.ops.own.one(x)
        """,
    "autograd function": """
        import torch
        class Fn(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x
            @staticmethod
            def backward(ctx, g):
                return g + 1
        def f(x):
            return Fn.apply(x)
        """,
    "name from a string": """
        class A:
            def one(self, x):
                return x + 1
        def f(x):
            return getattr(A(), "o" + "ne")(x)
        """,
    "enum": """
        import enum
        class Mode(enum.Enum):
            A = 1 + 1
        def f(x):
            return x + Mode.A.value
        """,
}


@pytest.mark.parametrize("name", IMPORT_TIME)
def test_what_import_does_counts(name: str) -> None:
    program = Program.of({"m.py": IMPORT_TIME[name]}, "m:f")
    text = program.files["m.py"]
    assert program.rewritten("m.py", f"# moved\n\n{text}") == []
    changed = text.replace("+ 1", "+ 7").replace("format(1)", "format(7)")
    assert changed != text
    assert program.rewritten("m.py", changed), name


def test_schema_annotations_of_operators_count() -> None:
    program = Program.of({"m.py": IMPORT_TIME["operator by string"]}, "m:f")
    assert program.edited("m.py", "(x: torch.Tensor)", "(x: list[torch.Tensor])")


def test_a_fake_or_backward_that_is_registered_counts() -> None:
    program = Program.of({"m.py": IMPORT_TIME["operator by string"]}, "m:f")
    assert program.edited("m.py", "empty_like", "zeros_like") == ["symbol_edited _"]


def test_annotations_count_where_they_are_read() -> None:
    text = "def one(x: int):\n    return x\ndef f(x):\n    return one(x){}\n"
    plain = Program.of({"m.py": text.format("")}, "m:f")
    assert plain.rewritten("m.py", text.format("").replace("int", "float")) == []
    read = Program.of({"m.py": text.format(", one.__annotations__")}, "m:f")
    assert read.rewritten("m.py", text.format(", one.__annotations__").replace("int", "float"))


def test_docstrings_count_where_they_are_read() -> None:
    text = 'def one(x):\n    "doc"\n    return x\ndef f(x):\n    return one.{}\n'
    plain = Program.of({"m.py": text.format("x")}, "m:f")
    assert plain.rewritten("m.py", text.format("x").replace("doc", "words")) == []
    read = Program.of({"m.py": text.format("__doc__")}, "m:f")
    assert read.rewritten("m.py", text.format("__doc__").replace("doc", "words"))


def test_a_program_that_reads_its_text_says_so() -> None:
    text = "import inspect\ndef f(x):\n    return inspect.getsource(f)\n"
    assert Program.of({"m.py": text}, "m:f").closure.text


ORDER = """
    def sum(xs):
        return 5
    TOTAL = sum([1])
    K = 1
    def g(x, k=K):
        return x * k
    K = 2
    A = 1
    B = 2
    def f(x):
        return g(x) + K + TOTAL + A + B
    """


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("A = 1\nB = 2\n", "B = 2\nA = 1\n", False),
        ("K = 2\nA = 1\n", "A = 1\nK = 2\n", False),
        (
            "def g(x, k=K):\n    return x * k\nK = 2\n",
            "K = 2\ndef g(x, k=K):\n    return x * k\n",
            True,
        ),
        (
            "def sum(xs):\n    return 5\nTOTAL = sum([1])\n",
            "TOTAL = sum([1])\ndef sum(xs):\n    return 5\n",
            True,
        ),
    ],
)
def test_order_counts_where_names_are_bound_again(old: str, new: str, counts: bool) -> None:
    program = Program.of({"m.py": ORDER}, "m:f")
    assert program.edited("m.py", old, new) == (["order_changed"] if counts else [])


def test_imports_may_be_sorted_unless_modules_do_something() -> None:
    files = {
        "m.py": "import a\nimport b\ndef f(x):\n    return a.A + b.B\n",
        "a.py": "A = 1\n",
        "b.py": "B = 1\n",
    }
    swapped = "import b\nimport a\ndef f(x):\n    return a.A + b.B\n"
    assert Program.of(files, "m:f").rewritten("m.py", swapped) == []
    loud = {**files, "a.py": "A = 1\nimport b\nb.B = 2\n", "b.py": "import a\nB = 1\na.A = 3\n"}
    assert Program.of(loud, "m:f").rewritten("m.py", swapped) == ["order_changed"]


def test_class_bodies_keep_their_order_where_it_matters() -> None:
    text = """
        scale = 1
        class A:
            scale = 2
            def one(self, x=scale):
                return x
            def two(self):
                return 2
            def three(self):
                return self.two()
        def f(x):
            return A().one() + A().three()
        """
    program = Program.of({"m.py": text}, "m:f")
    two, three = (
        "    def two(self):\n        return 2\n",
        ("    def three(self):\n        return self.two()\n"),
    )
    assert program.edited("m.py", two + three, three + two) == []
    one = "    def one(self, x=scale):\n        return x\n"
    assert program.edited("m.py", f"    scale = 2\n{one}", f"{one}    scale = 2\n")


MODULE = {
    "m.py": """
        import torch
        class Base(torch.nn.Module):
            def pre(self, x):
                return x
            def helper(self, x):
                return x
        class Net(Base):
            scale = 2
            def forward(self, x):
                return self.pre(x) * self.scale
            def generate(self, x):
                return x
        def make():
            return Net()
        """
}


def test_methods_count_by_name_or_because_a_library_calls_them() -> None:
    program = Program.of(MODULE, "m:make", "m:Net.forward", inherited=("train", "forward"))
    assert program.edited("m.py", "def generate(self, x):\n        return x", "y = 1") == [
        "symbol_edited Net"
    ]
    text = program.files["m.py"]
    assert (
        program.rewritten("m.py", text.replace("return x\ndef make", "return -x\ndef make")) == []
    )
    new = "def generate(self, x):\n        return x\n    def {}(self, *a):\n        return 1"
    for name, counts in (("train", True), ("pre", True), ("other", False), ("__add__", True)):
        found = program.edited("m.py", "def generate(self, x):\n        return x", new.format(name))
        assert found == ([f"symbol_added Net.{name}"] if counts else []), name


def test_without_knowing_what_libraries_call_every_method_of_a_subclass_counts() -> None:
    program = Program.of(MODULE, "m:make", "m:Net.forward", inherited=None)
    assert "Net.generate" in program.units("m")


def test_the_base_counts() -> None:
    program = Program.of(MODULE, "m:make", "m:Net.forward")
    assert program.edited("m.py", "class Net(Base)", "class Net(torch.nn.Module)") == [
        "symbol_edited Net"
    ]


def test_names_go_through_any_number_of_modules() -> None:
    files = {
        "m.py": "from pkg import *\nimport pkg.deep.er as d\ndef f(x):\n    return a(x) + d.e(x)\n",
        "pkg/__init__.py": "from .one import *\nfrom . import consts\nOTHER = 1\n",
        "pkg/one.py": "from .two import b as a\nfrom .consts import *\n",
        "pkg/two.py": "from . import consts\ndef b(x):\n    return consts.K + x\ndef c(x):\n    return x\n",
        "pkg/consts.py": "K = 1\nL = 2\n",
        "pkg/deep/__init__.py": "",
        "pkg/deep/er.py": "def e(x):\n    from pkg.deep import late\n    return late.go(x)\n",
        "pkg/deep/late.py": "def go(x):\n    return x + 1\ndef stay(x):\n    return x\n",
    }
    program = Program.of(files, "m:f")
    assert program.edited("pkg/consts.py", "K = 1", "K = 2") == ["symbol_edited K"]
    assert program.edited("pkg/consts.py", "L = 2", "L = 3") == []
    assert program.edited("pkg/two.py", "K + x", "K - x") == ["symbol_edited b"]
    assert program.edited("pkg/two.py", "return x\n", "return -x\n") == []
    assert program.edited("pkg/deep/late.py", "x + 1", "x + 2") == ["symbol_edited go"]
    assert program.edited("pkg/deep/late.py", "return x\n", "return -x\n") == []
    assert program.appended("pkg/consts.py", "def a(x): return 0\n") == ["symbol_added a"]
    assert program.edited("pkg/__init__.py", "OTHER = 1", "OTHER = 2") == []


def test_a_module_that_is_passed_around_is_open() -> None:
    files = {
        "m.py": "import ops\ndef use(module, x):\n    return module.go(x)\n"
        "def f(x):\n    return use(ops, x)\n",
        "ops.py": "def go(x):\n    return x + 1\ndef stay(x):\n    return x\n",
    }
    program = Program.of(files, "m:f")
    assert program.edited("ops.py", "x + 1", "x + 2") == ["symbol_edited go"]
    assert program.edited("ops.py", "return x\n", "return -x\n") == []


def test_code_that_is_not_found_by_name_makes_its_module_count_as_a_whole() -> None:
    program = Program.of({"m.py": "def f(x):\n    return x\n"}, "m:f", "m:made_elsewhere")
    (units,) = program.closure.modules
    assert units.whole is not None


def test_main_and_type_checking_blocks_never_run() -> None:
    text = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from somewhere import Type
        def f(x):
            return x
        if __name__ == "__main__":
            print(f(1))
        """
    program = Program.of({"m.py": text}, "m:f")
    assert program.edited("m.py", "print(f(1))", "print(f(2))") == []
    assert program.edited("m.py", "import Type", "import Other") == []


def test_the_same_closure_whatever_the_order_of_the_roots() -> None:
    one = Program.of(MODEL, "model:make", "model:forward")
    other = Program.of(MODEL, "model:forward", "model:make", "model:forward")
    assert one.closure == other.closure


def test_a_module_is_open_to_whoever_lists_it() -> None:
    text = "import inspect, ops\nTABLE = {{name: fn for name, fn in {}}}\n"
    text += "def f(x):\n    return TABLE['go'](x)\n"
    for listing in ("ops.__dict__.items()", "vars(ops).items()", "inspect.getmembers(ops)"):
        files = {"m.py": text.format(listing), "ops.py": "def go(x):\n    return x + 1\n"}
        program = Program.of(files, "m:f")
        assert program.edited("ops.py", "x + 1", "x + 2") == ["symbol_edited go"], listing
        assert program.appended("ops.py", "def more(x): return x") == ["symbol_added more"]


def test_a_module_s_own_getattr_counts() -> None:
    files = {
        "m.py": "import lazy\ndef f(x):\n    return lazy.go(x)\n",
        "lazy.py": "def __getattr__(name):\n    return lambda x: x + 1\n",
    }
    program = Program.of(files, "m:f")
    assert program.edited("lazy.py", "x + 1", "x + 2") == ["symbol_edited __getattr__"]


def test_an_annotation_of_a_constant_is_not_read(model: Program) -> None:
    assert model.edited("constants.py", "OFFSET = 2.0", "OFFSET: float = 2.0") == []


def test_two_functions_that_tell_each_other_s_names_are_no_trap() -> None:
    files = {"a.py": "from b import x\ndef f(y):\n    return x(y)\n", "b.py": "from a import x\n"}
    assert Program.of(files, "a:f").closure.modules


@pytest.mark.parametrize(
    ("statement", "asked"),
    [
        ('os.environ["SWITCH"] = "1"', False),
        ('os.environ["SWITCH"] += "1"', True),
        ('os.environ.setdefault("SWITCH", "1")', True),
        ('os.environ["OTHER"] = os.environ["SWITCH"]', True),
        ('WORD = "SWITCH"; os.environ["OTHER"] = os.getenv(WORD)', True),
    ],
)
def test_setting_a_variable_is_no_question_for_it(statement: str, asked: bool) -> None:
    text = f"import os\ndef make():\n    {statement}\n    return make\n"
    closure = Program.of({"model.py": text}, "model:make").closure
    assert ("SWITCH" in closure.variables) is asked
