"""Running a target's examples, and comparing what came out: build and proof do it the same way."""

from __future__ import annotations

import copy
import dataclasses
import enum
import importlib
import random
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from preheat.errors import ConfigurationError, PreheatError, ProofError, TargetError
from preheat.spec import MARK, Declaration, Example, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

SEED = 20_061_130

# Relative and absolute tolerance by dtype. Fusion changes the order of floating-point operations;
# a package that belongs to other sources is off by far more.
TOLERANCE: dict[str, tuple[float, float]] = {
    "float64": (1e-7, 1e-7),
    "complex128": (1e-7, 1e-7),
    "float32": (1e-3, 1e-4),
    "complex64": (1e-3, 1e-4),
    "float16": (2e-2, 2e-2),
    "bfloat16": (5e-2, 5e-2),
}


_WITHOUT_CONTENT = (type, types.FunctionType, types.MethodType, types.ModuleType, enum.Enum)


def seed_everything(seed: int = SEED) -> None:
    """Seed Python, torch, and numpy where it is imported."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def find_factory(factory: str, target: str) -> Callable[[], Any]:
    """Import ``package.module:function``.

    Raises ``TargetError`` that names the target and what is missing, and ``ConfigurationError`` when
    the function's own mark gives it another name.
    """
    module_name, _, path = factory.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except PreheatError:
        raise
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module_name
        what = "does not exist" if missing else f"fails to import: {type(error).__name__}: {error}"
        raise TargetError(f"Target {target!r}: module {module_name!r} {what}.") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise TargetError(f"Target {target!r}: {module_name!r} has no {path!r}.")
        found = getattr(found, part)
    if not callable(found):
        raise TargetError(f"Target {target!r}: {factory!r} is not a function.")
    mark = getattr(found, MARK, None)
    if isinstance(mark, Declaration) and mark.name not in (target, getattr(found, "__name__", "")):
        raise ConfigurationError(
            f"{factory!r} is declared as target {mark.name!r}, but the configuration calls it "
            f"{target!r}.",
            remedy="Use one name in both.",
        )
    return found  # type: ignore[no-any-return]


def make_spec(factory: Callable[[], Any], target: str) -> Spec:
    """Call the factory, always with the same seeds.

    A program that ``torch.compile`` was applied to already is taken without it. Raises
    ``TargetError`` when the factory raises or returns something else than a ``Spec``.
    """
    seed_everything()
    try:
        spec = factory()
    except PreheatError:
        raise
    except Exception as error:
        raise TargetError(
            f"Target {target!r}: its factory raises {type(error).__name__}: {error}."
        ) from error
    if not isinstance(spec, Spec):
        raise TargetError(
            f"Target {target!r}: its factory returns {type(spec).__name__}, not preheat.Spec."
        )
    from preheat.torch_internals.programs import uncompiled

    return dataclasses.replace(spec, fn=uncompiled(spec.fn))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """All tensors that one call made or changed, by where they are; ``random``: it drew numbers."""

    tensors: tuple[tuple[str, torch.Tensor], ...]
    others: tuple[tuple[str, Any], ...]
    random: bool


def exercise(spec: Spec, call: Callable[..., Any], example: Example) -> Outcome:
    """Run one example through ``call`` on copies of its arguments.

    Collected are outputs, arguments afterwards (in-place changes), the module's buffers, and with
    ``backward`` the gradients of parameters and arguments. Whatever the call raises is raised.
    """
    import torch

    args, kwargs = _copied((example.args, example.kwargs))
    module = spec.fn if isinstance(spec.fn, torch.nn.Module) else None
    seed_everything()
    before = _generator_state()
    with torch.set_grad_enabled(spec.grad_enabled), spec.enter_context():
        output = spec.run(call, *args, **kwargs) if spec.run else call(*args, **kwargs)
        if spec.backward and spec.run is None:
            _backward(output)
    drawn = _generator_state() != before
    parts = {"output": output, "args": args, "kwargs": kwargs}
    if module is not None:
        parts["buffers"] = dict(module.named_buffers())
        if spec.backward:
            parts["gradients"] = {name: p.grad for name, p in module.named_parameters()}
            module.zero_grad(set_to_none=True)
    if spec.backward:
        parts["argument gradients"] = [
            tensor.grad for _, tensor in _leaves((args, kwargs)) if _is_tensor(tensor)
        ]
    leaves = list(_leaves(parts))
    return Outcome(
        tuple((where, leaf.detach().clone()) for where, leaf in leaves if _is_tensor(leaf)),
        tuple((where, leaf) for where, leaf in leaves if not _is_tensor(leaf)),
        drawn,
    )


def _backward(output: Any) -> None:
    sums = [
        leaf.float().sum() if not leaf.is_complex() else leaf.abs().sum()
        for _, leaf in _leaves(output)
        if _is_tensor(leaf) and leaf.requires_grad
    ]
    if sums:
        sum(sums[1:], sums[0]).backward()


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except (RuntimeError, TypeError):
        # A tensor with history, or an object that cannot be copied: it is shared between runs.
        return value


def _generator_state() -> tuple[bytes, ...]:
    import torch

    states = [bytes(torch.get_rng_state().tolist())]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(bytes(torch.cuda.get_rng_state().tolist()))
    return tuple(states)


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _leaves(
    value: Any, where: str = "", above: frozenset[int] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """Tensors and plain values of nested containers; of other objects, the tensors that they hold.

    ``above``: identities of the objects that lead here, so that a cycle ends.
    """
    if _is_tensor(value) or isinstance(value, (int, float, complex, str, bytes, type(None))):
        yield where, value
    elif type(value).__module__ == "numpy" and hasattr(value, "__array__"):
        import torch

        yield where, torch.as_tensor(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{where}.{key}" if where else str(key), above)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{where}[{index}]", above)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name, None), f"{where}.{field.name}", above)
    elif id(value) not in above and not isinstance(value, _WITHOUT_CONTENT):
        for name, item in getattr(value, "__dict__", {}).items():
            for place, leaf in _leaves(item, f"{where}.{name}", above | {id(value)}):
                if _is_tensor(leaf):
                    yield place, leaf


def classes_of(outcome: Outcome) -> dict[str, str]:
    """The class of each tensor, by where it is."""
    return {where: _class_name(tensor) for where, tensor in outcome.tensors}


def compare(
    expected: Outcome,
    actual: Outcome,
    tolerance: Mapping[str, tuple[float, float]],
    what: str,
    classes: Mapping[str, str] | None = None,
) -> float:
    """The largest absolute difference.

    ``classes``: those of the tensors that ``torch.compile`` gives another class than eager does.

    Raises ``ProofError`` that names ``what`` and the place when structure, dtype, shape, class or a
    value beyond tolerance differ.
    """
    if [where for where, _ in expected.tensors] != [where for where, _ in actual.tensors]:
        raise ProofError(f"{what}: the loaded program returns another structure than eager.")
    for (where, wanted), (_, got) in zip(expected.others, actual.others, strict=False):
        if type(wanted) is not type(got) or (wanted != got and wanted == wanted):
            raise ProofError(f"{what}: {where} is {got!r}, and {wanted!r} in eager.")
    worst = 0.0
    for (where, wanted), (_, got) in zip(expected.tensors, actual.tensors, strict=True):
        named = f"{what}: {where}"
        _same_class(wanted, got, named, (classes or {}).get(where))
        worst = max(worst, _difference(wanted, got, tolerance, named))
    return worst


def compare_shapes(
    expected: Outcome, actual: Outcome, what: str, classes: Mapping[str, str] | None = None
) -> None:
    """For programs that draw random numbers: places, shapes, dtypes, devices and classes are eager's.

    ``classes`` as in ``compare``. Raises ``ProofError`` that names ``what`` and the place.
    """
    for outcome in (expected, actual):
        if [where for where, _ in outcome.tensors] != [where for where, _ in expected.tensors]:
            raise ProofError(f"{what}: the loaded program returns another structure than eager.")
    for (where, wanted), (_, got) in zip(expected.tensors, actual.tensors, strict=True):
        _same_class(wanted, got, f"{what}: {where}", (classes or {}).get(where))
        _same_kind(wanted, got, f"{what}: {where}")


def _same_class(wanted: torch.Tensor, got: torch.Tensor, where: str, compiled: str | None) -> None:
    found, expected = _class_name(got), compiled or _class_name(wanted)
    if found != expected:
        whose = "after torch.compile" if compiled else "in eager"
        raise ProofError(f"{where} is a {found}, and a {expected} {whose}.")


def _same_kind(wanted: torch.Tensor, got: torch.Tensor, where: str) -> None:
    kinds = (wanted.dtype, wanted.shape, wanted.device), (got.dtype, got.shape, got.device)
    if kinds[0] != kinds[1]:
        raise ProofError(f"{where} is {kinds[1]}, and {kinds[0]} in eager.")


def _class_name(tensor: torch.Tensor) -> str:
    """By name: a parameter is a tensor, and after ``detach`` nothing else."""
    import torch

    plain = isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer))
    return "torch.Tensor" if plain else f"{type(tensor).__module__}.{type(tensor).__qualname__}"


def _difference(
    wanted: torch.Tensor,
    got: torch.Tensor,
    tolerance: Mapping[str, tuple[float, float]],
    where: str,
) -> float:
    import torch

    _same_kind(wanted, got, where)
    if wanted.numel() == 0:
        return 0.0
    if not (wanted.is_floating_point() or wanted.is_complex()):
        if not torch.equal(wanted, got):
            raise ProofError(f"{where} differs from eager.")
        return 0.0
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    a, b = wanted.to(wide), got.to(wide)
    error = (a - b).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    error = torch.where(same, torch.zeros_like(error), error)
    name = str(wanted.dtype).removeprefix("torch.")
    relative, absolute = tolerance.get(name) or TOLERANCE.get(name, (1e-1, 1e-1))
    worst = float(error.max())
    if not bool((error <= absolute + relative * a.abs()).all()):
        raise ProofError(
            f"{where} differs from eager by up to {worst:.3g} (tolerance for {name}: relative "
            f"{relative:g}, absolute {absolute:g})."
        )
    return worst
