"""A person follows docs/dev.md, service.md, control.md and jobs.md word for word, as far as can be here.

Every line of a console block is either run here or named with the reason why not; a line that is neither
fails the test, so that the pages and what is tried stay the same.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_daemon_double import make_project
from test_daemon_service import Daemon

from preheatd import events
from support.project import LIMIT_SECONDS, Project, until
from support.walkthrough import ALREADY, MACHINES, alike, steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.walkthrough import Walkthrough

ROOT = Path(__file__).parents[2]
MODEL = {
    "app/__init__.py": "",
    "app/model.py": """
        import torch


        class Classifier(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(64, 10)

            def forward(self, x):
                return self.layer(x).relu()
    """,
}
# What the pages ask for and a test cannot do, by the beginning of the line. `make test-machine` does, in a
# container with a systemd of its own.
NOT_HERE = {
    "pip install": "it is installed already, from the working tree",
    "python3 -m venv": "as above",
    "/opt/preheat/bin/pip install": "as above",
    "systemd-sysusers": "it makes accounts; test_systemd_units.py looks at the file",
    "sysctl -p": "it changes the kernel's settings",
    "ln -s": "it is installed already",
    "systemctl": "no service manager runs here; test_systemd_units.py has the units verified",
    "usermod": "it changes accounts",
    "xdg-open": "test_status_page.py opens the page",
}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """The lines of console blocks that begin with a prompt."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [line[2:] for line in lines if line.startswith(("$ ", "# "))]


def reason_not_to_run(command: str) -> str | None:
    return next((why for start, why in NOT_HERE.items() if command.startswith(start)), None)


def files_of(page: str) -> dict[str, str]:
    """Python blocks whose first line says which file they are."""
    found = (re.match(r"# (\S+\.py)\n", block) for block in blocks(page, "python"))
    return {match[1]: match.string for match in found if match}


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE", "STATE", "SOCKET"):
        monkeypatch.delenv(f"PREHEAT_{name}", raising=False)
    for name in ("STATE", "CACHE", "RUNTIME"):
        monkeypatch.delenv(f"{name}_DIRECTORY", raising=False)


def test_the_dev_page(tmp_path: Path, caches: Path) -> None:
    written = files_of("dev.md")
    project = Project(
        tmp_path / "project", {**MODEL, "app/warm.py": written["app/warm.py"]}, caches
    )
    for command in commands("dev.md"):
        if reason_not_to_run(command):
            continue
        words = command.split()
        assert words[0] == "preheat", command
        if words[1] == "watch":
            watch_until_published(project)
            continue
        done = project.preheat(*words[1:])
        # What the machine lacks is a finding, and not a fault of the page.
        assert done.code in ((0, 3) if words[1] == "doctor" else (0,)), done
    project.write({"serve.py": written["serve.py"]})
    ran = project.run(sys.executable, "serve.py")
    assert (ran.code, ran.out) == (0, "torch.Size([32, 10]) lean ()\n"), ran
    inline = re.findall(r"`(preheat [^`]+)`", (ROOT / "docs" / "dev.md").read_text())
    looked = [one for one in inline if one.startswith(("preheat explain", "preheat status"))]
    assert len(looked) >= 2
    for command in looked:
        done = project.preheat(*command.split()[1:])
        assert done.code == 0, done
        assert done.out.strip(), command


def watch_until_published(project: Project) -> None:
    log = project.root / "watch.log"
    with log.open("wb") as out:
        watching = subprocess.Popen(
            [sys.executable, "-m", "preheatd", "watch"],
            cwd=project.root,
            env=project.environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "published" in log.read_text() or watching.poll() is not None, "published")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT_SECONDS) == 0, log.read_text()
    finally:
        watching.kill()
        watching.wait()


@pytest.fixture
def service(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A daemon as docs/service.md configures it; what stands on the pages for what is here."""
    place = tmp_path_factory.mktemp("s") / "shop.sock"
    token = tmp_path / "token"
    token.write_text("a-long-random-word\n")
    token.chmod(0o600)
    extra = f'[control]\nsocket = "{place}"\ntoken_file = "{token}"\n'
    file = make_project(tmp_path / "srv", ("classifier",), extra=extra)
    daemon = Daemon(file)
    try:
        daemon.next(events.READY)
        daemon.next(events.BUILD_PUBLISHED)
        yield {"/run/preheat/shop.sock": str(place), "/etc/preheat/shop.toml": str(file)}
    finally:
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.communicate(timeout=LIMIT_SECONDS)


def here(command: str, replaced: dict[str, str]) -> str:
    for old, new in replaced.items():
        command = command.replace(old, new)
    return re.sub(r"(^|\s|\()preheat ", rf"\1{sys.executable} -m preheatd ", command)


def shell(script: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euc", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **more},
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl, which is not here")
def test_the_service_page(service: dict[str, str], tmp_path: Path) -> None:
    exports = []
    for command in commands("service.md"):
        if reason_not_to_run(command):
            continue
        if command.startswith("make install-systemd"):
            done = shell(f"cd {ROOT} && {command} DESTDIR={tmp_path}/root")
            assert done.returncode == 0, done
        elif command.startswith("export"):
            known = command.replace("$(id -u preheat)", str(os.getuid()))
            exports.append(here(known, service))
        else:
            socket = next(line for line in exports if "PREHEAT_SOCKET" in line)
            done = shell(f"{socket}\n{here(command, service)}")
            assert done.returncode == 0, done
            assert "classifier" in done.stdout, command
    assert len(exports) == 2
    text = (ROOT / "docs" / "service.md").read_text()
    for path in re.findall(r"^\| `(/usr/local/[^`]+)`", text, re.MULTILINE):
        assert list((tmp_path / "root").glob(path.removeprefix("/"))), path


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl, which is not here")
def test_the_control_page(service: dict[str, str], tmp_path: Path) -> None:
    ran = 0
    for command in commands("control.md"):
        if reason_not_to_run(command) or not command.startswith("curl"):
            continue
        options = (
            f"--silent --show-error --unix-socket {service['/run/preheat/shop.sock']} --max-time 30"
        )
        if command.startswith("curl --silent --unix-socket"):
            command = here(command, service)
        elif "--no-buffer" in command:
            # It never ends by itself: something has to happen, and that is seen.
            command = command.replace("curl", f"curl --max-time 5 {options}", 1)
            command = f"({command}; true) & sleep 1; {order(options)}; wait"
        else:
            command = command.replace("curl", f"curl --fail {options}", 1)
        done = shell(command)
        assert done.returncode == 0, done
        assert done.stdout, command
        if not command.startswith("(") and "/metrics" not in command:
            json.loads(done.stdout)
        ran += 1
    assert ran >= 10


def order(options: str) -> str:
    return f"curl {options} --output /dev/null --request POST http://preheat/v1/resume"


def test_the_jobs_page(walkthrough: Walkthrough) -> None:
    """Its beginning, on two machines: every line succeeds and shows what the page shows."""
    assert len(walkthrough.taken) >= 15
    for taken in walkthrough.taken:
        assert taken.code == 0, taken
        assert alike(taken.step.shown, taken.seen), taken
    shown = [line for taken in walkthrough.taken for line in taken.seen]
    assert "0 frames compiled; compiler imported: False" in shown
    assert {taken.step.machine for taken in walkthrough.taken} == set(MACHINES)


@pytest.mark.parametrize(
    ("shown", "seen", "same"),
    [
        (("a 1.5 s",), ("a  23 s",), True),
        (("[...]", "end"), ("more", "and more", "end"), True),
        (("[...]", "end"), ("end", "more"), False),
        (("hit   classifier",), ("miss  classifier",), False),
        (("x  6f4246a1261b142ad12728e4f36c8409",), ("x  0f4246a1261b142ad12728e4f36c8408",), True),
        ((), ("something",), False),
    ],
)
def test_what_counts_as_what_the_page_shows(
    shown: tuple[str, ...], seen: tuple[str, ...], same: bool
) -> None:
    assert alike(shown, seen) is same


def test_no_line_of_the_walk_is_left_out() -> None:
    """A prompt that names no machine would not be followed."""
    text = (ROOT / "docs" / "jobs.md").read_text()
    walk = text[text.index("## From nothing") : text.index("## Recipes")]
    lines = "".join(
        re.findall(r"^```console\n(.*?)^```", walk, re.MULTILINE | re.DOTALL)
    ).splitlines()
    followed = [step.command for step in steps(walk)]
    assert [line for line in lines if line.startswith(("$ ", "# "))] == []
    assert len(followed) == len([line for line in lines if re.match(r"\w+\$ ", line)])
    assert all(step.machine in MACHINES for step in steps(walk))
    begins = [start for start in ALREADY if not any(one.startswith(start) for one in followed)]
    assert begins == []
