"""A whole program as a shared library that depends on no Python (torch calls it ``CompiledAOTI``).

``Spec(..., output="aoti")``: torch.export takes the program, AOTInductor compiles it, Dynamo's guards and the
library's own rules say when it may be called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preheat.errors import IncompatibleError, RefusedError
from preheat.verdict import Reason

if TYPE_CHECKING:
    from preheat.image.library import LoadedLibrary
    from preheat.kinds.interface import Made, Place


class AotiKind:
    """One library a package, in the lean form; it is loaded through ``torch._C`` alone."""

    name = "aoti"

    def describe(self) -> str:
        return "AOTInductor's library of a whole program"

    def prepare(self, made: Made) -> Any:
        from preheat.image.values import UnportableError
        from preheat.torch_internals.aoti_writer import library_record

        try:
            return library_record(made.result)
        except UnportableError as error:
            raise RefusedError(str(error)) from error

    def write(self, prepared: Any) -> bytes:
        from preheat.image.alone import encode_library

        return encode_library(prepared)

    def load(self, data: bytes, place: Place) -> AotiCode:
        from preheat.image.library import LoadedLibrary

        if place.opener is None:
            reason = Reason(kind="load_failed", detail="a library is loaded from a package only")
            raise IncompatibleError(reasons=[reason])
        return AotiCode(LoadedLibrary(data, place.opener, place.program, place.device))


class AotiCode:
    """The library as a callable that takes what the program's own function takes."""

    def __init__(self, library: LoadedLibrary) -> None:
        self.library = library

    def post_load(self) -> None:
        self.library.bind()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.library.run(*args, **kwargs)

    def release(self) -> None:
        self.library.release()
