"""The manifest: everything that is known about one package, and its JSON form.

A manifest is immutable and named by the sha256 of its JSON bytes. Encoding is deterministic: the
same value has the same bytes. Decoding is strict: unknown fields, wrong types and oversized input
are refused with ``CorruptedError``.
"""

import hashlib
from typing import Any

import msgspec

from preheat.errors import CorruptedError, OtherFormatError
from preheat.sources.units import Closure

# Raised with every change of a record's shape or of a digest's rule: what other versions wrote is then
# built again.
FORMAT = 3
REF_FORMAT = 1
MAX_MANIFEST_BYTES = 32 * 1024 * 1024
MAX_REF_BYTES = 64 * 1024

Digest = str  # 64 lower-case hexadecimal digits: sha256


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ObjectRef(_Record, frozen=True, kw_only=True):
    """A file of the package: its name inside the package, and the object that holds its bytes."""

    name: str
    sha256: Digest
    size: int


class ModuleSource(_Record, frozen=True, kw_only=True):
    """One user module that the build process executed.

    ``path`` is relative to ``Sources.roots[root]``. ``file_sha256`` is of the bytes that were
    executed; ``digest`` is the normalised digest of the same bytes (see ``preheat.sources``). ``kept``:
    the size of the object that holds those bytes under ``file_sha256``, None where none was kept.
    """

    module: str
    root: int
    path: str
    file_sha256: Digest
    digest: Digest
    kept: int | None = None

    def text(self) -> ObjectRef | None:
        """The object with the executed text, for whoever explains an edit. A worker never opens it."""
        if self.kept is None:
            return None
        return ObjectRef(name=f"source/{self.path}", sha256=self.file_sha256, size=self.kept)


class DataFile(_Record, frozen=True, kw_only=True):
    """One file that user code opened for reading while it was imported or constructed.

    ``sha256`` is None for a file that was looked for and did not exist.
    """

    root: int
    path: str
    sha256: Digest | None
    size: int = 0


class Variable(_Record, frozen=True, kw_only=True):
    """One environment variable that matters, by digest: values may be secrets. None: not set."""

    name: str
    sha256: Digest | None


class Library(_Record, frozen=True, kw_only=True):
    """An installed distribution whose modules the build loaded."""

    distribution: str
    version: str


class LibraryFile(_Record, frozen=True, kw_only=True):
    """A library's file whose code was traced, relative to its directory on the import path."""

    path: str
    sha256: Digest


class Sources(_Record, frozen=True, kw_only=True):
    """The snapshot: what the build really used.

    ``roots[0]`` is always "" and stands for the project directory; other roots are relative to it
    where they lie below it, else absolute. ``closure`` says which pieces of the modules count; without
    it every module counts whole.
    """

    roots: tuple[str, ...] = ("",)
    modules: tuple[ModuleSource, ...] = ()
    data_files: tuple[DataFile, ...] = ()
    variables: tuple[Variable, ...] = ()
    libraries: tuple[Library, ...] = ()
    library_files: tuple[LibraryFile, ...] = ()
    closure: Closure | None = None


class LiveCode(_Record, frozen=True, kw_only=True):
    """A code object that went into the package, by name, to compare with what a worker imported."""

    module: str
    qualname: str
    digest: Digest


class Gpu(_Record, frozen=True, kw_only=True):
    """One kind of GPU."""

    name: str
    capability: str


class Environment(_Record, frozen=True, kw_only=True):
    """What a package's validity depends on before any user code runs; its digest names the ref.

    Filled by ``preheat.environment.capture``. ``variables`` holds the values of compiler settings that
    are read from environment variables; the names are an allow-list without secrets.
    """

    python: str
    abi: str
    platform: str
    torch: str
    torch_git: str
    triton: str | None
    cuda: str | None
    driver: str | None
    device: str
    gpus: tuple[Gpu, ...]
    cpu_isa: str
    cpu_count: int
    variables: dict[str, str]


class Settings(_Record, frozen=True, kw_only=True):
    """What user code may change in a process after start; compared by the worker at load."""

    threads: int
    default_dtype: str
    matmul_precision: str
    configuration: dict[str, str]


class SpecRecord(_Record, frozen=True, kw_only=True):
    """The options of the ``Spec`` that was built.

    ``options`` leaves out values that JSON cannot hold.
    """

    grad: bool
    backward: bool
    mode: str | None
    dynamic: bool | None
    fullgraph: bool
    backend: str
    options: dict[str, bool | int | float | str | None]
    examples: int
    output: str | None = None


class Form(_Record, frozen=True, kw_only=True):
    """One loadable form of the package. ``kind``: ``dynamo`` or ``lean``.

    ``code`` names the kinds of compiled code in it (``preheat.kinds``), each once.
    """

    kind: str
    format: int
    objects: tuple[ObjectRef, ...]
    code: tuple[str, ...] = ("inductor",)


class FormProof(_Record, frozen=True, kw_only=True):
    """One form was loaded, compiled nothing and agreed with eager.

    ``max_error`` is the largest absolute difference over all outputs and examples. ``modules`` is how
    many modules of the compiler loading it and calling it imported.
    """

    form: str
    frames_compiled: int
    max_error: float
    load_seconds: float
    modules: int


class Proof(_Record, frozen=True, kw_only=True):
    """A fresh process proved each form of the package.

    ``against`` is ``eager``, or ``compiled`` where outputs are random and eager draws other numbers:
    then the comparison is with what the build process computed. ``seconds`` is the time of the whole
    process. ``forked``: the process was forked from one that had imported libraries, and imported the same
    modules as a really fresh one before; a really fresh proof follows.
    """

    forms: tuple[FormProof, ...]
    examples: int
    against: str
    seconds: float
    forked: bool = False

    @property
    def frames_compiled(self) -> int:
        """Frames compiled over all forms."""
        return sum(proof.frames_compiled for proof in self.forms)

    @property
    def max_error(self) -> float:
        """The largest difference over all forms."""
        return max((proof.max_error for proof in self.forms), default=0.0)

    def of(self, form: str) -> FormProof | None:
        """The proof of one form."""
        return next((proof for proof in self.forms if proof.form == form), None)


class BuildRecord(_Record, frozen=True, kw_only=True):
    """When and how long: ``started_at`` in UTC (ISO 8601), ``seconds`` by phase."""

    preheat: str
    started_at: str
    seconds: dict[str, float]
    graphs: int
    kernels: int


class Manifest(_Record, frozen=True, kw_only=True):
    """One package. ``without`` says for each form that it lacks why."""

    format: int = FORMAT
    target: str
    factory: str
    environment: Environment
    settings: Settings
    spec: SpecRecord
    sources: Sources
    live: tuple[LiveCode, ...]
    forms: tuple[Form, ...]
    without: dict[str, str] = {}
    build: BuildRecord
    proof: Proof | None = None

    def form(self, kind: str) -> Form | None:
        """The form of this kind."""
        return next((form for form in self.forms if form.kind == kind), None)

    def proven(self, proof: Proof, without: dict[str, str]) -> "Manifest":
        """The package with its proof, and with the proven forms alone; ``without``: why not the others."""
        return msgspec.structs.replace(
            self,
            proof=proof,
            forms=tuple(form for form in self.forms if proof.of(form.kind)),
            without={**self.without, **without},
        )

    def is_proven(self) -> bool:
        """Whether the proof covers each form."""
        proof = self.proof
        return proof is not None and all(proof.of(form.kind) for form in self.forms)

    def objects(self) -> tuple[ObjectRef, ...]:
        """All objects, each once: those that a worker loads, then the texts of the sources."""
        seen = {ref.sha256: ref for ref in self.code_objects()}
        for module in self.sources.modules:
            text = module.text()
            if text is not None:
                seen.setdefault(text.sha256, text)
        return tuple(seen.values())

    def code_objects(self) -> tuple[ObjectRef, ...]:
        """The objects of all forms, each once: all that a worker ever opens."""
        seen = {ref.sha256: ref for form in self.forms for ref in form.objects}
        return tuple(seen.values())


class Ref(_Record, frozen=True, kw_only=True):
    """The content of the one mutable name of a target in an environment."""

    format: int = REF_FORMAT
    target: str
    environment: Digest
    manifest: Digest
    generation: int
    published_at: str


def sha256(data: bytes | memoryview) -> Digest:
    """The digest that names objects and manifests."""
    return hashlib.sha256(data).hexdigest()


def encode(record: msgspec.Struct) -> bytes:
    """Deterministic JSON of a record."""
    return msgspec.json.encode(record, order="deterministic")


def environment_digest(environment: Environment) -> Digest:
    """The name of an environment: sha256 of its JSON, shortened to 32 hexadecimal digits."""
    return sha256(encode(environment))[:32]


def decode_manifest(data: bytes, *, where: str = "manifest") -> Manifest:
    """Read a manifest. Raises ``CorruptedError`` that names ``where`` and the field.

    ``OtherFormatError``, one of those, for what another version of preheat wrote.
    """
    manifest: Manifest = _decode(data, Manifest, FORMAT, MAX_MANIFEST_BYTES, where)
    return manifest


def decode_ref(data: bytes, *, where: str = "ref") -> Ref:
    """Read a ref. Raises as ``decode_manifest`` does."""
    ref: Ref = _decode(data, Ref, REF_FORMAT, MAX_REF_BYTES, where)
    return ref


class _Numbered(msgspec.Struct):
    """All that must stay the same in every format."""

    format: int


def _decode(data: bytes, kind: type[Any], number: int, limit: int, where: str) -> Any:
    if len(data) > limit:
        raise CorruptedError(f"{where}: {len(data)} bytes is over the limit of {limit}.")
    try:
        record = msgspec.json.decode(data, type=kind, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # Another format has other fields: say what it is and not which field is in the way.
        _check_format(_format_of(data, number), number, where)
        raise CorruptedError(f"{where}: {error}.") from error
    _check_format(record.format, number, where)
    return record


def _format_of(data: bytes, otherwise: int) -> int:
    try:
        return msgspec.json.decode(data, type=_Numbered, strict=True).format
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return otherwise


def _check_format(found: int, known: int, where: str) -> None:
    if found != known:
        raise OtherFormatError(f"{where}: has format {found}, and this version knows {known}.")
