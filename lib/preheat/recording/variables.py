"""Watching which environment variables user code asks for.

Only questions by name count (``os.environ[...]``, ``get``, ``in``, ``os.getenv``), not copies of the
whole environment or walks over it, and not what libraries ask for.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from preheat.recording.callers import asked_by_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preheat.sources.places import Places

# Where, as whom and beside how many others a process runs: different in every worker, and no
# program's numbers follow them. The daemon sets the compile threads of builds alone.
_OF_THE_PROCESS = frozenset(
    {"_", "COLUMNS", "HOME", "HOSTNAME", "LINES", "LOGNAME", "OLDPWD", "PWD", "SHLVL"}
    | {"TERM", "TMPDIR", "TORCHINDUCTOR_COMPILE_THREADS", "USER"}
)


@contextlib.contextmanager
def watching_variables(places: Places, report: Callable[[str, str | None], None]) -> Iterator[None]:
    """Report name and value (None: not set) of what user code asks for inside the block.

    Replaces two methods of the class of ``os.environ`` and puts them back. Never enter it around
    tracing: the compiler would trace the replacements.
    """
    kind: Any = type(os.environ)
    plain_get, plain_walk = kind.__getitem__, kind.__iter__
    walk = threading.local()

    def watched_get(self: Any, key: Any) -> Any:
        # A copy of the environment gets each name by the very string that the walk gave.
        copying = getattr(walk, "names", {}).get(id(key)) is not None
        if (
            self is os.environ
            and isinstance(key, str)
            and not copying
            and key not in _OF_THE_PROCESS
            and asked_by_user(places)
        ):
            report(key, _value(plain_get, self, key))
        return plain_get(self, key)

    def watched_walk(self: Any) -> Iterator[Any]:
        walk.names = {}  # the names of the last walk in this thread, kept so that their ids stay theirs
        for name in plain_walk(self):
            walk.names[id(name)] = name
            yield name

    kind.__getitem__, kind.__iter__ = watched_get, watched_walk
    try:
        yield
    finally:
        kind.__getitem__, kind.__iter__ = plain_get, plain_walk


def _value(get: Callable[[Any, str], Any], environ: Any, key: str) -> str | None:
    try:
        value: str = get(environ, key)
    except KeyError:
        return None
    return value
