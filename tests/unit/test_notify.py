"""What is sent to a service manager, and that it is never waited for."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from preheatd.notify import Notifier
from preheatd.supervised import status_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(120)
        yield receiver


def test_each_notification_is_a_datagram_of_lines(manager: socket.socket, tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "notify"))
    notifier.ready()
    notifier.alive()
    notifier.stopping()
    assert [manager.recv(999) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    notifier.reloading()
    first, second = manager.recv(999).decode().split("\n")
    assert first == "RELOADING=1"
    assert int(second.removeprefix("MONOTONIC_USEC=")) > 0


def test_a_status_is_one_line_in_any_language(manager: socket.socket, tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "notify"))
    notifier.status("1 fresh;\nbuilding Modell für Übersetzung 译")
    notifier.status("1 fresh;\n building Modell für Übersetzung 译")  # the same again
    notifier.status("x" * 10_000)
    assert manager.recv(9999).decode() == "STATUS=1 fresh; building Modell für Übersetzung 译"
    assert len(manager.recv(99_999)) < 600


def test_an_abstract_address() -> None:
    name = f"preheat-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        receiver.settimeout(120)
        Notifier(f"@{name}").ready()
        assert receiver.recv(999) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/does/not/exist", "relative", "/" + "x" * 300, "a\0b"])
def test_nobody_listens(address: str) -> None:
    notifier = Notifier(address)
    notifier.ready()
    notifier.status("on my own")


def test_a_manager_that_never_reads_is_not_waited_for(
    manager: socket.socket, tmp_path: Path
) -> None:
    notifier = Notifier(str(tmp_path / "notify"))
    for number in range(5000):
        notifier.status(f"{number} " + "x" * 400)


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_this_process_s(environ: dict[str, str], seconds: float | None) -> None:
    given = {"NOTIFY_SOCKET": "/run/notify", **environ}
    assert Notifier.from_environment(given).watchdog_seconds == seconds
    assert Notifier.from_environment(environ).watchdog_seconds is None


def test_the_status_says_what_happens() -> None:
    assert status_text("", {}, "") == "no targets"
    assert (
        status_text("1 fresh, 2 stale", {"a": "trace", "b": "proof"}, "`jobs` is wrong")
        == "1 fresh, 2 stale; building a (trace), b (proof); CONFIGURATION REFUSED: `jobs` is wrong"
    )


def test_a_pause_and_a_closed_control_are_part_of_the_status() -> None:
    text = status_text("1 stale", {}, "", paused="asked (the demo)", control="It is taken.")
    assert text == "1 stale; PAUSED: asked (the demo); NO CONTROL: It is taken."
