"""The status page as a file: it needs nothing from elsewhere and takes nothing for markup."""

from __future__ import annotations

import base64
import hashlib
import re

from preheatd import events
from preheatd.control.page import HEADERS, PAGE
from preheatd.control.routes import ADDRESSES

TEXT = PAGE.decode()
SCRIPT = TEXT.partition("<script>")[2].partition("</script>")[0]


def test_it_names_no_place_but_the_daemon() -> None:
    assert re.findall(r"https?:|//[a-z]|@import|url\(|\bsrc=|\bhref=|<link|<iframe", TEXT) == []
    asked = set(re.findall(r'"(v1/[a-z]+)', SCRIPT))
    assert asked == {"v1/status", "v1/history", "v1/events"}
    assert {f"/{one}" for one in asked} <= {one.path for one in ADDRESSES if one.method == "GET"}


def test_it_only_asks_and_never_tells() -> None:
    assert "POST" not in SCRIPT
    assert "method" not in SCRIPT


def test_everything_becomes_text() -> None:
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "on" + "click=",
    ):
        assert word not in TEXT, word


def test_its_policy_allows_its_own_script_and_style_alone() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert policy["style-src"].startswith("'sha256-")
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    # A style on an element would be blocked.
    assert 'style="' not in TEXT


def test_it_knows_which_events_are_problems() -> None:
    found = SCRIPT.partition("const PROBLEMS")[2].partition("]")[0]
    assert set(re.findall(r'"(\w+)"', found)) == {
        action
        for action in vars(events).values()
        if isinstance(action, str) and events.Event(action=action).is_problem
    }
