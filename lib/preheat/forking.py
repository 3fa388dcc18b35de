"""What the daemon and a zygote say to each other: one JSON object a line, on a socket.

A zygote (``preheat.zygote``) is a process that has imported libraries and nothing else, and forks a
child for each build or proof. It serves two kinds of children: ``worker`` children have what a worker
has, torch without the compiler; ``compiler`` children have the compiler too.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from preheat.limits import decode_json

Kind = Literal["worker", "compiler"]
KINDS: tuple[Kind, ...] = ("worker", "compiler")


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The zygote's only command-line argument, as JSON.

    ``worker`` and ``compiler`` are descriptors of connected stream sockets, one for each kind of
    children. ``libraries`` are modules to import, in this order; one that cannot be imported is left out.
    """

    worker: int
    compiler: int
    libraries: tuple[str, ...] = ()


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fork a child that runs ``module`` with the job file ``job``.

    Two descriptors come with it: the child's standard output and its standard error. ``variables`` are set
    over the zygote's environment.
    """

    number: int
    module: Literal["preheat.build", "preheat.verify"]
    job: str
    variables: dict[str, str]


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="ready"):
    """The zygote can fork. ``modules``: all that it has imported."""

    modules: tuple[str, ...]


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="forked"):
    """The child runs; ``pid`` is that of its process group as well."""

    number: int
    pid: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="ended"):
    """The child has ended; ``status`` is negative for a signal."""

    number: int
    status: int


class Unfit(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="unfit"):
    """No child of this zygote would be like a fresh process; ``why`` is for the log.

    In the place of ``Ready``: nor would one of any other that is started in the same way.
    """

    why: str


Answer = Ready | Forked | Ended | Unfit


def read_setup(text: str) -> Setup:
    """Raises ``msgspec.MsgspecError``."""
    return decode_json(text.encode(), Setup)


def read_request(line: bytes) -> ForkRequest:
    """Raises ``msgspec.MsgspecError``."""
    return decode_json(line, ForkRequest)


def read_answer(line: bytes) -> Answer:
    """Raises ``msgspec.MsgspecError``."""
    answer: Answer = decode_json(line, Answer)  # type: ignore[arg-type]
    return answer


def encode(message: msgspec.Struct) -> bytes:
    """One line, newline included."""
    return msgspec.json.encode(message) + b"\n"
