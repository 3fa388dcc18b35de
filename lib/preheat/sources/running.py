"""Whether this process may have imported something else than what lies on disk now."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preheat.sources.locate import loaded_module
from preheat.started import imported_after_ns
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from preheat.manifest import Digest, ModuleSource, Sources
    from preheat.sources.files import FileDigests

    After = Callable[[str, ModuleType], int]

# Module -> the spec that it was imported by, and the digest of the text that was executed.
_executed: dict[str, tuple[Any, Digest]] = {}


def edited_since_start(
    sources: Sources,
    digests: FileDigests,
    *,
    modules: Mapping[str, ModuleType] | None = None,
    after: After = imported_after_ns,
) -> tuple[Reason, ...]:
    """Reasons for the recorded modules that this process may have imported in another version.

    A file that changed after its module may have been imported says nothing about what runs here. Then
    the module agrees with the package only where that can be shown: its text was looked at earlier, and
    is the one that was built; or Python's own bytecode cache still has what was executed, which differs
    from the file of now, and that from the package, in nothing that counts. Whatever cannot be shown is
    named, an edit before the import sometimes included.

    Not promised: noticing edits on a file server whose clock is behind.
    """
    known = sys.modules if modules is None else modules
    reasons = []
    for module in sources.modules:
        loaded = loaded_module(module, known)
        file = getattr(loaded, "__file__", None)
        if loaded is None or not isinstance(file, str):
            continue
        path, since_ns = Path(file), after(module.module, loaded)
        if _is_known(module, loaded, path, since_ns, digests):
            continue
        if _is_cached(sources, module, loaded, path, since_ns):
            continue
        reasons.append(
            Reason(
                kind="module_edited",
                file=module.path,
                symbol=module.module,
                detail="changed after this process started; restart it",
            )
        )
    return tuple(reasons)


def _is_known(
    module: ModuleSource, loaded: ModuleType, path: Path, since_ns: int, digests: FileDigests
) -> bool:
    """Whether nothing but the text of now, or the text that was built, can have been executed."""
    spec = getattr(loaded, "__spec__", None)
    before = _executed.get(module.module)
    if before is not None and before[0] is not spec:
        before = None  # imported anew since
    if before is not None and before[1] == module.file_sha256:
        return True
    # In this order: a change between the two is seen by the second.
    digest = digests.sha256(path)
    if _changed_ns(path) > since_ns:
        return False
    if spec is not None and digest is not None:
        _executed[module.module] = (spec, digest)
    return True


def _is_cached(
    sources: Sources, module: ModuleSource, loaded: ModuleType, path: Path, since_ns: int
) -> bool:
    """Whether Python's bytecode cache shows that what was executed is the same program."""
    # Workers whose files did not change never need these.
    from preheat.sources.cached import is_compiled_from, is_still_there, left_by_import

    code = left_by_import(loaded, path, since_ns)
    if code is None or not is_still_there(loaded, code):
        return False
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return is_compiled_from(code, text) and _agrees(sources, module, text, path)


def _agrees(sources: Sources, module: ModuleSource, text: bytes, path: Path) -> bool:
    """Whether a text is what was built, up to what never counts."""
    from preheat.sources.compare import changes
    from preheat.sources.recorded import usable_closure
    from preheat.sources.tables import read_table

    if module.path.rpartition("/")[2] != path.name:
        return False  # as a package instead of a module, the same text may import other things
    closure = usable_closure(sources)
    # What reads text, line numbers or docstrings may notice what bytecode does not show.
    if closure is None or closure.text or closure.around.docstrings:
        return False
    if hashlib.sha256(text).hexdigest() == module.file_sha256:
        return True
    units = closure.units.get(module.module)
    if units is None or units.whole is not None:
        return False
    return not changes(units, read_table(text), path.name == "__init__.py", closure.around)


def _changed_ns(path: Path) -> int:
    try:
        found = path.stat()
    except OSError:
        return 0
    return max(found.st_mtime_ns, found.st_ctime_ns)
