"""The status page in a real browser, against a real daemon: what a person sees."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from signal import SIGKILL
from typing import TYPE_CHECKING

import pytest
from test_control import TOKEN, port_of
from test_control import Running as Asked
from test_daemon_double import make_project
from test_daemon_service import Daemon

from preheatd import events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")

HOSTILE = "<img src=x onerror=\"document.title='TAKEN'\"><script>document.title='TAKEN'</script>"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    place = tmp_path_factory.mktemp("p")
    (place / "token").touch(0o600)
    (place / "token").write_text(TOKEN)
    table = f'[control]\nsocket = "{place}/c"\ntcp = "127.0.0.1:0"\ntoken_file = "{place}/token"\n'
    build = {"encoder": "refuse", "decoder": "ok", "ranker": "fail", "tower": "hang"}
    file = make_project(
        place / "project", tuple(build), extra=f"jobs = 2\n{table}", build=build, message=HOSTILE
    )
    daemon = Daemon(file)
    daemon.next(events.READY)
    asked = Asked(daemon, file, place / "c")
    asked.ask("/v1/wait?targets=decoder")
    # Each target is in the state that it stays in: the failed one has no attempt that begins just now.
    while asked.verdicts()["ranker"] != "FAILED" or asked.verdicts()["tower"] != "BUILDING":
        asked.ask("/v1/plan")
    asked.ask("/v1/pause", {"detail": HOSTILE})
    yield asked
    daemon.end(SIGKILL)


def browse(address: str, profile: Path, *options: str) -> str:
    """What the page has become, as markup."""
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=4000",
        *options,
        "--dump-dom",
        address,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


def text_of(part: str) -> str:
    """What is shown, without markup."""
    return html.unescape(re.sub(r"<[^>]*>", " ", part))


def test_what_a_person_sees(running: Asked, tmp_path: Path) -> None:
    # Asking instead of following: a stream never ends, and the browser waits for that.
    shown = browse(f"http://127.0.0.1:{port_of(running)}/?poll&token={TOKEN}", tmp_path)
    rows = {
        found[1]: found[0]
        for found in re.finditer(r'<tr><td class="name">([\w]+)<small>.*?</tr>', shown, re.DOTALL)
    }
    assert set(rows) == {"encoder", "decoder", "ranker", "tower"}
    assert 'data-verdict="FRESH"' in rows["decoder"]
    assert 'data-verdict="BUILDING"' in rows["tower"]
    assert 'data-verdict="FAILED"' in rows["encoder"]
    assert "Cannot be packaged." in text_of(rows["encoder"])
    # The one that raised what looks like markup, with its remedy and its log.
    assert 'data-verdict="FAILED"' in rows["ranker"]
    assert HOSTILE in text_of(rows["ranker"])
    assert "Correct the factory." in text_of(rows["ranker"])
    assert "Traceback: the factory raised" in text_of(rows["ranker"])
    words = text_of(shown)
    assert re.search(r"Paused\s+asked: " + re.escape(HOSTILE), words)
    assert re.search(r"\d+ objects", words)
    assert "build published" in words
    assert "kernels" in words
    # Nothing of it has become markup.
    assert "<img" not in shown
    assert "<title>TAKEN" not in shown
    assert re.search(r"<title>2 failed", shown)


def test_without_the_token_nothing_is_seen(running: Asked, tmp_path: Path) -> None:
    shown = browse(f"http://127.0.0.1:{port_of(running)}/", tmp_path)
    assert "The token is missing or wrong." in shown
    assert "decoder" not in shown


@pytest.mark.parametrize("size", ["1200,900", "390,900"])
def test_it_is_drawn(running: Asked, tmp_path: Path, size: str) -> None:
    """What it looks like is for people to judge."""
    picture = tmp_path / "page.png"
    address = f"http://127.0.0.1:{port_of(running)}/?poll&token={TOKEN}"
    browse(address, tmp_path / "profile", f"--window-size={size}", f"--screenshot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
