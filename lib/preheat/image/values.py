"""Python values that mean the same in another process: constants, containers, and things with names.

Encoding happens in the build, decoding in the worker. A value without such a meaning, like an instance
of a user's class, is refused with ``UnportableError`` when it is encoded.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import importlib
import importlib.util
import marshal
import sys
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import IncompatibleError
from preheat.image.format import Code, Constant, Mapping, Reference, Sequence, Value, unmarshal
from preheat.sources.digest import code_digest
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 32
_PLAIN = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    type(Ellipsis),
)
_SEQUENCES: dict[Any, str] = {
    tuple: "tuple",
    list: "list",
    set: "set",
    frozenset: "frozenset",
    torch.Size: "size",
}
_MAPPINGS: dict[Any, str] = {
    dict: "dict",
    collections.OrderedDict: "ordered",
    types.MappingProxyType: "proxy",
}
# Where C functions that do not say their module are found.
_HOMES = (
    "torch",
    "torch._C",
    "torch._C._nn",
    "torch.nn.functional",
    "torch._C._fft",
    "torch._C._linalg",
    "torch._C._special",
    "torch._C._functorch",
    "builtins",
    "math",
    "operator",
)


class UnportableError(Exception):
    """The value has no meaning in another process. The text says what it is."""


def encode(value: Any, depth: int = MAX_DEPTH) -> Value:
    """The portable form of a value. Raises ``UnportableError``."""
    if depth == 0:
        raise UnportableError("a value is nested too deeply")
    if _is_plain(value):
        return Constant(marshal.dumps(value))
    kind = type(value)
    if kind in _SEQUENCES:
        return Sequence(_SEQUENCES[kind], tuple(encode(item, depth - 1) for item in value))
    if kind is slice:
        return Sequence("slice", _all((value.start, value.stop, value.step), depth))
    if kind is range:
        return Sequence("range", _all((value.start, value.stop, value.step), depth))
    if kind.__name__ == "dict_keys":
        return Sequence("keys", _all(value, depth))
    if kind in _MAPPINGS:
        # A mapping proxy stands for a class's or module's namespace: only its names count.
        pairs = (
            (encode(k, depth - 1), encode(None if kind is types.MappingProxyType else v, depth - 1))
            for k, v in value.items()
        )
        return Mapping(_MAPPINGS[kind], tuple(pairs))
    if isinstance(value, types.CodeType):
        return encode_code(value)
    return reference(value)


def _all(items: Any, depth: int) -> tuple[Value, ...]:
    return tuple(encode(item, depth - 1) for item in items)


def _is_plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether marshal writes a value and reads back the very same."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if depth == 0:
        return False
    if kind in (tuple, list, set, frozenset):
        return all(_is_plain(item, depth - 1) for item in value)
    if kind is not dict:
        return False
    return all(_is_plain(k, depth - 1) and _is_plain(v, depth - 1) for k, v in value.items())


def encode_code(code: types.CodeType) -> Code:
    """A code object, with its constants one by one where marshal cannot write them."""
    try:
        return Code(marshal.dumps(code))
    except ValueError:
        bare = code.replace(co_consts=())
        return Code(marshal.dumps(bare), tuple(_code_constant(c) for c in code.co_consts))


def _code_constant(value: Any) -> Value:
    if type(value) is dict and (name := _module_of_globals(value)) is not None:
        return Reference("globals", (name,))
    if type(value) is tuple:
        return Sequence("tuple", tuple(_code_constant(item) for item in value))
    return encode(value)


def _module_of_globals(value: dict[str, Any]) -> str | None:
    name = value.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return name if module is not None and vars(module) is value else None


def reference(value: Any) -> Reference:
    """A reference by name. Raises ``UnportableError`` for what has none that leads back to it."""
    if isinstance(value, types.ModuleType):
        return Reference("module", (value.__name__,))
    if isinstance(value, enum.Enum):
        kind: Any = type(value)
        name: Any = value.name
        if _follow(kind.__module__, kind.__qualname__) is not kind:
            raise UnportableError(f"a member of the local enum {kind.__qualname__}")
        # A combination of flags is no member.
        if not isinstance(name, str) or getattr(kind, name, None) is not value:
            raise UnportableError(f"{value!r}, which has no name of its own")
        return Reference("enum", (kind.__module__, kind.__qualname__, name))
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return Reference("torch", (str(value).removeprefix("torch."),))
    if isinstance(value, torch.device):
        return Reference("device", (str(value),))
    if isinstance(value, torch._ops.OpOverload):
        return Reference("operator", (value._schema.name, value._overloadname))
    if isinstance(value, torch._ops.OpOverloadPacket):
        return Reference("packet", (value._qualified_op_name,))
    if (found := _method_of_class(value)) is not None:
        return found
    name = _name(value)
    if name is None:
        raise UnportableError(f"a {type(value).__name__} that no name leads to")
    if isinstance(value, types.FunctionType):
        return Reference("function", name, code_digest(value.__code__))
    return Reference("name", name)


def _method_of_class(value: Any) -> Reference | None:
    owner = getattr(value, "__self__", None)
    if not isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        return None
    if not isinstance(owner, type) or _follow(owner.__module__, owner.__qualname__) is not owner:
        return None
    if getattr(owner, value.__name__, None) != value:
        return None
    return Reference("method", (owner.__module__, owner.__qualname__, value.__name__))


def _name(value: Any) -> tuple[str, str] | None:
    module = getattr(value, "__module__", None)
    qualified = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(module, str) and isinstance(qualified, str):
        if _follow(module, qualified) is value:
            return module, qualified
    short = getattr(value, "__name__", None)
    if isinstance(short, str):
        for home in _HOMES:
            if _follow(home, short) is value:
                return home, short
    return None


def _follow(module: str, qualified: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def decode(value: Value) -> Any:
    """The value that was encoded.

    Raises ``IncompatibleError`` when a name leads nowhere here, or to other code.
    """
    if isinstance(value, Constant):
        return unmarshal(value.data)
    if isinstance(value, Sequence):
        return _SEQUENCE_MAKERS[value.kind]([decode(item) for item in value.items])
    if isinstance(value, Mapping):
        return _MAPPING_MAKERS[value.kind]([(decode(k), decode(v)) for k, v in value.pairs])
    if isinstance(value, Code):
        return decode_code(value)
    return resolve(value)


_SEQUENCE_MAKERS: dict[str, Any] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
    "slice": lambda items: slice(*items),
    "range": lambda items: range(*items),
    "keys": lambda items: dict.fromkeys(items).keys(),
}
_MAPPING_MAKERS: dict[str, Any] = {
    "dict": dict,
    "ordered": collections.OrderedDict,
    "proxy": lambda pairs: types.MappingProxyType(dict(pairs)),
}


def decode_code(code: Code) -> types.CodeType:
    """The code object that was encoded, for this very interpreter version."""
    loaded: types.CodeType = unmarshal(code.data)
    if code.constants is None:
        return loaded
    return loaded.replace(co_consts=tuple(decode(constant) for constant in code.constants))


def resolve(found: Reference) -> Any:
    """What a reference leads to in this process. Raises ``IncompatibleError``."""
    kind, path = found.kind, found.path
    try:
        if kind == "module":
            return import_module(path[0])
        if kind == "globals":
            return vars(import_module(path[0]))
        if kind == "torch":
            return getattr(torch, path[0])
        if kind == "device":
            return _device(path[0])
        if kind == "operator":
            return getattr(_packet(path[0]), path[1] or "default")
        if kind == "packet":
            return _packet(path[0])
        value: Any = import_module(path[0])
        for part in path[1].split("."):
            value = getattr(value, part)
        if kind in ("enum", "method"):
            return getattr(value, path[2])
    except (AttributeError, ImportError, RuntimeError) as error:
        raise IncompatibleError(
            reasons=[
                Reason(kind="live_code_missing", symbol=".".join(path), detail=str(error)[:300])
            ]
        ) from error
    if kind == "function" and code_digest(value.__code__) != found.digest:
        raise IncompatibleError(reasons=[other_code(value.__code__)])
    return value


def other_code(code: types.CodeType) -> Reason:
    """Why a package cannot be used: the live code is not the code that it was built from."""
    return Reason(
        kind="live_code_differs",
        file=code.co_filename,
        symbol=code.co_qualname,
        detail="this process imported another version than the package was built from",
    )


def _device(text: str) -> torch.device:
    device = torch.device(text)
    index = getattr(_target, "index", None)
    if index is None or device.type == "cpu" or device.index is None:
        return device
    return torch.device(device.type, index)


_target = threading.local()


@contextlib.contextmanager
def on_device(index: int | None) -> Iterator[None]:
    """Inside the block, a GPU that was recorded stands for the one with this number."""
    before = getattr(_target, "index", None)
    _target.index = index
    try:
        yield
    finally:
        _target.index = before


def _packet(name: str) -> Any:
    namespace, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, namespace), operator)


def import_object(path: str) -> Any:
    """A module by its name, or what ``module:qualified.name`` names in one.

    Raises ``ImportError`` or ``AttributeError`` for what is not there.
    """
    module, _, qualname = path.partition(":")
    found: Any = import_module(module)
    for part in qualname.split(".") if qualname else ():
        found = getattr(found, part)
    return found


def import_module(name: str) -> types.ModuleType:
    """Import a module by name; the main module answers for the name it was started from."""
    module = sys.modules.get(name)
    if module is not None:
        return module
    main = sys.modules.get("__main__")
    if main is not None and _is_file_of(main, name):
        sys.modules[name] = main
        return main
    return importlib.import_module(name)


def _is_file_of(main: types.ModuleType, name: str) -> bool:
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == name:
        return True
    file = getattr(main, "__file__", None)
    if file is None or spec is not None:
        return False
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return bool(found and found.origin and Path(found.origin).resolve() == Path(file).resolve())
