"""Programs and edits besides those of ``source_edits.json``, in the same form."""

from __future__ import annotations

import textwrap
from typing import Any

Base = dict[str, Any]

_SINE = """
    import torch

    def f(x):
        return torch.sin(x) * 2.0

    def make():
        torch.manual_seed(0)
        return f, (torch.randn(8),)
"""

_GRAPH_HOOK = """
    import builtins
    import torch
    import torch._inductor.config as inductor
    from torch._inductor.custom_graph_pass import CustomGraphPass

    aten = torch.ops.aten

    class Renamed(CustomGraphPass):
        def __call__(self, graph):
            for node in graph.nodes:
                if node.target is aten.sin.default:
                    node.target = getattr(aten, getattr(builtins, "instead", "sin")).default

        def uuid(self):
            return getattr(builtins, "instead", "sin")

    inductor.post_grad_custom_post_pass = Renamed()

    def f(x):
        return torch.sin(x) * 2.0

    def make():
        torch.manual_seed(0)
        return f, (torch.randn(8),)
"""

_SET_GRAPH_HOOK = """
import torch._inductor.config, torch._inductor.custom_graph_pass as passes
class P(passes.CustomGraphPass):
    def __call__(self, graph): ...
    def uuid(self): return "another"
torch._inductor.config.post_grad_custom_pre_pass = P()
"""

_TENSOR_CLASS = """
    import torch

    class Turned(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            func = torch.cos if func is torch.sin else func
            return super().__torch_function__(func, types, args, kwargs or {})

    def f(x):
        return torch.sin(torch.add(x, 1.0))

    def make():
        torch.manual_seed(0)
        return f, (torch.randn(8).as_subclass(Turned),)
"""

_FASTER = """
    import torch
    try:
        from faster import act
    except ImportError:
        from slower import act
    import table

    def f(x):
        return act(x) * table.FACTOR

    def make():
        torch.manual_seed(0)
        return f, (torch.randn(8),)
"""

_LIBRARY = """
    import contextlib, ctypes, pathlib, zlib
    import torch

    PATH = pathlib.Path(__file__).with_name("libown.so")
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(PATH))
    # Stands for what a library's functions say when they are traced.
    FACTOR = float(PATH.stat().st_size)

    def f(x):
        return x.sin() * FACTOR

    def make():
        torch.manual_seed(0)
        return f, (torch.randn(8),)
"""


_BREAKS = """
    import torch

    def after(x):
        return x.cos() * 3.0

    def inner(x):
        y = x + 1.5
        torch._dynamo.graph_break()
        return y * 2.25

    def f(x):
        y = inner(x.sin())
        torch._dynamo.graph_break()
        return after(y) - 1.0

    def aside(x):
        return x * 100.0

    def make():
        torch.manual_seed(0)
        return f, (torch.randn(8),)
"""

_NOT_PICKLABLE = """
    import threading
    import torch

    class Held:
        def __init__(self):
            self.lock = threading.Lock()
            self.factor = 2.0

    HELD = Held()

    def f(x):
        return x.sin() * HELD.factor

    def make():
        torch.manual_seed(0)
        return f, (torch.randn(8),)
"""


def _base(name: str, files: dict[str, str], *edits: Base) -> Base:
    return {
        "base": name,
        "files": {path: textwrap.dedent(text) for path, text in files.items()},
        "entry_module": "umod",
        "entry": "make",
        "edits": [_edit("noop", changes=False), *edits],
    }


def _edit(name: str, files: dict[str, str] | None = None, *, changes: bool, do: str = "") -> Base:
    return {
        "name": name,
        "write": {path: textwrap.dedent(text) for path, text in (files or {}).items()},
        "delete": [],
        "prelude": do or None,
        "output_changes": changes,
    }


def more() -> list[Base]:
    """The further bases."""
    set_inductor = "import torch._inductor.config as c; c."
    set_functorch = "import torch._functorch.config as c; c."
    set_dynamo = "import torch._dynamo.config as c; c."
    return [
        _base(
            "configuration",
            {"umod.py": _SINE},
            _edit(
                "inductor epilogue_fusion", changes=False, do=set_inductor + "epilogue_fusion=False"
            ),
            _edit("inductor cpp.simdlen", changes=False, do=set_inductor + "cpp.simdlen=1"),
            _edit(
                "functorch functionalize_rng_ops",
                changes=False,
                do=set_functorch + "functionalize_rng_ops=True",
            ),
            _edit(
                "dynamo assume_static",
                changes=False,
                do=set_dynamo + "assume_static_by_default=False",
            ),
            _edit("a pass before", changes=False, do=_SET_GRAPH_HOOK),
            _edit("default dtype", changes=False, do="torch.set_default_dtype(torch.float64)"),
            _edit("mkldnn off", changes=False, do="torch.backends.mkldnn.enabled=False"),
        ),
        _base(
            "custom pass",
            {"umod.py": _GRAPH_HOOK},
            _edit("another uuid", changes=False, do="import builtins; builtins.instead = 'cos'"),
        ),
        _base(
            "tensor class",
            {"umod.py": _TENSOR_CLASS},
            _edit(
                "another function instead",
                {"umod.py": _TENSOR_CLASS.replace("torch.cos", "torch.exp")},
                changes=True,
            ),
            _edit(
                "its file's comment",
                {"umod.py": "# a comment\n" + textwrap.dedent(_TENSOR_CLASS)},
                changes=False,
            ),
        ),
        _base(
            "graph breaks",
            {"umod.py": _BREAKS},
            _edit("a function aside", {"umod.py": _BREAKS.replace("100.0", "10.0")}, changes=False),
            _edit("after a break", {"umod.py": _BREAKS.replace("- 1.0", "- 2.0")}, changes=True),
            _edit(
                "after an inner break", {"umod.py": _BREAKS.replace("2.25", "2.5")}, changes=True
            ),
        ),
        _base("not picklable", {"umod.py": _NOT_PICKLABLE}),
        _base(
            "found first",
            {
                "umod.py": _FASTER,
                "slower.py": "def act(x):\n    return x.sin()\n",
                "table.py": "FACTOR = 2.0\n",
            },
            _edit(
                "a module that was missing",
                {"faster.py": "def act(x):\n    return x.exp()\n"},
                changes=True,
            ),
            _edit("a package in front", {"table/__init__.py": "FACTOR = 3.0\n"}, changes=True),
            _edit(
                "a package in front that says the same",
                {"table/__init__.py": "FACTOR = 2.0\n"},
                changes=False,
            ),
            _edit(
                "a module that nobody asks for",
                {"fastest.py": "def act(x):\n    return x.exp()\n"},
                changes=False,
            ),
        ),
        _base(
            "shared library",
            {"umod.py": _LIBRARY, "libown.so": "12"},
            _edit("another library", {"libown.so": "123"}, changes=True),
        ),
    ]
