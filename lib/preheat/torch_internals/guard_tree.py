"""Build side: a record of how torch builds a frame's guard tree, step by step.

The tree itself is C++ and cannot be written down. What can be is the sequence of calls that made it;
``preheat.image.guards`` makes the same calls in a worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import marshal
import types
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch._dynamo import guards as torch_guards

from preheat.image.call_checks import TRAILING
from preheat.image.format import (
    Access,
    Constant,
    ExampleValue,
    GuardStep,
    Leaf,
    Mark,
    Predicate,
    Relation,
    Root,
    Value,
)
from preheat.image.standins import ACCESSORS, guard_helpers
from preheat.image.values import UnportableError, decode, encode, reference
from preheat.torch_internals.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Accessors by the name of the argument that says what is reached; None: it needs none.
_ACCESSORS: dict[str, str | None] = {
    "call_function_no_args_manager": None,
    "closure_manager": None,
    "code_manager": None,
    "dict_getitem_manager": "key",
    "framelocals_manager": "key",
    "func_defaults_manager": None,
    "func_kwdefaults_manager": None,
    "generic_getattr_manager": "attr",
    "get_generic_dict_manager": None,
    "get_key_manager": "index",
    "get_value_manager": "index",
    "getattr_manager": "attr",
    "getitem_manager": "key",
    "global_weakref_manager": "global_name",
    "globals_dict_manager": "f_globals",
    "grad_manager": None,
    "indexed_manager": "idx",
    "lambda_manager": "python_lambda",
    "list_getitem_manager": "key",
    "set_getitem_manager": "index",
    "tensor_property_size_manager": "idx",
    "tensor_property_storage_offset_manager": "idx",
    "tensor_property_stride_manager": "idx",
    "tuple_getitem_manager": "key",
    "tuple_iterator_getitem_manager": "index",
    "type_dict_manager": None,
    "type_manager": None,
    "type_mro_manager": None,
    "weakref_call_manager": None,
}
_MARKS = ("mark_tag_safe", "mark_tag_safe_root")
_RELATIONS = (
    "install_object_aliasing_guard",
    "install_no_tensor_aliasing_guard",
    "install_storage_overlapping_guard",
    "install_symbolic_shape_guard",
)
_COMPILER_MODULES = ("torch._dynamo", "torch._inductor")
_EXAMPLE_TYPES = (int, float, str, bool, bytes, type(None))


@dataclasses.dataclass
class GuardTree:
    """The steps that made one tree. ``refusals`` say what has no meaning in another process."""

    steps: list[GuardStep] = dataclasses.field(default_factory=list)
    refusals: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Node:
    tree: GuardTree
    number: int
    example: Any


class GuardTreeRecorder:
    """Records every guard tree that is built while it listens; ``tree_of`` hands one out by its root."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._alive: list[Any] = []  # ids mean something only while the objects live
        self._objects: dict[int, Any] = {}
        self._predicate_text: tuple[str, ...] | None = None
        self._lambda_source: Any = None

    def tree_of(self, root: Any) -> GuardTree:
        """What was recorded of a root, until now."""
        return self._node(root).tree

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record inside the block."""
        cpp = torch._C._dynamo.guards
        with contextlib.ExitStack() as stack:
            for kind in (cpp.GuardManager, cpp.DictGuardManager, cpp.RootGuardManager):
                for name in list(vars(kind)):
                    wrapper = self._wrapper(name, vars(kind)[name])
                    if wrapper is not None:
                        stack.enter_context(replaced(kind, name, wrapper))
            for name in _RELATIONS:
                original = getattr(torch_guards, name)
                wrapped = self._relation(name, original)
                stack.enter_context(replaced(torch_guards, name, wrapped))
            for owner, name, make in (
                (torch_guards.CheckFunctionManager, "id_ref", self._remembering_objects),
                (torch_guards.GuardBuilder, "get_guard_manager_from_source", self._knowing_source),
                (
                    torch_guards.GuardBuilder,
                    "add_python_lambda_leaf_guard_to_root",
                    self._knowing_text,
                ),
            ):
                stack.enter_context(replaced(owner, name, make(vars(owner)[name])))
            yield

    # --- hooks -----------------------------------------------------------------------------

    def _wrapper(self, name: str, original: Any) -> Callable[..., Any] | None:
        if name in _ACCESSORS:
            return self._access(name, original)
        if name in _MARKS:
            return self._mark(name, original)
        if name.startswith("add_"):
            return self._leaf(name, original)
        return None

    def _remembering_objects(self, original: Any) -> Any:
        def id_ref(manager: Any, value: Any, text: str) -> Any:
            self._objects[id(value)] = value
            return original(manager, value, text)

        return id_ref

    def _knowing_source(self, original: Any) -> Any:
        def get_guard_manager_from_source(builder: Any, source: Any) -> Any:
            before, self._lambda_source = self._lambda_source, source
            try:
                return original(builder, source)
            finally:
                self._lambda_source = before

        return get_guard_manager_from_source

    def _knowing_text(self, original: Any) -> Any:
        def add_python_lambda(builder: Any, code_parts: Any, *args: Any, **kwargs: Any) -> Any:
            self._predicate_text = tuple(code_parts)
            try:
                return original(builder, code_parts, *args, **kwargs)
            finally:
                self._predicate_text = None

        return add_python_lambda

    def _access(self, name: str, original: Any) -> Callable[..., Any]:
        key_name = _ACCESSORS[name]

        def made(manager: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(manager, *args, **kwargs)
            names = [*([key_name] if key_name else []), "source", "example_value"]
            given = {**dict(zip([*names, "guard_manager_enum"], args, strict=False)), **kwargs}
            parent = self._node(manager)
            if (known := self._nodes.get(id(result))) is not None and known.tree is parent.tree:
                return result
            tree, example = parent.tree, given["example_value"]
            with self._refusing(tree, name):
                key = self._key(name, given[key_name]) if key_name else None
                number = len(tree.steps)
                tree.steps.append(
                    Access(
                        parent.number,
                        name,
                        key,
                        given["source"],
                        _example(example),
                        given["guard_manager_enum"].name,
                    )
                )
                self._remember(result, _Node(tree, number, example))
            return result

        return made

    def _key(self, name: str, value: Any) -> Value | None:
        if name == "globals_dict_manager":
            return None
        if name == "lambda_manager":
            source = self._lambda_source
            kind = type(source).__name__
            if kind not in ACCESSORS:
                raise UnportableError(f"it reaches a value by a {kind}")
            return encode((kind, getattr(source, "module_name", None)))
        return encode(value)

    def _mark(self, name: str, original: Any) -> Callable[..., Any]:
        def marked(manager: Any) -> Any:
            node = self._node(manager)
            node.tree.steps.append(Mark(node.number, name))
            return original(manager)

        return marked

    def _leaf(self, name: str, original: Any) -> Callable[..., Any]:
        def added(manager: Any, *args: Any) -> Any:
            result = original(manager, *args)
            node = self._node(manager)
            with self._refusing(node.tree, f"{name} on {_source(manager)}"):
                step = self._leaf_step(name, node, args)
                if step is not None:
                    node.tree.steps.append(step)
            return result

        return added

    def _leaf_step(self, name: str, node: _Node, args: tuple[Any, ...]) -> GuardStep | None:
        own, text = _split(name, args)
        if name in ("add_lambda_guard", "add_epilogue_lambda_guard"):
            return self._predicate(name, node, own[0], text)
        special = getattr(self, "_" + name, None)
        arguments = special(node, own) if special else tuple(encode(value) for value in own)
        return Leaf(node.number, name, arguments, text)

    def _add_type_match_guard(self, node: _Node, own: tuple[Any, ...]) -> tuple[Value, ...]:
        kind = type(node.example)
        return (reference(kind if id(kind) == own[0] else self._by_id(own[0])),)

    def _add_id_match_guard(self, node: _Node, own: tuple[Any, ...]) -> tuple[Value, ...]:
        value = node.example if id(node.example) == own[0] else self._by_id(own[0])
        if value is None or isinstance(value, (bool, type(Ellipsis))):
            return (encode(value),)
        return (reference(value),)

    def _add_tensor_match_guard(self, node: _Node, own: tuple[Any, ...]) -> tuple[Value, ...]:
        tensor, size, stride, name, kind, keys = own
        if tensor.layout is not torch.strided:
            raise UnportableError(f"a tensor with layout {tensor.layout}")
        plain = (tensor.dtype, tensor.device, tensor.requires_grad, list(size), list(stride), name)
        return (*(encode(value) for value in plain), reference(kind), encode(keys.raw_repr()))

    def _add_global_state_guard(self, node: _Node, own: tuple[Any, ...]) -> tuple[Value, ...]:
        return (encode(own[0].__getstate__()),)

    def _add_torch_function_mode_stack_guard(
        self, node: _Node, own: tuple[Any, ...]
    ) -> tuple[Value, ...]:
        if own[0]:
            raise UnportableError("a torch function mode is active")
        return (encode([]),)

    def _add_default_device_guard(self, node: _Node, own: tuple[Any, ...]) -> tuple[Value, ...]:
        import torch.utils._device

        return (encode(torch.utils._device.CURRENT_DEVICE),)

    def _add_dispatch_key_set_guard(self, node: _Node, own: tuple[Any, ...]) -> tuple[Value, ...]:
        return (encode(own[0].raw_repr()),)

    def _add_tuple_iterator_length_guard(
        self, node: _Node, own: tuple[Any, ...]
    ) -> tuple[Value, ...]:
        return (encode(own[0]), reference(type(node.example)))

    def _add_range_iterator_match_guard(
        self, node: _Node, own: tuple[Any, ...]
    ) -> tuple[Value, ...]:
        return (*(encode(value) for value in own[:3]), reference(type(node.example)))

    def _add_dict_version_guard(self, node: _Node, own: tuple[Any, ...]) -> tuple[Value, ...]:
        raise UnportableError("a dictionary's version means nothing in another process")

    def _predicate(
        self, method: str, node: _Node, function: Any, text: tuple[str, ...]
    ) -> GuardStep | None:
        if getattr(function, "preheat_call_checks", False):
            return None  # they are recorded by themselves
        if self._predicate_text is not None:
            parts = tuple(part for part in self._predicate_text if not about_compiler(part))
            if not parts:
                return None
            return Predicate(node.number, method, "code", _compiled(parts), parts[:4])
        name, argument = _known_predicate(function)
        return Predicate(node.number, method, name, b"", text, argument)

    def _relation(self, name: str, original: Any) -> Callable[..., Any]:
        def installed(*args: Any) -> Any:
            result = original(*args)
            first = args[0][0] if isinstance(args[0], list) else args[0]
            tree = self._node(first).tree
            with self._refusing(tree, name):
                tree.steps.append(self._relation_step(name, args))
            return result

        return installed

    def _relation_step(self, name: str, args: tuple[Any, ...]) -> Relation:
        if name == "install_object_aliasing_guard":
            groups, names = [[args[0], args[1]]], ()
        elif name == "install_no_tensor_aliasing_guard":
            groups, names = [args[0]], tuple(args[1])
        elif name == "install_storage_overlapping_guard":
            groups, names = [args[0], args[1]], ()
        else:
            raise UnportableError("a shape check is compiled C++")
        numbers = tuple(tuple(self._node(one).number for one in group) for group in groups)
        text = next((tuple(map(str, a)) for a in args[2:] if isinstance(a, list)), ())
        return Relation(name, numbers, names, text[:4])

    # --- bookkeeping -----------------------------------------------------------------------

    def _node(self, manager: Any) -> _Node:
        node = self._nodes.get(id(manager))
        if node is None:
            node = _Node(GuardTree(steps=[Root()]), 0, None)
            self._remember(manager, node)
        return node

    def _remember(self, manager: Any, node: _Node) -> None:
        self._alive.append(manager)
        self._nodes[id(manager)] = node

    def _by_id(self, number: int) -> Any:
        if number in self._objects:
            return self._objects[number]
        for node in self._nodes.values():
            if id(node.example) == number:
                return node.example
        raise UnportableError("it compares with an object that is not at hand")

    @contextlib.contextmanager
    def _refusing(self, tree: GuardTree, what: str) -> Iterator[None]:
        try:
            yield
        except UnportableError as error:
            tree.refusals.append(f"guard {what}: {error}")


def _source(manager: Any) -> str:
    with contextlib.suppress(Exception):
        return str(manager.get_source())
    return "?"


def _example(value: Any) -> ExampleValue:
    if isinstance(value, torch.Tensor):
        return ExampleValue("tensor")
    if type(value) in _EXAMPLE_TYPES:
        return ExampleValue("constant", encode(value))
    if isinstance(value, dict):
        return ExampleValue("mapping", reference(type(value)), len(value))
    return ExampleValue("object")


def _split(name: str, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """A guard's own arguments, and its text. Since torch 2.12 a stack follows the text."""
    if name == "add_tensor_match_guard":
        return (*args[:4], *args[4 + TRAILING :]), _text(args[4])
    own, rest = args[: len(args) - TRAILING], args[len(args) - TRAILING :]
    return own, _text(rest[0])


def _text(parts: Any) -> tuple[str, ...]:
    # A comment with the file and line of the build's own stack follows each expression.
    return tuple(str(part).split("  # ")[0].strip()[:200] for part in parts)[:4]


# torch's registry of containers grows with every library that is imported, the compiler among them;
# what a program's own containers are made of is compared by itself.
_COMPILER_NAMES = (
    "__import_torch_dot__dynamo",
    "__import_torch_dot__inductor",
    "_pytree.SUPPORTED_NODES",
)


def about_compiler(expression: str) -> bool:
    """Whether a guard's expression is about the compiler: constant for one version of torch."""
    return any(name in expression for name in _COMPILER_NAMES)


def _compiled(parts: tuple[str, ...]) -> bytes:
    """``def guard(L)`` over ``G`` and the helpers that a worker has."""
    text = "def guard(L):\n    return " + " and ".join(f"({part})" for part in parts)
    module = compile(text, "<preheat guard>", "exec")
    code = next(c for c in module.co_consts if isinstance(c, types.CodeType))
    known = {*guard_helpers(), "G", *vars(__import__("builtins"))}
    loaded = {name for name in _global_names(code) if name not in known}
    if loaded:
        raise UnportableError(f"its expression uses {', '.join(sorted(loaded))}")
    return marshal.dumps(code)


def _global_names(code: types.CodeType) -> Iterator[str]:
    import dis

    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _known_predicate(function: Any) -> tuple[str, Value | None]:
    """preheat's name for one of torch's Python checks, told by the code that made it."""
    maker = function.__qualname__.split(".<locals>")[0].rpartition(".")[2]
    cells = {
        name: cell.cell_contents
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
    }
    if maker == "FUNCTORCH_STACK_MATCH":
        if cells["states"]:
            raise UnportableError("a functorch transformation is active")
        return "no functorch", None
    if maker == "AUTOGRAD_SAVED_TENSORS_HOOKS":
        if cells["guard_hooks_ids"]:
            raise UnportableError("hooks on saved tensors are active")
        return "no saved tensor hooks", None
    if "base_value" in cells:
        return "base value", encode(cells["base_value"])
    if "normalized_count_iter" in cells and cells.get("count_type") is itertools.count:
        return "count", encode(cells["normalized_count_iter"])
    raise UnportableError(f"{maker} is a Python function of the compiler's")


def pruned(steps: list[GuardStep]) -> tuple[GuardStep, ...]:
    """The steps without those about the compiler's own modules: constant for one torch version."""
    dropped: set[int] = set()
    numbers: dict[int, int] = {}
    kept: list[GuardStep] = []
    for number, step in enumerate(steps):
        if isinstance(step, Access) and (step.parent in dropped or _reaches_compiler(step)):
            dropped.add(number)
            continue
        if isinstance(step, (Leaf, Predicate, Mark)) and step.parent in dropped:
            continue
        if isinstance(step, Relation):
            if any(one in dropped for group in step.groups for one in group):
                continue
            groups = tuple(tuple(numbers[one] for one in group) for group in step.groups)
            step = Relation(step.name, groups, step.names, step.text)
        elif not isinstance(step, Root):
            step = msgspec.structs.replace(step, parent=numbers[step.parent])
        numbers[number] = len(kept)
        kept.append(step)
    return tuple(kept)


def _reaches_compiler(step: Access) -> bool:
    if about_compiler(step.source):
        return True
    if not isinstance(step.key, Constant):
        return False
    key = decode(step.key)
    if step.method == "dict_getitem_manager":
        return isinstance(key, str) and about_compiler(key)
    return step.method == "lambda_manager" and str(key[1]).startswith(_COMPILER_MODULES)
