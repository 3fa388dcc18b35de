"""Who may ask over a port: the token, the cookie, Host and Origin; and what a token file must be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from preheatd.control.guard import Guard, read_token
from preheatd.control.refusals import ForbiddenError, ListenError

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "correct-horse-battery"  # noqa: S105
GUARD = Guard(TOKEN, 9111)
HOSTS = {"Host": "127.0.0.1:9111"}


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9111", "localhost:9111", "LOCALHOST:9111", "[::1]:9111"]
)
def test_the_host_is_this_machine_with_this_port(host: str) -> None:
    GUARD.check_host({"Host": host})
    GUARD.check_host({"Host": host, "Origin": f"http://{host}"})


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:9111",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.0.0.1:9111.evil.example",
    ],
)
def test_another_host_is_a_page_that_made_its_name_lead_here(host: str) -> None:
    with pytest.raises(ForbiddenError) as caught:
        GUARD.check_host({"Host": host})
    assert caught.value.status == 421


def test_the_usual_port_may_be_left_out() -> None:
    Guard(TOKEN, 80).check_host({"Host": "127.0.0.1"})


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "https://127.0.0.1:9111"])
def test_a_page_of_another_site_may_not_ask(origin: str) -> None:
    with pytest.raises(ForbiddenError) as caught:
        GUARD.check_host({**HOSTS, "Origin": origin})
    assert caught.value.status == 403


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_token_opens_everything(method: str) -> None:
    for scheme in ("Bearer", "bearer"):
        GUARD.check_caller(method, {"Authorization": f"{scheme} {TOKEN}"}, {})


@pytest.mark.parametrize(
    "given",
    [
        "",
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer",
        "Bearer x",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer \udcff",
    ],
)
def test_anything_else_opens_nothing(given: str) -> None:
    with pytest.raises(ForbiddenError) as caught:
        GUARD.check_caller("GET", {"Authorization": given}, {})
    assert caught.value.status == 401


def test_the_cookie_is_good_for_reading_alone() -> None:
    cookies = {GUARD.cookie_name: GUARD.cookie}
    GUARD.check_caller("GET", {}, cookies)
    with pytest.raises(ForbiddenError):
        GUARD.check_caller("POST", {}, cookies)


def test_the_cookie_is_of_one_daemon_and_tells_nobody_the_token() -> None:
    other = Guard(TOKEN, 9111)
    assert TOKEN not in GUARD.cookie
    assert not GUARD.is_token(GUARD.cookie)
    with pytest.raises(ForbiddenError):
        other.check_caller("GET", {}, {GUARD.cookie_name: GUARD.cookie})
    with pytest.raises(ForbiddenError):
        GUARD.check_caller("GET", {}, {GUARD.cookie_name: ""})
    assert Guard(TOKEN, 9112).cookie_name != GUARD.cookie_name


def test_a_token_is_one_word_of_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}\n")
    for mode in (0o600, 0o400, 0o440):
        file.chmod(mode)
        assert read_token(file) == TOKEN


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o606, 0o601])
def test_a_file_that_others_can_use_is_no_secret(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(mode)
    with pytest.raises(ListenError, match=f"{mode:04o}") as caught:
        read_token(file)
    assert caught.value.remedy.startswith("chmod 0600")


@pytest.mark.parametrize(
    "text", ["", "short", "x" * 5000, "two words of many letters", "é" * 20, "\0" * 20]
)
def test_what_is_no_token(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ListenError, match="one word"):
        read_token(file)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="No such file"):
        read_token(tmp_path / "nothing")
    with pytest.raises(ListenError, match="no regular file"):
        read_token(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ListenError, match="no regular file"):
        read_token(tmp_path / "pipe")


def test_a_file_of_another_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    if file.stat().st_uid == 0:
        try:
            os.chown(file, 12345, -1)
        except OSError:
            pytest.skip("this account may not give files away")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(ListenError, match="another account"):
        read_token(file)
