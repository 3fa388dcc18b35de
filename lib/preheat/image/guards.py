"""torch's own guard tree, built again from the record of how the build process built it.

What torch would check at each call is checked by the same C++ code. Expected values come from the
record alone, never from a live object of this process.
"""

from __future__ import annotations

import json
import types
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import IncompatibleError
from preheat.image.call_checks import guard_text
from preheat.image.enumeration import compiler_settings, manager_kinds
from preheat.image.format import (
    Access,
    ExampleValue,
    Leaf,
    Mark,
    Modes,
    Predicate,
    Relation,
    Root,
    unmarshal,
)
from preheat.image.modes import entered
from preheat.image.standins import ACCESSORS, PREDICATES, guard_helpers
from preheat.image.values import decode
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preheat.image.format import GuardStep


_torch_guards: Any = torch._C._dynamo.guards

# A manager takes None for an immutable value and then skips checks while a dict's version is unchanged:
# any other object stands for a value that may change.
_SOME_OBJECT = object()
_SOME_TENSOR = torch.nn.Parameter(torch.ones(1))


class Guards:
    """The guards of one variant: ``check(locals)`` says whether it may answer a call.

    ``scope`` are the globals of the code, ``names`` those that have another name here. Raises
    ``IncompatibleError`` when a class or function that guards compare with cannot be found in this
    process. Nothing is promised for code objects whose globals are another dictionary.
    """

    def __init__(
        self,
        steps: Sequence[GuardStep],
        scope: dict[str, Any],
        modes: Modes,
        settings: dict[str, bool | int],
        names: Mapping[str, str],
        any_thread_count: bool = False,
    ) -> None:
        self._scope = scope
        self._names = names
        self._global_nodes: set[int] = set()
        self._any_thread_count = any_thread_count
        # Compared by identity: they must outlive the tree.
        self._kept: list[Any] = []
        self._nodes: list[Any] = []
        self._tensors: dict[tuple[Any, ...], torch.Tensor] = {}
        with compiler_settings(settings), entered(modes):
            self._kinds = manager_kinds()
            makers: dict[type, Callable[[Any], Any]] = {
                Access: self._access,
                Leaf: self._leaf,
                Mark: self._mark,
                Predicate: self._predicate,
                Relation: self._relation,
                Root: self._root,
            }
            add = self._nodes.append
            for step in steps:
                add(makers[type(step)](step))
        self.root = self._nodes[0]
        self.check = self.root.check

    def why_not(self, local_scope: dict[str, Any]) -> str:
        """The first guard that does not hold, in torch's words; "" when all do."""
        try:
            result = self.root.check_verbose(local_scope)
        except Exception as error:
            return f"guards not readable ({type(error).__name__})"
        if result.result:
            return ""
        return "; ".join(str(part).strip() for part in result.verbose_code_parts[:1])

    def _root(self, step: Root) -> Any:
        return _torch_guards.RootGuardManager()

    def _mark(self, step: Mark) -> None:
        getattr(self._nodes[step.parent], step.method)()

    def _access(self, step: Access) -> Any:
        make = getattr(self._nodes[step.parent], step.method)
        rest = (step.source, _example(step.example), self._kinds[step.kind])
        if step.method == "globals_dict_manager":
            self._global_nodes.add(len(self._nodes))
            return make(self._scope, *rest)
        if step.method == "lambda_manager":
            return make(accessor(decode(step.key) if step.key is not None else None), *rest)
        if step.key is None:
            return make(*rest)
        key = decode(step.key)
        if step.parent in self._global_nodes:
            key = self._names.get(key, key)
        return make(self._keep(key), *rest)

    def _leaf(self, step: Leaf) -> None:
        add = getattr(self._nodes[step.parent], step.method)
        arguments = [self._keep(decode(argument)) for argument in step.arguments]
        text = _text(step.text)
        special = getattr(self, "_" + step.method, None)
        if special is not None:
            special(add, arguments, text)
        else:
            add(*arguments, *text)

    def _add_type_match_guard(self, add: Any, arguments: list[Any], text: Any) -> None:
        add(id(arguments[0]), *text)

    _add_id_match_guard = _add_type_match_guard

    def _add_tensor_match_guard(self, add: Any, arguments: list[Any], text: Any) -> None:
        dtype, device, requires_grad, size, stride, name, kind, keys = arguments
        tensor = self._tensor(len(size), dtype, device, requires_grad)
        dispatch_keys = torch._C.DispatchKeySet.from_raw_repr(keys)
        add(tensor, size, stride, name, *text, kind, dispatch_keys)

    def _tensor(self, rank: int, dtype: Any, device: Any, requires_grad: bool) -> torch.Tensor:
        """An example of a tensor: these four properties are all that a guard reads from it."""
        key = (rank, dtype, device, requires_grad)
        if key not in self._tensors:
            tensor = torch.empty([0] * rank, dtype=dtype, device=device)
            self._tensors[key] = tensor.requires_grad_(requires_grad)
        return self._tensors[key]

    def _add_global_state_guard(self, add: Any, arguments: list[Any], text: Any) -> None:
        state = _torch_guards.GlobalStateGuard()
        recorded = arguments[0]
        if self._any_thread_count:
            fields = json.loads(recorded)
            fields["num_threads"] = json.loads(state.__getstate__())["num_threads"]
            recorded = json.dumps(fields)
        state.__setstate__(recorded)
        add(state, *text)

    def _add_dispatch_key_set_guard(self, add: Any, arguments: list[Any], text: Any) -> None:
        add(torch._C.DispatchKeySet.from_raw_repr(arguments[0]), *text)

    def _add_default_device_guard(self, add: Any, arguments: list[Any], text: Any) -> None:
        # torch compares with the default device of the moment when the guard is made.
        import torch.utils._device

        if arguments[0] != torch.utils._device.CURRENT_DEVICE:
            raise IncompatibleError(
                reasons=[
                    Reason(
                        kind="value_changed",
                        symbol="torch default device",
                        detail=f"was {arguments[0]} when the package was built",
                    )
                ]
            )
        add(*text)

    def _add_tuple_iterator_length_guard(self, add: Any, arguments: list[Any], text: Any) -> None:
        add(arguments[0], id(arguments[1]), *text)

    def _add_range_iterator_match_guard(self, add: Any, arguments: list[Any], text: Any) -> None:
        add(*arguments[:3], id(arguments[3]), *text)

    def _predicate(self, step: Predicate) -> None:
        if step.name == "code":
            code = _with_constants(unmarshal(step.code), self._names)
            predicate: Any = types.FunctionType(code, {**guard_helpers(), "G": self._scope})
        else:
            argument = decode(step.argument) if step.argument is not None else None
            predicate = PREDICATES[step.name](argument)
        getattr(self._nodes[step.parent], step.method)(predicate, *_text(step.text))

    def _relation(self, step: Relation) -> None:
        install = getattr(_torch_guards, step.name)
        groups = [[self._nodes[number] for number in group] for group in step.groups]
        text = _text(step.text)
        if step.name == "install_object_aliasing_guard":
            install(groups[0][0], groups[0][1], *text)
        elif step.name == "install_no_tensor_aliasing_guard":
            install(groups[0], list(step.names), *text)
        else:
            install(groups[0], groups[1], *text)

    def _keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value


def with_names(expression: str, names: Mapping[str, str]) -> str:
    """A guard's expression, with the names that globals have here."""
    for name, here in names.items():
        expression = expression.replace(f"G['{name}']", f"G['{here}']")
    return expression


def _with_constants(code: types.CodeType, names: Mapping[str, str]) -> types.CodeType:
    constants = tuple(
        names.get(constant, constant) if isinstance(constant, str) else constant
        for constant in code.co_consts
    )
    return code.replace(co_consts=constants)


def accessor(key: Any) -> Any:
    """The Python function of a ``lambda_manager``: a name, or a name with its argument."""
    name, argument = key if isinstance(key, tuple) else (key, None)
    return ACCESSORS[name](argument)


def _example(example: ExampleValue) -> Any:
    if example.kind == "tensor":
        return _SOME_TENSOR
    if example.kind == "constant" and example.value is not None:
        return decode(example.value)
    if example.kind == "mapping" and example.value is not None:
        return _some_mapping(decode(example.value), example.size)
    return _SOME_OBJECT


def _some_mapping(kind: type, size: int) -> Any:
    maker: Any = kind
    mapping: Any = {} if kind is dict else maker.__new__(maker)
    for number in range(size):
        if isinstance(mapping, dict) and kind is not dict and kind.__name__ != "OrderedDict":
            dict.__setitem__(mapping, number, None)
        else:
            mapping[number] = None
    return mapping


def _text(text: tuple[str, ...]) -> tuple[Any, ...]:
    return guard_text(list(text))
