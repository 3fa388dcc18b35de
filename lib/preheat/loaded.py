"""What ``preheat.load`` returns: a callable that behaves like the original, and says what happened."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from preheat.errors import MissError
from preheat.verdict import Reason, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass
class LoadReport:
    """What ``load`` did, and what has happened since.

    ``form`` is ``lean``, ``dynamo``, ``compile`` or ``eager``. ``load_seconds`` is the time inside of
    ``load``. ``misses`` counts frames that no variant covered, ``frames_compiled`` those of them that
    were compiled in this process; both stay 0 while all calls are covered.
    """

    target: str
    verdict: Verdict
    form: str
    reasons: tuple[Reason, ...] = ()
    load_seconds: float = 0.0
    manifest: str | None = None
    misses: int = 0
    frames_compiled: int = 0


class Runner:
    """Runs calls: the loaded form, or what stands in for it.

    Until one call has succeeded, any exception of the loaded form is taken as preheat's fault: the
    package is uninstalled and the call is made again by the fallback, which raises the caller's own
    mistakes by itself. After that, exceptions are the caller's.
    """

    def __init__(
        self,
        report: LoadReport,
        run: Callable[..., Any],
        fall_back: Callable[[Reason], Callable[..., Any]] | None,
    ) -> None:
        self.report = report
        self._fall_back = fall_back
        self.run = run if fall_back is None else functools.partial(self._first_call, run)

    def _first_call(self, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            result = run(*args, **kwargs)
        except MissError:
            raise
        except Exception as error:
            if self._fall_back is None:
                raise
            reason = Reason(
                kind="first_call_failed", detail=f"{type(error).__name__}: {error}"[:500]
            )
            self.run = self._fall_back(reason)
            return self.run(*args, **kwargs)
        self.run = run
        return result


class LoadedFunction:
    """A loaded function or method. Attributes are the original's."""

    def __init__(self, original: Callable[..., Any], runner: Runner) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._runner = runner

    @property
    def preheat(self) -> LoadReport:
        """What happened at load and since."""
        return self._runner.report

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._runner.run(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("_original", "_runner"):
            raise AttributeError(name)
        return getattr(self._original, name)

    def __repr__(self) -> str:
        return f"<preheat {self.preheat.target}: {self.preheat.form} of {self._original!r}>"


@functools.cache
def _module_class() -> type:
    import torch

    class LoadedModule(torch.nn.Module):
        """A loaded module.

        It shares the original's parameters, buffers, children, hooks and every other attribute,
        so that ``state_dict``, ``to``, ``train`` and assignment work on the original. Methods that the
        original's class adds are reached as well, and run on the original without compilation.
        Copying or pickling it copies the original.
        """

        __slots__ = ("_preheat_original", "_preheat_runner")

        def __init__(self, original: torch.nn.Module, runner: Runner) -> None:
            object.__setattr__(self, "__dict__", original.__dict__)
            object.__setattr__(self, "_preheat_original", original)
            object.__setattr__(self, "_preheat_runner", runner)

        @property
        def preheat(self) -> LoadReport:
            """What happened at load and since."""
            report: LoadReport = self._preheat_runner.report
            return report

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self._preheat_runner.run(*args, **kwargs)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self._preheat_runner.run(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._preheat_original, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self._preheat_original, name, value)

        def __delattr__(self, name: str) -> None:
            delattr(self._preheat_original, name)

        def train(self, mode: bool = True) -> Any:
            self._preheat_original.train(mode)
            return self

        def eval(self) -> Any:
            return self.train(False)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return self._preheat_original.state_dict(*args, **kwargs)

        def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return self._preheat_original.load_state_dict(*args, **kwargs)

        def __len__(self) -> int:
            return len(self._preheat_original)

        def __bool__(self) -> bool:
            return True

        def __getitem__(self, key: Any) -> Any:
            return self._preheat_original[key]

        def __iter__(self) -> Any:
            return iter(self._preheat_original)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _itself, (self._preheat_original,)

        def __repr__(self) -> str:
            return (
                f"<preheat {self.preheat.target}: {self.preheat.form}>\n{self._preheat_original!r}"
            )

    return LoadedModule


def _itself(value: Any) -> Any:
    return value


def wrap(original: Callable[..., Any], runner: Runner) -> Any:
    """The callable that ``load`` returns for ``original``."""
    import torch

    if isinstance(original, torch.nn.Module):
        return _module_class()(original, runner)
    return LoadedFunction(original, runner)
