"""A worker that sees an edited program: import, load, call, then compare with eager."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TARGET = "program"
WARM = "preheat_warm"
# Far below what any probing edit does, and above what another order of additions does.
RELATIVE, ABSOLUTE = 1e-4, 1e-5


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker did with a package.

    ``form`` and ``reasons`` are the report's after one call; ``misses`` counts the frames that the
    package did not cover. ``wrong`` says how the output differs from eager's in the same process, ""
    for not at all; ``changed`` whether eager's output differs from that of the unedited program.
    ``eager_fails``: the edited program does not run at all. ``crash``: it runs, and loading or calling
    the loaded program fails.
    """

    form: str = ""
    reasons: tuple[Reason, ...] = ()
    misses: int = 0
    frames_compiled: int = 0
    wrong: str = ""
    changed: bool | None = None
    eager_fails: str = ""
    crash: str = ""

    @property
    def hit(self) -> bool:
        """Whether the package's code alone computed the output."""
        return self.form in ("dynamo", "lean") and not self.misses


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one call gave: tensors with the names of their types; whether it drew random numbers."""

    tensors: list[tuple[str, Any]]
    random: bool


def work(base: Mapping[str, Any], edit: Mapping[str, Any], place: Path) -> Loaded:
    """Be the worker. Without an edit, what eager gives is kept, to be compared with later."""
    import torch

    import preheat
    from preheat.store import DiskStore

    sys.path.insert(0, str(place / "project"))
    for one in (base, edit):
        exec(one.get("prelude") or "", {"torch": torch})  # noqa: S102 - part of the data
    got: Outcome | None = None
    failure = ""
    try:
        spec = _spec(base, edit)
        with warnings.catch_warnings(action="ignore"):
            model = preheat.load(TARGET, spec.fn, store=DiskStore(place / "store"), on_miss="eager")
            got = _outcome(spec, model)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    try:
        spec = _spec(base, edit)
        wanted = _outcome(spec, spec.fn)
    except Exception as error:
        return Loaded(eager_fails=f"{type(error).__name__}: {error}")
    if got is None:
        return Loaded(crash=failure)
    unedited = place / "unedited.pt"
    if not edit:
        torch.save(wanted.tensors, unedited)
    # Compiled code draws other numbers than eager: those that it drew in the build.
    reference = _built_tensors(place) if wanted.random and not edit else wanted.tensors
    return Loaded(
        form=model.preheat.form,
        reasons=model.preheat.reasons,
        misses=model.preheat.misses,
        frames_compiled=model.preheat.frames_compiled,
        wrong=_difference(reference, got.tensors, _compiled_classes(place)),
        changed=bool(_difference(torch.load(unedited), wanted.tensors)),
    )


def _spec(base: Mapping[str, Any], edit: Mapping[str, Any]) -> Any:
    """The factory's spec; an edit may call for another module's program under the same target."""
    warm = importlib.import_module(WARM)
    if edit.get("entry_module"):
        other = importlib.import_module(edit["entry_module"])
        setattr(warm, base["entry_module"], other)
    return warm.program()


def _outcome(spec: Any, call: Any) -> Outcome:
    import torch

    from preheat.exercise import seed_everything

    (example,) = spec.calls()
    seed_everything()
    before = torch.get_rng_state()
    output = spec.run(call, *example.args) if spec.run else call(*example.args)
    drew = not torch.equal(before, torch.get_rng_state())
    return Outcome([_plain(leaf) for leaf in _tensors(output)], drew)


def _plain(tensor: Any) -> tuple[str, Any]:
    import torch

    return type(tensor).__name__, tensor.detach().as_subclass(torch.Tensor).clone()


def _built_tensors(place: Path) -> list[tuple[str, Any]]:
    import torch

    (saved,) = torch.load(place / "work" / "outcomes.pt").values()
    return [_plain(tensor) for where, tensor in saved.items() if where.startswith("output")]


def _compiled_classes(place: Path) -> frozenset[str]:
    """Classes that ``torch.compile`` itself gives tensors which have another one in eager."""
    from preheat.verify import other_classes

    found = other_classes(place / "work" / "staging")
    names = (name for classes in found.values() for name in classes.values())
    return frozenset(name.rpartition(".")[2] for name in names)


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)
    else:
        raise TypeError(f"an output of type {type(value).__name__} cannot be compared")


def _difference(
    wanted: list[tuple[str, Any]], got: list[tuple[str, Any]], classes: frozenset[str] = frozenset()
) -> str:
    """How two outcomes differ, "" for not at all. ``classes`` are allowed instead of eager's."""
    import torch

    if len(wanted) != len(got):
        return f"{len(got)} tensors, not {len(wanted)}"
    for (kind, first), (other, second) in zip(wanted, got, strict=True):
        if kind != other and other not in classes:
            return f"a {other}, not a {kind}"
        if (first.dtype, first.shape) != (second.dtype, second.shape):
            return f"{second.dtype} {tuple(second.shape)}, not {first.dtype} {tuple(first.shape)}"
        if not torch.allclose(first, second, RELATIVE, ABSOLUTE, equal_nan=True):
            return f"off by {(first.double() - second.double()).abs().max():.3g}"
    return ""
