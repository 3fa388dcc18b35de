"""What ``preheat.load`` returns: a callable that behaves like the original, and says what happened."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
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


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What this process has loaded so far, one it was forked from included.

    ``loads``: how many loads ended so, by form and verdict of their report; the form is ``error`` for
    those that raised ``MissError``. ``load_seconds``: the time inside of ``load``, by form.
    ``frames_compiled`` must stay 0: frames that no package covered and that were compiled here.
    ``misses``: all frames that none covered. ``first_calls_failed``: packages that were taken away
    because their first call failed.
    """

    loads: dict[tuple[str, Verdict], int]
    load_seconds: dict[str, float]
    frames_compiled: int
    misses: int
    first_calls_failed: int


class _Counts:
    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.now = Statistics({}, {}, 0, 0, 0)


_counts = _Counts()


def _forked() -> None:
    # The lock may have been another thread's, which the child does not have.
    _counts.turn = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def statistics() -> Statistics:
    """What this process has loaded so far; a copy. Safe for threads."""
    with _counts.turn:
        now = _counts.now
        return dataclasses.replace(now, loads=dict(now.loads), load_seconds=dict(now.load_seconds))


def count_load(form: str, verdict: Verdict, seconds: float) -> None:
    """A load ended."""
    with _counts.turn:
        now = _counts.now
        now.loads[form, verdict] = now.loads.get((form, verdict), 0) + 1
        now.load_seconds[form] = now.load_seconds.get(form, 0.0) + seconds


def count_miss(report: LoadReport, *, compiled: bool) -> None:
    """A frame was covered by no variant of a loaded package, and is compiled here or not."""
    report.misses += 1
    report.frames_compiled += compiled
    _add(misses=1, frames_compiled=int(compiled))


def _add(misses: int = 0, frames_compiled: int = 0, first_calls_failed: int = 0) -> None:
    with _counts.turn:
        now = _counts.now
        _counts.now = dataclasses.replace(
            now,
            misses=now.misses + misses,
            frames_compiled=now.frames_compiled + frames_compiled,
            first_calls_failed=now.first_calls_failed + first_calls_failed,
        )


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
            _add(first_calls_failed=1)
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
