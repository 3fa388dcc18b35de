"""A real daemon asked over real sockets: every question and order, bad input, and who comes and goes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Any

import pytest
from test_daemon_double import make_project, write_double
from test_daemon_service import LIMIT_SECONDS, Daemon, signal_gate, wait_for_text
from test_supervised import Manager

from preheatd import events
from preheatd.control.routes import MAX_BODY_BYTES
from support.control import ask, connect, raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOKEN = "correct-horse-battery"  # noqa: S105


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE", "STATE", "SOCKET"):
        monkeypatch.delenv(f"PREHEAT_{name}", raising=False)
    for name in ("STATE", "CACHE", "RUNTIME"):
        monkeypatch.delenv(f"{name}_DIRECTORY", raising=False)


@dataclasses.dataclass
class Running:
    """A daemon and where it listens."""

    daemon: Daemon
    file: Path
    socket: Path

    def ask(self, path: str, body: object = None, **rest: Any) -> Any:
        """A question that is answered well."""
        answer = ask(self.socket, path, body, **rest)
        assert answer.status == 200, answer
        return answer.json()

    def verdicts(self) -> dict[str, str]:
        return {one["target"]: one["verdict"] for one in self.ask("/v1/status")["targets"]}


@pytest.fixture
def start(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Running]]:
    """Starts daemons with a socket at a short path."""
    made: list[Daemon] = []
    short = tmp_path_factory.mktemp("s")

    def begin(
        *targets: str, control: str = "", file: Path | None = None, path: str = "", **doing: Any
    ) -> Running:
        place = short / (path or "control.sock")
        if file is None:
            table = f'[control]\nsocket = "{place}"\n{control}'
            names = targets or ("encoder",)
            file = make_project(tmp_path / "project", names, extra=table, **doing)
        daemon = Daemon(file)
        made.append(daemon)
        daemon.next(events.READY)
        return Running(daemon, file, place)

    yield begin
    for daemon in made:
        if daemon.process.poll() is None:
            daemon.end(SIGKILL)


def preheat(file: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preheatd", *words, "--config", str(file)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        env={**os.environ, **variables},
    )


def preheat_json(file: Path, *words: str, **variables: str) -> tuple[int, Any]:
    done = preheat(file, *words, "--json", **variables)
    assert done.stdout.count("\n") == 1, done
    return done.returncode, json.loads(done.stdout)


# --- questions ---------------------------------------------------------------------------------


def test_the_same_answers_from_the_daemon_and_from_the_disk(start: Callable[..., Running]) -> None:
    running = start("encoder", "decoder", build={"decoder": "refuse"})
    running.ask("/v1/wait?targets=encoder")
    assert ask(running.socket, "/v1/wait?targets=decoder").status == 424
    assert preheat(running.file, "pause").returncode == 0
    words: list[tuple[str, ...]] = [
        ("status",),
        ("plan",),
        ("plan", "decoder"),
        ("explain", "decoder"),
    ]
    answers = [preheat_json(running.file, *one) for one in words]
    texts = [preheat(running.file, *one).stdout for one in words[1:]]
    status = answers[0][1]
    assert [answer["from"] for _, answer in answers] == ["daemon"] * 4
    assert status["daemon"]["pid"] == running.daemon.process.pid
    assert status["daemon"]["control"] == str(running.socket)
    assert [one["reason"] for one in status["daemon"]["paused"]] == ["asked"]
    assert status["daemon"]["watch"] == {"mode": "native", "limit": None}

    assert running.daemon.end(SIGTERM) == 0
    assert not running.socket.exists()
    for one, (code, answer) in zip(words, answers, strict=True):
        same, other = preheat_json(running.file, *one)
        assert (same, other["from"]) == (code, "disk")
        assert set(other) == set(answer)
        kept = (
            "targets",
            "target",
            "verdict",
            "failure",
            "factory",
            "symbols",
            "settings",
            "store",
        )
        for key in kept:
            assert other.get(key) == answer.get(key), (one, key)
    assert [preheat(running.file, *one).stdout for one in words[1:]] == texts


def test_status_says_what_only_the_daemon_knows(start: Callable[..., Running]) -> None:
    running = start("encoder", "decoder", build="gate")
    wait_for_text(running.file.parent / "running-encoder")
    answer = running.ask("/v1/status")["daemon"]
    (building,) = answer["building"]
    assert (building["target"], building["phase"]) == ("encoder", "start")
    assert answer["queue"] == ["decoder"]
    assert answer["planned_at"] is not None
    assert running.verdicts() == {"encoder": "BUILDING", "decoder": "MISSING"}
    text = preheat(running.file, "status").stdout
    assert "building: encoder (start)" in text
    assert "waiting: decoder" in text
    signal_gate(running.file)
    running.ask("/v1/wait")
    answer = running.ask("/v1/status")["daemon"]
    assert (answer["building"], answer["queue"]) == ([], [])
    history = running.ask("/v1/history?count=2")["history"]
    assert [one["event"]["action"] for one in history] == ["build_published"] * 2


def test_metrics(start: Callable[..., Running]) -> None:
    running = start()
    running.ask("/v1/wait")
    answer = ask(running.socket, "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert b'preheat_targets{verdict="FRESH"} 1.0' in answer.body
    running.ask("/v1/pause", {})
    assert b"preheat_paused 1.0" in ask(running.socket, "/metrics").body


# --- orders ------------------------------------------------------------------------------------


def builds(running: Running, target: str = "encoder") -> int:
    log = (running.file.parent / "double.log").read_text()
    return log.split("\n").count(f"build {target}")


def test_a_kick_tries_again_at_once(start: Callable[..., Running]) -> None:
    running = start("encoder", "decoder", build={"encoder": "fail"})
    assert ask(running.socket, "/v1/wait").status == 424
    running.ask("/v1/wait?targets=decoder")
    write_double(running.file.parent)
    # What failed is on its way now, so a wait is for the new attempt.
    done = preheat(running.file, "kick")
    assert (done.returncode, "encoder" in done.stdout, "decoder" in done.stdout) == (0, True, False)
    code, answer = preheat_json(running.file, "wait", "encoder")
    assert (code, answer["targets"][0]["verdict"]) == (0, "FRESH")
    assert "every target is fresh" in preheat(running.file, "kick").stdout.lower()


def test_a_rebuild_builds_what_is_fresh(start: Callable[..., Running]) -> None:
    running = start()
    running.ask("/v1/wait")
    assert builds(running) == 1
    running.ask("/v1/kick", {"targets": ["encoder"]})
    running.ask("/v1/wait")
    assert builds(running) == 1
    code, answer = preheat_json(running.file, "kick", "--rebuild", "encoder")
    assert (code, answer["targets"][0]["action"]) == (0, "build")
    running.ask("/v1/wait")
    assert builds(running) == 2
    running.ask("/v1/kick", {"rebuild": True})
    running.ask("/v1/wait")
    assert builds(running) == 3


def test_a_paused_daemon_plans_and_begins_nothing(
    tmp_path: Path, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    running = start("encoder", "decoder", build="gate")
    wait_for_text(running.file.parent / "running-encoder")
    paused = running.ask("/v1/pause", {"detail": "the demo\nbegins"})["paused"]
    assert (paused[0]["reason"], paused[0]["detail"]) == ("asked", "the demo begins")
    while "PAUSED: asked (the demo begins)" not in manager.until("STATUS="):
        pass
    # What runs goes on, and is published.
    signal_gate(running.file)
    running.ask("/v1/wait?targets=encoder")
    late = ask(running.socket, "/v1/wait?targets=decoder&timeout=0.2")
    assert (late.status, late.error["kind"]) == (408, "wait_timeout")
    assert "paused: asked (the demo begins)" in late.error["message"]
    # It outlives a reload, and an edit is seen.
    assert preheat(running.file, "reload").returncode == 0
    (running.file.parent / "app" / "encoder.py").write_text("def encoder():\n    return 2\n")
    assert running.ask("/v1/plan?targets=encoder")["targets"][0]["verdict"] == "STALE"
    assert "paused: asked (the demo begins)" in preheat(running.file, "status").stdout
    assert builds(running, "decoder") == 0
    assert preheat_json(running.file, "resume") == (0, {"paused": []})
    running.ask("/v1/wait")
    manager.socket.close()


def test_a_wait_sees_what_was_edited_just_before(start: Callable[..., Running]) -> None:
    running = start()
    for value in range(2, 5):
        running.ask("/v1/wait")
        (running.file.parent / "app" / "encoder.py").write_text(
            f"def encoder():\n    return {value}\n"
        )
        running.ask("/v1/wait")
        assert builds(running) == value


def test_a_wait_has_exit_codes(start: Callable[..., Running]) -> None:
    running = start("encoder", "decoder", build={"encoder": "fail", "decoder": "hang"})
    failed = preheat(running.file, "wait", "encoder")
    assert (failed.returncode, "division by zero" in failed.stderr) == (3, True)
    wait_for_text(running.file.parent / "running-decoder")
    for seconds in ("0.2", "5", "60"):
        late = preheat(running.file, "wait", "decoder", "--timeout", seconds)
        assert late.returncode == 4
        if "decoder is BUILDING" in late.stderr:  # else there was no time to look
            break
    assert "decoder is BUILDING" in late.stderr
    unknown = preheat(running.file, "wait", "nobody")
    assert unknown.returncode == 2


def test_reload_over_the_socket(start: Callable[..., Running]) -> None:
    running = start()
    good = running.file.read_text()
    assert preheat_json(running.file, "reload") == (
        0,
        {
            "from": "daemon",
            "pid": running.daemon.process.pid,
            "configuration": str(running.file),
        },
    )
    running.file.write_text("targets = 3")
    refused = ask(running.socket, "/v1/reload", {})
    assert (refused.status, refused.error["kind"]) == (422, "configuration")
    assert "`targets`" in running.ask("/v1/status")["daemon"]["refused"]
    running.file.write_text(good)
    running.ask("/v1/reload", {})
    assert running.ask("/v1/status")["daemon"]["refused"] is None


# --- events ------------------------------------------------------------------------------------


def test_events_are_followed_by_the_command(start: Callable[..., Running]) -> None:
    running = start()
    running.ask("/v1/wait")
    command = [sys.executable, "-m", "preheatd", "events", "--json", "--config", str(running.file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        # Not before it follows: what it hears of is the first pause after that.
        while not _hears(process, running):
            pass
        assert running.daemon.end(SIGTERM) == 0
        rest = [json.loads(line)["action"] for line in process.stdout]
        assert rest[-1] == "stopping"
        assert process.wait(LIMIT_SECONDS) == 0


def _hears(process: subprocess.Popen[bytes], running: Running) -> bool:
    running.ask("/v1/pause", {"detail": str(time.monotonic_ns())})
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], 0.2)
    return bool(readable) and "action" in json.loads(process.stdout.readline())


def test_events_are_replayed_to_one_that_was_away(start: Callable[..., Running]) -> None:
    running = start()
    running.ask("/v1/wait")
    with followed(running.socket) as stream:
        running.ask("/v1/pause", {"detail": "first"})
        seen = next(line for line in stream if line.startswith("id: "))
        while "first" not in next(stream):
            seen = next(line for line in stream if line.startswith("id: "))
    running.ask("/v1/pause", {"detail": "second"})
    running.ask("/v1/pause", {"detail": "third"})
    with followed(running.socket, seen.removeprefix("id: ")) as stream:
        # Plans may be made in between.
        heard = (json.loads(line[6:]) for line in stream if line.startswith("data: "))
        details = (one["reasons"][0]["detail"] for one in heard if one["action"] == "paused")
        assert [next(details) for _ in range(2)] == ["second", "third"]
    with followed(running.socket, "another-life") as stream:
        assert next(line for line in stream if line.startswith("event")) == "event: gap"


@contextlib.contextmanager
def followed(place: Path, after: str = "") -> Iterator[Iterator[str]]:
    """The lines of the event stream, once it has begun."""
    with connect(place) as made, made.makefile("r") as file:
        made.sendall(
            f"GET /v1/events HTTP/1.0\r\nHost: x\r\nLast-Event-ID: {after}\r\n\r\n".encode()
        )
        lines = (line.rstrip("\n") for line in file)
        assert next(line for line in lines if line.startswith("retry"))
        yield lines


def test_one_that_never_reads_is_dropped_and_nobody_else_minds(
    start: Callable[..., Running],
) -> None:
    running = start()
    running.ask("/v1/wait")
    # What it prints is read too.
    threading.Thread(target=running.daemon.process.stdout.read).start()  # type: ignore[union-attr]
    with followed(running.socket) as reader, connect(running.socket) as deaf:
        deaf.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        assert deaf.recv(15) == b"HTTP/1.1 200 OK"
        heard = 0
        # Enough for the socket's buffers, then for the backlog.
        for number in range(2000):
            running.ask("/v1/pause", {"detail": "\N{FIRE}" * 190 + str(number)})
            heard += bool(next(one for one in reader if one.startswith('data: {"action":"paused"')))
        rest = b""
        with contextlib.suppress(ConnectionError):
            while part := deaf.recv(65536):
                rest += part
        # It was told part of it, then sent away.
        told = rest.count(b"\ndata: ")
        assert 0 < told < 2000
        assert heard == 2000
    running.ask("/v1/resume", {})
    running.ask("/v1/wait")


def test_only_so_many_follow(start: Callable[..., Running]) -> None:
    running = start()
    with contextlib.ExitStack() as stack:
        for _ in range(32):
            stack.enter_context(followed(running.socket))
        refused = ask(running.socket, "/v1/events")
        assert (refused.status, refused.error["kind"]) == (503, "request")
        running.ask("/v1/status")


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/v1/nothing", None, 404, "nothing"),
        ("/v1/../../etc/passwd", None, 404, "nothing"),
        ("/v1/kick", None, 405, "GET"),
        ("/v1/status", {}, 405, "POST"),
        ("/v1/kick", {"targets": ["nobody"]}, 404, "nobody"),
        ("/v1/kick", {"targets": "encoder"}, 400, "array"),
        ("/v1/kick", {"target": []}, 400, "unknown field"),
        ("/v1/kick", b"{", 400, "truncated"),
        ("/v1/kick", b"\xff\xfe", 400, "body"),
        ("/v1/kick", b"[" * 60_000, 400, "body"),
        ("/v1/pause", b"x" * (MAX_BODY_BYTES + 1), 413, "larger"),
        ("/v1/explain/nobody", None, 404, "nobody"),
        ("/v1/explain/%3Cb%3E", None, 404, "<b>"),
        ("/v1/plan?targets=encoder,nobody", None, 404, "nobody"),
        ("/v1/wait?timeout=-1", None, 400, "timeout"),
        ("/v1/wait?timeout=nan", None, 400, "timeout"),
        ("/v1/wait?timeout=1e9", None, 400, "timeout"),
        ("/v1/history?count=0", None, 400, "count"),
        ("/v1/history?count=many", None, 400, "count"),
    ],
)
def test_what_cannot_be_answered_is_a_clear_error(
    shared: Running, path: str, body: object, status: int, word: str
) -> None:
    answer = ask(shared.socket, path, body)
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/json"
    assert word in answer.error["message"]
    assert shared.verdicts() == {"encoder": "FRESH"}


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x: y\r\n" * 1000 + b"\r\n",
        b"POST /v1/kick HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["words", "TLS", "version", "long line", "many headers", "length"],
)
def test_what_is_no_http_is_a_clear_error_too(shared: Running, data: bytes) -> None:
    answer = raw(shared.socket, data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 400 " in head.split(b"\r\n")[0]
    assert json.loads(body)["error"]["kind"] == "request"
    assert shared.verdicts() == {"encoder": "FRESH"}


def test_callers_that_hang_up_are_no_trouble(shared: Running) -> None:
    for data in (
        b"",
        b"GET /v1/wait?timeout=600 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1/kick HTTP",
    ):
        with connect(shared.socket) as made:
            made.sendall(data)
    assert shared.verdicts() == {"encoder": "FRESH"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One daemon for questions that change nothing, with a port."""
    place = tmp_path_factory.mktemp("s")
    (place / "token").touch(0o600)
    (place / "token").write_text(TOKEN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    table = (
        f'[control]\nsocket = "{place}/c"\ntcp = "127.0.0.1:{port}"\ntoken_file = "{place}/token"\n'
    )
    daemon = Daemon(make_project(place / "project", extra=table))
    daemon.next(events.READY)
    daemon.next(events.BUILD_PUBLISHED)
    running = Running(daemon, place / "project" / "preheat.toml", place / "c")
    running.ask("/v1/wait")
    yield running
    assert daemon.end(SIGTERM) == 0


# --- the port ----------------------------------------------------------------------------------


def port_of(running: Running) -> int:
    entries = running.ask("/v1/history?count=1000")["history"]
    details = [one["event"].get("detail", "") for one in entries]
    (found,) = [one for one in details if one.startswith("http://127.0.0.1:")]
    return int(found.rpartition(":")[2])


def test_a_port_needs_the_token_and_a_name_of_this_machine(shared: Running) -> None:
    port = port_of(shared)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert ask(port, "/v1/status", headers=bearer).status == 200
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer wrong-horse-battery"}, 401),
        ({**bearer, "Host": f"evil.example:{port}"}, 421),
        ({**bearer, "Host": "127.0.0.1"}, 421),
        ({**bearer, "Origin": "http://evil.example"}, 403),
    ):
        for path, body in (
            ("/v1/status", None),
            ("/", None),
            ("/v1/pause", {}),
            ("/nothing", None),
        ):
            answer = ask(port, path, body, headers=headers)
            assert (answer.status, answer.error["kind"]) == (status, "forbidden"), (headers, path)
            assert not [name for name in answer.headers if name.startswith("Access-Control")]
    assert ask(port, "/?token=wrong").status == 401
    assert ask(port, f"/?token={TOKEN}", headers={"Host": "evil.example"}).status == 421
    preflight = ask(port, "/v1/pause", method="OPTIONS", headers={"Origin": "http://evil.example"})
    assert preflight.status == 403
    assert shared.ask("/v1/status")["daemon"]["paused"] == []


def test_the_token_in_an_address_becomes_a_cookie_that_reads(shared: Running) -> None:
    port = port_of(shared)
    moved = ask(port, f"/?token={TOKEN}")
    assert (moved.status, moved.headers["Location"]) == (303, "/")
    cookie = moved.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    shown = {"Cookie": cookie.partition(";")[0]}
    page = ask(port, "/", headers=shown)
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert ask(port, "/v1/status", headers=shown).status == 200
    assert ask(port, "/v1/pause", {}, headers=shown).status == 401


# --- where it listens --------------------------------------------------------------------------


def test_the_socket_is_for_its_group_alone(shared: Running) -> None:
    assert stat.S_IMODE(shared.socket.stat().st_mode) == 0o660


def test_a_taken_path_is_told_and_survived(
    tmp_path: Path, start: Callable[..., Running], shared: Running
) -> None:
    table = f'[control]\nsocket = "{shared.socket}"\n'
    file = make_project(tmp_path / "taken", extra=table)
    second = start(file=file)
    second.daemon.next(events.BUILD_PUBLISHED)
    # The socket is another configuration's, so nobody is asked there.
    code, answer = preheat_json(file, "status")
    assert (code, answer["from"]) == (0, "disk")
    assert preheat(file, "pause").returncode == 6
    entries = preheat_json(file, "status", "--history", "20")[1]["history"]
    (failed,) = [one["event"] for one in entries if one["event"]["action"] == "control_failed"]
    assert "Another process listens" in failed["detail"]
    # Another place, and it can be asked.
    file.write_text(file.read_text().replace(str(shared.socket), f"{shared.socket}2"))
    assert preheat(file, "reload").returncode == 0
    assert preheat_json(file, "status")[1]["from"] == "daemon"
    assert shared.verdicts() == {"encoder": "FRESH"}


@pytest.mark.parametrize("trouble", ["file", "long", "group", "token"])
def test_what_cannot_be_listened_at_is_told_and_mended_by_a_reload(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    start: Callable[..., Running],
    trouble: str,
) -> None:
    place = tmp_path_factory.mktemp("s")
    table, word = {
        "file": (f'socket = "{place}/c"', "no socket"),
        "long": (f'socket = "{place}/{"x" * 108}"', "107 are the most"),
        "group": (f'socket = "{place}/c"\ngroup = "nobody-has-this"', "no group"),
        "token": (
            f'socket = "{place}/c"\ntcp = "127.0.0.1:0"\ntoken_file = "{place}/t"',
            "token file",
        ),
    }[trouble]
    if trouble == "file":
        (place / "c").write_text("precious")
    file = make_project(tmp_path / "project", extra=f"[control]\n{table}\n")
    daemon = Daemon(file)
    try:
        assert word in daemon.next(events.CONTROL_FAILED)["detail"]
        daemon.next(events.BUILD_PUBLISHED)
        if trouble == "file":
            assert (place / "c").read_text() == "precious"
        if trouble == "token":
            assert word in ask(place / "c", "/v1/status").json()["daemon"]["control_trouble"]
        mended = place / "d"
        file.write_text(
            file.read_text().partition("[control]")[0] + f'[control]\nsocket = "{mended}"\n'
        )
        assert preheat(file, "reload").returncode == 0
        assert ask(mended, "/v1/status").json()["daemon"]["control_trouble"] is None
    finally:
        daemon.end(SIGKILL)


def test_a_daemon_that_was_killed_leaves_a_socket_that_is_replaced(
    start: Callable[..., Running],
) -> None:
    first = start()
    first.daemon.end(SIGKILL)
    assert first.socket.exists()
    done = preheat(first.file, "kick")
    assert (done.returncode, "No daemon" in done.stderr) == (6, True)
    second = start(file=first.file)
    second.ask("/v1/wait")


def test_no_socket_where_none_is_wanted(tmp_path: Path, start: Callable[..., Running]) -> None:
    file = make_project(tmp_path / "project", extra='[control]\nsocket = ""\n')
    start(file=file)
    assert preheat_json(file, "plan")[1]["from"] == "disk"
    assert preheat(file, "events").returncode == 6
    # Reloading works all the same, by a signal.
    assert preheat(file, "reload").returncode == 0


@pytest.mark.parametrize("command", ["kick", "pause", "resume", "events"])
def test_some_commands_need_a_daemon(tmp_path: Path, command: str) -> None:
    file = make_project(tmp_path / "project")
    code, answer = preheat_json(file, command)
    assert (code, answer["error"]["kind"]) == (6, "no_daemon")


def test_a_wait_works_without_a_daemon(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    late = preheat(file, "wait", "--timeout", "0")
    assert (late.returncode, "no daemon can be asked" in late.stderr) == (4, True)
    command = [sys.executable, "-m", "preheatd", "wait", "--json", "--config", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as waiting:
        assert preheat(file, "warm").returncode == 0
        out, _ = waiting.communicate(timeout=LIMIT_SECONDS)
    assert (waiting.returncode, json.loads(out)["from"]) == (0, "disk")


def test_a_daemon_that_does_not_answer_is_said_and_the_disk_is_looked_at(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = make_project(tmp_path / "project")
    with socket.socket(socket.AF_UNIX) as silent:
        place = tmp_path_factory.mktemp("s") / "c"
        silent.bind(str(place))
        silent.listen()
        done = preheat(file, "plan", "--json", PREHEAT_SOCKET=str(place))
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        assert "did not answer in time" in done.stderr
        assert json.loads(done.stdout)["from"] == "disk"
        assert (
            preheat(file, "wait", "--timeout", "0", PREHEAT_SOCKET=str(place / "no")).returncode
            == 4
        )


def test_another_configuration_s_daemon_does_not_answer(tmp_path: Path, shared: Running) -> None:
    file = make_project(tmp_path / "project")
    refused = preheat(file, "pause", PREHEAT_SOCKET=str(shared.socket))
    assert refused.returncode == 2
    assert str(shared.file) in refused.stderr
    assert shared.ask("/v1/status")["daemon"]["paused"] == []


# --- handed over by the service manager --------------------------------------------------------

ACTIVATE = (
    "import os, sys\n"
    "handed = [int(one) for one in sys.argv[1].split(',')]\n"
    "copies = [os.dup(one) for one in handed]\n"
    "for number, one in enumerate(copies): os.dup2(one, 3 + number)\n"
    "for number in range(len(copies)): os.set_inheritable(3 + number, True)\n"
    "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(copies)))\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'preheatd', *sys.argv[2:]])\n"
)


def test_sockets_that_were_handed_over_are_served(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("s")
    token = place / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    table = f'[control]\nsocket = "{place}/unused"\ntoken_file = "{token}"\n'
    file = make_project(tmp_path / "project", extra=table, build="gate")
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:
        unix.bind(str(place / "c"))
        tcp.bind(("127.0.0.1", 0))
        unix.listen()
        tcp.listen()
        # A caller who came before the daemon is answered by it.
        early = connect(place / "c")
        early.sendall(b"GET /v1/plan HTTP/1.0\r\n\r\n")
        words = ["serve", "--json", "--config", str(file)]
        numbers = (unix.fileno(), tcp.fileno())
        command = [sys.executable, "-c", ACTIVATE, ",".join(map(str, numbers)), *words]
        daemon = Daemon.of(subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=numbers))
        try:
            with early, early.makefile("rb") as answer:
                assert b'"from":"daemon"' in answer.read()
            port = tcp.getsockname()[1]
            assert ask(port, "/v1/status").status == 401
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            answer_ = ask(port, "/v1/status", headers=bearer).json()
            assert answer_["daemon"]["control"] == str(place / "c")
            assert not (place / "unused").exists()
            assert preheat_json(file, "plan")[1]["from"] == "daemon"
            # A build has neither the sockets nor the word of them.
            pid = wait_for_text(file.parent / "running-encoder").split()[0]
            with open(f"/proc/{pid}/environ", "rb") as environ:  # noqa: PTH123
                assert b"LISTEN_" not in environ.read()
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH115, PTH208
            assert not [link for link in links if link.startswith("socket:")]
            # A new configuration is served at the same sockets.
            file.write_text(file.read_text().replace("unused", "unused2"))
            assert preheat(file, "reload").returncode == 0
            assert ask(port, "/v1/status", headers=bearer).status == 200
            signal_gate(file)
            assert preheat(file, "wait").returncode == 0
            assert daemon.end(SIGTERM) == 0
        finally:
            if daemon.process.poll() is None:
                daemon.end(SIGKILL)
        # The file is the service manager's: it is there for the next daemon.
        assert (place / "c").exists()
