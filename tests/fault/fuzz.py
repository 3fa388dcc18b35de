"""What is fuzzed: for each kind of input one function that takes any bytes and lets only surprises out.

Used with hypothesis in ``test_fuzz.py``, and with atheris in ``fuzz_guided.py``.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.errors import ConfigurationError, CorruptedError, UnsignedPackageError
from preheat.image import format as image_format
from preheat.job import decode_event, read_job
from preheat.manifest import decode_manifest, decode_ref, encode
from preheat.store import records
from preheat.store.signatures import PublicKey, Signatures, decode_signatures, parse_keys
from preheatd import history, owned, state, troubles
from preheatd.config import load_config
from preheatd.control.guard import Guard
from preheatd.control.refusals import ForbiddenError, RequestError
from preheatd.control.routes import KickBody, Nothing, PauseBody, _body, _number
from support.manifests import ENVIRONMENT, SAMPLE, manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable

DIGEST = "0" * 64
_IMAGE = image_format.Image(
    interpreter=b"i",
    torch="2",
    guard_settings={"a": True},
    units=(
        image_format.Unit(
            role="main",
            module="m",
            names=("n",),
            source="",
            digest="",
            original=image_format.Code(b"", (image_format.Sequence("tuple", ()),)),
            entry=b"",
            variants=(),
        ),
    ),
    graphs=(),
    globals=(),
    weights=(),
)
_HEADER = image_format._HEADER


class Request:
    """As much of a request as the handlers look at."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.query = {"count": data.decode("utf-8", "replace")}

    async def read(self) -> bytes:
        return self._data


def manifest(data: bytes) -> None:
    try:
        decode_manifest(data).objects()
    except CorruptedError:
        pass


def ref(data: bytes) -> None:
    try:
        records.parse_ref(data, "model", ENVIRONMENT, "ref")
    except CorruptedError:
        pass
    try:
        decode_ref(data)
    except CorruptedError:
        pass


def image(data: bytes) -> None:
    digest = hashlib.sha256(data).digest()
    header = _HEADER.pack(image_format._MAGIC, image_format.FORMAT, len(data), digest)
    for one in (data, header + data):  # a digest keeps nobody away who makes the whole file
        try:
            image_format.decode(one)
        except CorruptedError:
            pass


def signatures(data: bytes) -> None:
    try:
        decode_signatures(data, DIGEST, "")
    except UnsignedPackageError:
        pass


def keys(data: bytes) -> None:
    try:
        parse_keys(data, "")
    except ConfigurationError:
        pass


def control(data: bytes) -> None:
    request: Any = Request(data)
    for kind in (KickBody, PauseBody, Nothing):
        try:
            asyncio.run(_body(request, kind))
        except RequestError:
            pass
    try:
        assert 1 <= _number(request, "count", 50, 1, 1000) <= 1000
    except RequestError:
        pass
    text = data.decode("latin-1")
    guard = Guard("a-token-of-sixteen", 80)
    for attempt in (
        lambda: guard.check_host({"Host": text, "Origin": text}),
        lambda: guard.check_caller("GET", {"Authorization": text}, {guard.cookie_name: text}),
        lambda: guard.check_caller("POST", {"Authorization": f"Bearer {text}"}, {}),
    ):
        try:
            attempt()
        except ForbiddenError:
            pass


def configuration(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for name in ("preheat.toml", "pyproject.toml"):
            Path(directory, name).write_bytes(data)
            try:
                load_config(Path(directory, name), environ={})
            except ConfigurationError as error:
                assert name in str(error)


def records_of_the_daemon(data: bytes) -> None:
    for read in (read_job, decode_event):
        try:
            read(data)
        except msgspec.MsgspecError:
            pass
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        path.write_bytes(data)
        list(history._entries(path))
        troubles._read(path)
        for kind in (state.Failure, state.Published, state.FreshProof, owned.Owner):
            state.read_record(path, kind)


# Each with bytes that are good, to begin from.
TARGETS: dict[str, tuple[Callable[[bytes], None], bytes]] = {
    "manifest": (manifest, SAMPLE),
    "ref": (
        ref,
        msgspec.json.encode(
            {
                "format": 1,
                "target": "model",
                "environment": ENVIRONMENT,
                "manifest": hashlib.sha256(encode(manifest_of())).hexdigest(),
                "generation": 1,
                "published_at": "now",
            }
        ),
    ),
    "image": (image, image_format.encode(_IMAGE)[_HEADER.size :]),
    "signatures": (signatures, encode(Signatures(manifest=DIGEST))),
    "keys": (keys, PublicKey(bytes(32), "name").line.encode()),
    "control": (control, b'{"targets": ["a"], "rebuild": true, "detail": "x"}'),
    "configuration": (
        configuration,
        b'targets = ["app.warm:f"]\njobs = 2\nenv = { A = "b" }\ntolerance = { float32 = [1e-3, 1] }\n'
        b'[control]\ntcp = "127.0.0.1:1"\ntoken_file = "t"\n[politeness]\nmemory_limit = "8GiB"\n'
        b'[signatures]\npolicy = "off"\n[[target]]\nfactory = "a:g"\ntimeout = 3.5\n',
    ),
    "records": (records_of_the_daemon, b'{"target": "t", "environment": "", "kind": "k"}'),
}
