"""Which functions run: code objects, collected while user code is imported, constructed and called."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType, FrameType

_OPTIMIZED = 0x1  # not set for the bodies of modules and classes, which importing runs anyway
_FIRST_TOOL, _LAST_TOOL = 3, 4  # free ones: 0 to 2 and 5 are meant for debuggers and profilers


class CallWatch:
    """The code objects that began to run. ``names`` says which of them are a user module's."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()

    def names(self, files: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Module and qualified name of those in ``files`` (path -> module), in order.

        Code that was made by ``exec`` has no file and is left out.
        """
        return roots_of(self.codes, files)


def roots_of(
    codes: set[CodeType] | tuple[CodeType, ...] | list[CodeType], files: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Module and qualified name of the code objects that lie in ``files`` (path -> module)."""
    found = {
        (files[code.co_filename], code.co_qualname)
        for code in codes
        if code.co_filename in files and code.co_flags & _OPTIMIZED
    }
    return tuple(sorted(found))


@contextlib.contextmanager
def watching_calls() -> Iterator[CallWatch]:
    """Collect the code of every Python function that begins to run inside the block.

    From Python 3.12 on each function costs once; before, each call does. Not promised: seeing threads
    that run before the block is entered (3.11), and anything while another profiler is installed.
    """
    watch = CallWatch()
    watching = _by_monitoring if hasattr(sys, "monitoring") else _by_profile
    with watching(watch):
        yield watch


@contextlib.contextmanager
def _by_monitoring(watch: CallWatch) -> Iterator[None]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    tool = next(
        (one for one in range(_FIRST_TOOL, _LAST_TOOL + 1) if monitoring.get_tool(one) is None),
        None,
    )
    if tool is None:
        with _by_profile(watch):
            yield
        return

    def started(code: CodeType, _offset: int) -> Any:
        watch.codes.add(code)
        return monitoring.DISABLE

    event = monitoring.events.PY_START
    monitoring.use_tool_id(tool, "preheat")
    monitoring.register_callback(tool, event, started)
    monitoring.set_events(tool, event)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
        monitoring.restart_events()


@contextlib.contextmanager
def _by_profile(watch: CallWatch) -> Iterator[None]:
    before = sys.getprofile()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            watch.codes.add(frame.f_code)

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type, unused-ignore]
