"""Sockets that the daemon makes, and sockets that the service manager hands over."""

from __future__ import annotations

import grp
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preheat.errors import ConfigurationError
from preheatd.control import activation
from preheatd.control.refusals import ListenError
from preheatd.control.settings import Control, ControlTable, control_of, default_socket
from preheatd.control.sockets import MAX_PATH_BYTES, listen_at, listen_on

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short: a socket's path has a limit."""
    return tmp_path_factory.mktemp("s")


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def test_a_socket_has_its_mode_and_group_and_goes_away(place: Path) -> None:
    path = place / "control.sock"
    listener = listen_at(path)
    found = path.stat()
    assert stat.S_IMODE(found.st_mode) == 0o660
    assert found.st_gid == os.getegid()
    assert names(place) == {"control.sock"}
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
    listener.close()
    assert names(place) == set()


def test_a_group_is_given(place: Path) -> None:
    group = grp.getgrgid(os.getegid()).gr_name
    listen_at(place / "a", group).close()
    with pytest.raises(ListenError, match="no group `nobody-has-this`"):
        listen_at(place / "a", "nobody-has-this")
    assert names(place) == set()


def test_a_stale_socket_is_replaced(place: Path) -> None:
    path = place / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    before = path.stat().st_ino
    listener = listen_at(path)
    assert path.stat().st_ino != before
    assert names(place) == {"control.sock"}
    listener.close()


def test_a_live_socket_stays(place: Path) -> None:
    path = place / "control.sock"
    first = listen_at(path)
    with pytest.raises(ListenError, match="Another process listens"):
        listen_at(path)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
    assert names(place) == {"control.sock"}
    first.close()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_something_else_stays(place: Path, kind: str) -> None:
    path = place / "control.sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("elsewhere")
    with pytest.raises(ListenError, match="no socket"):
        listen_at(path)
    assert names(place) == {"control.sock"}


def test_a_path_that_is_too_long_or_leads_nowhere(place: Path) -> None:
    longest = place / ("x" * (MAX_PATH_BYTES - len(str(place)) - 1))
    listen_at(longest).close()
    with pytest.raises(ListenError, match="108 bytes; 107 are the most"):
        listen_at(longest.with_name(f"{longest.name}x"))
    with pytest.raises(ListenError, match="No such file"):
        listen_at(place / "nowhere" / "control.sock")
    assert names(place) == set()


def test_what_others_put_there_meanwhile_is_not_removed(place: Path) -> None:
    path = place / "control.sock"
    first = listen_at(path)
    path.unlink()
    second = listen_at(path)
    first.close()
    assert names(place) == {"control.sock"}
    second.close()


def test_a_port_that_is_taken() -> None:
    first = listen_on("127.0.0.1", 0)
    with first, pytest.raises(ListenError, match="in use"):
        listen_on("127.0.0.1", first.getsockname()[1])


# --- handed over -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, 0),
        ({"LISTEN_FDS": "1"}, 0),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "2"}, 2),
        ({"LISTEN_PID": "8", "LISTEN_FDS": "2"}, 0),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "-2"}, 0),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "x"}, 0),
        ({"LISTEN_PID": "x", "LISTEN_FDS": "1"}, 0),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "99999999"}, activation.MOST),
    ],
)
def test_how_many_are_meant_for_this_process(environ: dict[str, str], wanted: int) -> None:
    assert activation.count(environ, 7) == wanted


def test_nothing_is_taken_that_was_meant_for_others() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "a", "PATH": "/bin"}
    assert activation.inherited(environ) == ()
    assert environ == {"PATH": "/bin"}


def test_sockets_are_taken_and_children_get_none_of_them(place: Path) -> None:
    """In a process of its own: its descriptor 3 is a socket, and 4 is none."""
    script = (
        "import os, socket, sys\n"
        "made = socket.socket(socket.AF_UNIX); made.bind(sys.argv[1]); made.listen()\n"
        "null = os.open('/dev/null', os.O_RDONLY)\n"
        "a, b = os.dup(made.fileno()), os.dup(null)\n"
        "os.dup2(a, 3); os.dup2(b, 4)\n"
        "from preheatd.control import activation\n"
        "environ = {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '2'}\n"
        "found = activation.inherited(environ)\n"
        "for one in found: activation.check(one)\n"
        "print([one.getsockname() for one in found], os.get_inheritable(3), environ)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(place / "a")], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"['{place / 'a'}'] False {{}}\n"


@pytest.fixture
def bound(place: Path) -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", ["datagram", "quiet", "every address"])
def test_sockets_that_are_not_served(place: Path, bound: list[socket.socket], kind: str) -> None:
    if kind == "datagram":
        bound.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        bound[0].bind(str(place / "a"))
    elif kind == "quiet":
        bound.append(socket.socket(socket.AF_UNIX))
        bound[0].bind(str(place / "a"))
    else:
        bound.append(socket.socket())
        bound[0].bind(("0.0.0.0", 0))  # noqa: S104  what must be refused
        bound[0].listen()
    with pytest.raises(ListenError):
        activation.check(bound[0])


# --- the table [control] -----------------------------------------------------------------------


def settings(**written: str) -> Control:
    return control_of(ControlTable(**written), Path("/p/preheat.toml"), Path("/p"))


def test_the_table() -> None:
    assert settings() == Control()
    assert settings(socket="run/a.sock").socket == Path("/p/run/a.sock")
    assert not settings(socket="").listens
    made = settings(tcp="[::1]:80", token_file="/t", group="g")  # noqa: S106
    assert (made.tcp, made.token_file, made.group) == (("::1", 80), Path("/t"), "g")


@pytest.mark.parametrize(
    ("tcp", "word"),
    [
        ("0.0.0.0:80", "loopback"),
        ("192.168.1.1:80", "loopback"),
        ("localhost:80", "loopback"),
        ("[::]:80", "loopback"),
        ("80", "127.0.0.1:PORT"),
        (":80", "127.0.0.1:PORT"),
        ("127.0.0.1", "127.0.0.1:PORT"),
        ("127.0.0.1:70000", "127.0.0.1:PORT"),
        ("::1:80", "127.0.0.1:PORT"),
        ("127.0.0.1:80/x", "127.0.0.1:PORT"),
    ],
)
def test_only_this_machine(tcp: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        settings(tcp=tcp, token_file="/t")  # noqa: S106


def test_a_port_needs_a_token() -> None:
    with pytest.raises(ConfigurationError, match="token_file"):
        settings(tcp="127.0.0.1:80")


def test_where_the_socket_is_by_default() -> None:
    one = default_socket(Path("/state"), Path("/a/preheat.toml"), {})
    other = default_socket(Path("/state"), Path("/b/preheat.toml"), {})
    assert one.parent == other.parent == Path("/state")
    assert one != other
    environ = {"RUNTIME_DIRECTORY": "/run/preheat/shop:/run/other"}
    assert default_socket(Path("/s"), Path("/a"), environ) == Path("/run/preheat/shop/control.sock")
