"""Build side: a record of how torch builds a frame's guard tree, step by step.

The tree itself is C++ and cannot be written down. What can be is the sequence of calls that made it;
``preheat.image.guards`` makes the same calls in a worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import guards as torch_guards

from preheat.image.format import (
    Access,
    GuardStep,
    Leaf,
    Mark,
    Predicate,
    Relation,
    Root,
    Value,
)
from preheat.image.standins import ACCESSORS
from preheat.image.values import UnportableError, encode, reference
from preheat.torch_internals.guard_steps import (
    about_compiler,
    compiled_predicate,
    example_of,
    known_predicate,
    split_arguments,
)
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
                        example_of(example),
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
        own, text = split_arguments(name, args)
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
            return Predicate(node.number, method, "code", compiled_predicate(parts), parts[:4])
        name, argument = known_predicate(function)
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
