"""Which names a piece of code mentions: the edges of the closure.

Names are taken as they are written. Where a piece computes a name (``getattr(x, word)``), it says so
instead, and whoever asks has to count everything that such a name could be.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING

from preheat.sources.bytecode import instructions

if TYPE_CHECKING:
    from preheat.sources.bytecode import Instruction

Chain = tuple[str, ...]

_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"})
_WORDS = re.compile(r"[\w.:/\[\]-]{1,200}")
_WORD = re.compile(r"[^\W\d]\w*")

# Builtins and attributes through which names are computed.
_BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
_WRITE_BY_NAME = frozenset({"setattr", "delattr", "__setattr__", "__delattr__"})
_LOOKS_AROUND = frozenset(
    {"dir", "attrgetter", "methodcaller", "getmembers", "getmembers_static", "getattr_static"}
    | {"__getattribute__", "vars", "__dict__"}
    | _BY_NAME
)
_WRITES_AROUND = frozenset({"vars", "__dict__"}) | _WRITE_BY_NAME
_OWN_NAMESPACE = frozenset({"globals", "locals", "f_globals", "__globals__", "__builtins__"})
_OTHER_MODULES = frozenset({"import_module", "__import__", "modules", "run_module", "run_path"})
_RUNS_TEXT = frozenset({"exec", "eval", "compile"})
_DYNAMIC = _LOOKS_AROUND | _WRITES_AROUND | _OWN_NAMESPACE | _OTHER_MODULES | _RUNS_TEXT
_BUILTINS = _BY_NAME | _RUNS_TEXT | {"dir", "vars", "globals", "locals"}
_ENVIRONMENT = frozenset({"environ", "environb", "getenv"})


@dataclass(slots=True)
class Mentions:
    """What one piece of code mentions.

    ``names``: globals of its module, taken alone. ``chains``: a global and the attributes that follow
    it directly. ``attributes``: of anything else. ``words``: strings that may be names. ``stores``:
    names bound elsewhere than in its own statement. ``imports``: modules that it imports when it runs,
    as (level, module, names). The rest says what it computes: names that are looked up on the globals
    in ``looks_on`` ("" stands for any value), ``writes``: names that it binds, ``own_namespace``: its
    module's globals, ``modules``: modules by name, ``text``: code.
    """

    names: set[str] = field(default_factory=set)
    chains: set[Chain] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    stores: set[str] = field(default_factory=set)
    imports: set[tuple[int, str, tuple[str, ...]]] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    looks_on: set[str] = field(default_factory=set)
    writes: bool = False
    own_namespace: bool = False
    modules: bool = False
    text: bool = False

    def all_words(self) -> set[str]:
        """Every word that occurs, in whatever role."""
        chained = {word for chain in self.chains for word in chain}
        return self.names | self.attributes | self.words | chained

    def note_string(self, text: str) -> None:
        """A string may be a name, or several with dots between them."""
        if _WORDS.fullmatch(text):
            self.words.update(_WORD.findall(text))

    def note_import(self, level: int, module: str, names: tuple[str, ...]) -> None:
        """An import that runs when the piece runs."""
        self.imports.add((level, module, names))

    def add(self, other: Mentions) -> None:
        """Take over what another piece mentions."""
        for name in ("names", "chains", "attributes", "words", "stores", "imports", "variables"):
            getattr(self, name).update(getattr(other, name))
        self.looks_on |= other.looks_on
        self.writes |= other.writes
        self.own_namespace |= other.own_namespace
        self.modules |= other.modules
        self.text |= other.text


def code_mentions(code: CodeType) -> Mentions:
    """What a code object and the code nested in it mention. What is computed: see ``note_computed``."""
    found = Mentions()
    _read_code(code, found)
    return found


def _read_code(code: CodeType, found: Mentions) -> None:
    steps = instructions(code)
    targets = {one.target for one in steps if one.target is not None}
    chain: list[str] = []
    for index, one in enumerate(steps):
        if chain and one.operation in _ATTRIBUTE and one.name and index not in targets:
            chain.append(one.name)
            if one.operation in _STORES:
                found.stores.add(one.name)
            continue
        _end_chain(chain, found)
        if one.has_constant:
            _read_constant(one.constant, found)
        elif one.name is not None:
            _read_name(code, steps, index, one, chain, found)
    _end_chain(chain, found)


def _read_name(
    code: CodeType,
    steps: list[Instruction],
    index: int,
    one: Instruction,
    chain: list[str],
    found: Mentions,
) -> None:
    assert one.name is not None
    if one.operation in _GLOBAL:
        chain.append(one.name)
    elif one.operation == "IMPORT_NAME":
        names = steps[index - 1].constant if index else None
        level = steps[index - 2].constant if index > 1 else 0
        wanted = names if isinstance(names, tuple) else ()
        found.note_import(level if isinstance(level, int) else 0, one.name, wanted)
    elif "FAST" in one.operation or "DEREF" in one.operation or "CLOSURE" in one.operation:
        pass  # a local variable
    elif one.operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
        found.names.add(one.name)
        found.stores.add(one.name)
    elif one.operation != "STORE_NAME":  # which binds in a class body of this very code
        found.attributes.add(one.name)
        if one.operation in _STORES:
            found.stores.add(one.name)


def _end_chain(chain: list[str], found: Mentions) -> None:
    if len(chain) == 1:
        found.names.add(chain[0])
    elif chain:
        found.chains.add(tuple(chain))
    chain.clear()


def _read_constant(value: object, found: Mentions) -> None:
    if isinstance(value, CodeType):
        _read_code(value, found)
    elif isinstance(value, str):
        found.note_string(value)
    elif isinstance(value, (tuple, frozenset)):
        for item in value:
            _read_constant(item, found)


def note_computed(tree: ast.AST, found: Mentions, bound: frozenset[str] = frozenset()) -> None:
    """Add to ``found``, the mentions of ``tree``, what the tree computes.

    ``bound``: names that the module gives a meaning of its own, so that they are no builtins.
    """
    words = found.all_words()
    if words & _ENVIRONMENT and not _only_sets_variables(tree):
        found.variables |= found.words
    suspicious = (words & _DYNAMIC) - (bound & _BUILTINS)
    if not suspicious:
        return
    understood = _understood_calls(tree, found)
    for node in ast.walk(tree):
        if id(node) in understood:
            continue
        if isinstance(node, ast.Name) and node.id in suspicious and node.id != "modules":
            _note(node.id, "", found)
        elif isinstance(node, ast.Attribute) and node.attr in suspicious:
            if node.attr in _RUNS_TEXT:
                continue  # re.compile, torch.compile, module.eval()
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in ("__dict__",) and owner == "self":
                continue  # an instance's own values, which its class's code has put there
            _note(node.attr, owner if node.attr in ("__dict__", "__getattribute__") else "", found)
    _note_imported_words(tree, suspicious, found)


def _only_sets_variables(tree: ast.AST) -> bool:
    """Whether every use of the environment is ``environ[...] = ...``: that asks for no value."""
    uses, stores = 0, 0
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _ENVIRONMENT:
                uses += 1
            case ast.alias(name=name) if name in _ENVIRONMENT:
                return False  # under which name it is used then is not looked at
            case ast.Constant(value=str(name)) if name in _ENVIRONMENT:
                return False
            case ast.AugAssign(target=ast.Subscript()):
                return False  # ``environ[...] += ...`` asks for the value first
        match node:
            case ast.Subscript(
                value=ast.Name(id=name) | ast.Attribute(attr=name), ctx=ast.Store()
            ) if name in _ENVIRONMENT:
                stores += 1
    return uses == stores


def _understood_calls(tree: ast.AST, found: Mentions) -> set[int]:
    """Calls whose names are constants or whose objects are known; their callables by id."""
    understood: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and _is_harmless_method(node):
            understood.add(id(node.func))
        if not isinstance(node.func, ast.Name) or not node.args:
            continue
        word = node.func.id
        if word in _BY_NAME and len(node.args) > 1:
            understood.add(id(node.func))
            owner = node.args[0].id if isinstance(node.args[0], ast.Name) else ""
            if not isinstance(node.args[1], ast.Constant):
                found.looks_on.add(owner)
                found.writes |= word in _WRITE_BY_NAME and owner != "self"
            elif word in _WRITE_BY_NAME and isinstance(node.args[1].value, str):
                found.stores.add(node.args[1].value)
        elif word == "vars" and _is_name(node.args[0], "self"):
            understood.add(id(node.func))
        elif word in _RUNS_TEXT and _read_text(node.args[0], found):
            understood.add(id(node.func))
    return understood


def _is_harmless_method(node: ast.Call) -> bool:
    assert isinstance(node.func, ast.Attribute)
    if node.func.attr == "modules":  # of torch.nn.Module; sys.modules is not called
        return True
    # Setting an attribute of the object itself, as frozen dataclasses and modules do.
    own = (node.args and _is_name(node.args[0], "self")) or isinstance(node.func.value, ast.Call)
    return node.func.attr in ("__setattr__", "__delattr__") and bool(own)


def _read_text(argument: ast.expr, found: Mentions) -> bool:
    """Code that is given as a constant is read like any other code."""
    if not isinstance(argument, ast.Constant) or not isinstance(argument.value, (str, bytes)):
        return False
    try:
        tree = ast.parse(argument.value)
        # In exec'd text every name may belong to the namespace that it is given.
        found.own_namespace = True
        found.add(code_mentions(compile(tree, "", "exec", dont_inherit=True, optimize=0)))
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    note_computed(tree, found)
    return True


def _note(word: str, owner: str, found: Mentions) -> None:
    if word in _LOOKS_AROUND:
        found.looks_on.add(owner)
    found.writes |= word in _WRITES_AROUND
    found.own_namespace |= word in _OWN_NAMESPACE
    found.modules |= word in _OTHER_MODULES
    found.text |= word in _RUNS_TEXT


def _note_imported_words(tree: ast.AST, suspicious: set[str], found: Mentions) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in suspicious:
                    _note(alias.name, "", found)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def chain_of(node: ast.Attribute) -> Chain | None:
    """``a.b.c`` as words, or None where it does not start with a name."""
    words: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        words.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name):
        return None
    return (inner.id, *reversed(words))
