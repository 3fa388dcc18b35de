"""Inside of the container, as root: docs/service.md word for word, and what it promises.

Every console line of the page runs, `#` as root and `$` as alice, in the order of the page; what a person
would do between them is in BEFORE, and what the page promises is looked at in AFTER. A line that fails, a
promise that does not hold and a hook for a line that is not on the page any more are failures.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

CHECKOUT = Path("/checkout")
PAGE = (CHECKOUT / "docs/service.md").read_text()
BOOTED_AGAIN = Path("/root/booted-again")
SHOP = Path("/srv/shop")
UNIT = "preheatd@shop"
SOCKET = "/run/preheat/shop.sock"
LIMIT_SECONDS = 600
WORKER = """
import sys

import preheat
import torch

from app.model import Classifier

plain = Classifier().eval()
x = torch.ones(8, 64)
with torch.no_grad():
    expected = plain(x)
loaded = preheat.load("classifier", Classifier().eval())
print(loaded.preheat.form, torch.allclose(loaded(x), expected), "torch._dynamo" in sys.modules)
if loaded.preheat.reasons:
    print(loaded.preheat)
"""
PROJECT = {
    "app/__init__.py": "",
    "app/model.py": """
import torch


def twist(x):
    return torch.relu(x) * 2.0


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x):
        return twist(self.layer(x))
""",
    "app/warm.py": """
import preheat
import torch

from app.model import Classifier


@preheat.target
def classifier():
    return preheat.Spec(Classifier().eval(), examples=[(torch.ones(8, 64),)], grad=False)
""",
}
NOT_IN_A_CONTAINER = {"sysctl": "a container may not change the kernel's settings"}
passed: list[str] = []
failed: list[str] = []
exports: list[str] = []


def say(text: str) -> None:
    print(text.rstrip(), flush=True)  # noqa: T201


def sh(command: str, *, user: str = "root", limit: int = LIMIT_SECONDS) -> tuple[int, str]:
    """Run a command in a login shell, with what alice exported so far."""
    if user == "root":
        words = ["bash", "-c", command]
    else:
        words = ["runuser", "-l", user, "-c", "; ".join([*exports, command])]
    done = subprocess.run(
        words, cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit
    )
    return done.returncode, done.stdout + done.stderr


def check(what: str, right: bool, seen: object = "") -> None:
    (passed if right else failed).append(what)
    say(f"{'ok' if right else 'NOT OK'}: {what}" + ("" if right else f"\n   seen: {seen}"))


def until(what: str, command: str, pattern: str, *, limit: int = LIMIT_SECONDS) -> str:
    """Wait until a command's output matches."""
    end = time.monotonic() + limit
    seen = ""
    while time.monotonic() < end:
        seen = sh(command)[1]
        if re.search(pattern, seen):
            check(what, True)
            return seen
        time.sleep(1)
    check(what, False, seen[-3000:])
    return seen


def show(property_: str, unit: str = UNIT) -> str:
    return sh(f"systemctl show -P {property_} {unit}")[1].strip()


ANOTHER = f"systemctl show -P MainPID {UNIT}; systemctl is-active {UNIT}"


def another_than(pid: str) -> str:
    """The pattern of ``ANOTHER`` when another process than ``pid`` is the daemon."""
    return rf"^(?!0\n|{pid}\n)\d+\nactive"


def status(verdict: str = "FRESH") -> str:
    return (
        "PREHEAT_STATE=/var/lib/preheat/shop PREHEAT_STORE=/var/cache/preheat/shop "
        f"/opt/preheat/bin/preheat status --config /etc/preheat/shop.toml --json | grep -c {verdict}"
    )


def page_block(language: str, containing: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if containing in block)


# what a person does before a line


def write_project() -> None:
    for name, text in PROJECT.items():
        (SHOP / name).parent.mkdir(parents=True, exist_ok=True)
        (SHOP / name).write_text(text.lstrip("\n"))
    code, out = sh("/srv/shop/venv/bin/pip install -q preheat")
    check("the project's interpreter has preheat", code == 0, out)
    (Path("/etc/preheat") / "shop.toml").write_text(page_block("toml", "app.warm:classifier"))


# what the page promises after a line


def installed() -> None:
    listed = re.findall(r"^\| `(/usr/local/[^`*]+)` \|", PAGE, re.MULTILINE)
    check("the table of files names them", len(listed) >= 6, listed)
    for name in listed:
        check(f"{name} is installed", Path(name).is_file())
    units = "/usr/local/lib/systemd/system/preheatd@.service"
    code, out = sh(f"systemd-analyze verify {units}")
    check("systemd-analyze verify is clean", (code, out.strip()) == (0, ""), out)


def started() -> None:
    check(
        "the daemon is ready when systemctl returns",
        show("ActiveState") == "active",
        show("StatusText"),
    )
    until("STATUS says what is building", "systemctl show -P StatusText " + UNIT, r"building|fresh")
    until("the target becomes fresh", status(), r"^1")
    check(
        "the daemon runs as preheat",
        sh(f"ps -o user= -p {show('MainPID')}")[1].strip() == "preheat",
    )
    check(
        "packages go to /var/cache/preheat/shop", Path("/var/cache/preheat/shop/FORMAT").is_file()
    )
    mode = Path("/var/lib/preheat/shop").stat().st_mode & 0o777
    check("the state is private", mode == 0o700, oct(mode))
    score = sh("systemd-analyze security --no-pager preheatd@shop | tail -1")[1]
    say(score)
    say(sh(f"systemctl status --no-pager -l {UNIT}")[1])


def worker_of_another_account() -> None:
    exports.append("export PYTHONPATH=/srv/shop")
    (Path("/home/alice") / "worker.py").write_text(WORKER)
    code, out = sh("cd /tmp && /srv/shop/venv/bin/python ~/worker.py", user="alice")
    check(
        "alice's worker loads the lean form without a compiler",
        out.split()[:3] == ["lean", "True", "False"],
        out,
    )
    sh("true")
    code, out = sh(
        "PREHEAT_STATE=/var/lib/preheat/shop PREHEAT_STORE=/var/cache/preheat/shop "
        "/opt/preheat/bin/preheat status --config /etc/preheat/shop.toml"
    )
    say(out)
    check("preheat status sees the daemon", code == 0 and "fresh" in out.lower(), out)


def an_edit() -> None:
    text = (SHOP / "app/model.py").read_text()
    before = sh("ls /var/cache/preheat/shop/v1/refs/*/* | xargs cat")[1]
    (SHOP / "app/model.py").write_text(text.replace("* 2.0", "* 3.0"))
    until("an edit is rebuilt in the sandbox", "ls /var/cache/preheat/shop/v1/refs/*/* | xargs cat",
          r'"generation":\s*2')  # fmt: skip
    check(
        "the package is another one",
        sh("ls /var/cache/preheat/shop/v1/refs/*/* | xargs cat")[1] != before,
    )
    _, out = sh("cd /tmp && /srv/shop/venv/bin/python ~/worker.py", user="alice")
    check(
        "alice's next worker has the new numbers",
        out.split()[:3] == ["lean", "True", "False"],
        out,
    )


def reloading() -> None:
    file = Path("/etc/preheat/shop.toml")
    good = file.read_text()
    code, out = sh(f"systemctl reload {UNIT}")
    check("systemctl reload returns 0", code == 0, out)
    file.write_text("nonsense = 1\n" + good)
    code, out = sh(f"systemctl reload {UNIT}")
    check("a wrong configuration fails the reload", code != 0, out)
    until(
        "STATUS says that it is refused",
        f"systemctl show -P StatusText {UNIT}",
        r"(?i)configuration",
    )
    journal = sh(f"journalctl -u {UNIT} --no-pager -n 40")[1]
    check("the reason is in the log", "nonsense" in journal, journal[-3000:])
    check("the daemon is still active", show("ActiveState") == "active")
    file.write_text(good)
    check("the mended one is taken", sh(f"systemctl reload {UNIT}")[0] == 0)


def dying() -> None:
    pid = show("MainPID")
    sh(f"kill -9 {pid}")
    until("a daemon that dies is started again", ANOTHER, another_than(pid))
    code, out = sh(
        "runuser -u preheat -- env PREHEAT_STATE=/var/lib/preheat/shop PREHEAT_STORE=/var/cache/preheat/shop "
        "timeout 60 /opt/preheat/bin/preheat serve --config /etc/preheat/shop.toml --second refuse"
    )
    check("a second daemon refuses", code not in (0, 124), (code, out))
    say(out)


def watchdog() -> None:
    check("WatchdogSec is in force", show("WatchdogUSec") == "2min", show("WatchdogUSec"))
    pid = show("MainPID")
    dropin = Path(f"/etc/systemd/system/{UNIT}.service.d")
    dropin.mkdir(parents=True, exist_ok=True)
    (dropin / "watchdog.conf").write_text("[Service]\nWatchdogSec=8\n")
    sh(f"systemctl daemon-reload; systemctl restart {UNIT}")
    pid = show("MainPID")
    sh(f"kill -STOP {pid}")
    until("a daemon that hangs is ended and started again", ANOTHER, another_than(pid))
    (dropin / "watchdog.conf").unlink()
    sh(f"systemctl daemon-reload; systemctl restart {UNIT}")


def drop_ins() -> None:
    place = Path(f"/etc/systemd/system/{UNIT}.service.d")
    place.mkdir(parents=True, exist_ok=True)
    version = int(re.search(r"\d+", sh("systemctl --version")[1]).group())  # type: ignore[union-attr]
    for name in re.findall(r"^\| `([a-z-]+\.conf)` \|", PAGE, re.MULTILINE):
        if name == "notify-reload.conf" and version < 253:
            say(f"not tried: {name} is for systemd 253 and newer, here is {version}")
            continue
        if name == "signing.conf":
            code, out = sh(
                "/opt/preheat/bin/pip install -q 'preheat[sign]' && "
                "preheat keys new /etc/preheat/shop.signing_key"
            )
            check("a signing key is made", code == 0, out)
        shutil.copy(f"/usr/local/share/preheat/systemd/{name}", place / name)
        code, out = sh(f"systemctl daemon-reload && systemctl restart {UNIT}")
        check(
            f"the daemon starts with {name}",
            code == 0,
            out + sh(f"journalctl -u {UNIT} -n 30 --no-pager")[1],
        )
        text = (SHOP / "app/model.py").read_text()
        number = float(re.search(r"\* (\d+\.\d)", text).group(1))  # type: ignore[union-attr]
        (SHOP / "app/model.py").write_text(text.replace(f"* {number}", f"* {number + 1}"))
        time.sleep(2)
        until(f"it builds with {name}", status(), r"^1")
        code, out = sh("cd /tmp && /srv/shop/venv/bin/python ~/worker.py", user="alice")
        check("and a worker loads that", out.split()[:3] == ["lean", "True", "False"], out)
        if name != "cpu-only.conf":
            (place / name).unlink()
    sh(f"systemctl daemon-reload; systemctl restart {UNIT}")


def stopped_often() -> None:
    history = Path("/var/lib/preheat/shop/history.jsonl").read_text()
    for action in ("package_withdrawn", "build_failed"):
        found = [line for line in history.splitlines() if action in line]
        check(f"being stopped and started often, no {action}", not found, found)


def warm_once() -> None:
    code, out = sh("systemctl start preheat-warm@shop", limit=LIMIT_SECONDS)
    check("preheat-warm@shop succeeds beside the daemon", code == 0,
          out + sh("journalctl -u preheat-warm@shop -n 30 --no-pager")[1])  # fmt: skip
    until("everything is fresh", status(), r"^1")
    code, out = sh("systemctl enable preheat-warm@shop")
    check("preheat-warm@shop can be enabled", code == 0, out)


def control_socket() -> None:
    stat = sh(f"stat -c '%a %U %G' {SOCKET}")[1].split()
    check("the socket is 0660, preheat:preheat", stat == ["660", "preheat", "preheat"], stat)
    code, out = sh(
        f"curl -sS --unix-socket {SOCKET} http://preheat/v1/status", user="nobody -s /bin/bash"
    )
    check("an account outside of the group is refused", code != 0, out)
    sh(f"systemctl stop {UNIT}.service")
    code, out = sh(f"curl -sS --max-time 120 --unix-socket {SOCKET} http://preheat/v1/status")
    check("the first caller starts the daemon", code == 0 and '"from":"daemon"' in out, out)


def tcp_port() -> None:
    place = Path(f"/etc/systemd/system/{UNIT}.socket.d")
    place.mkdir(parents=True, exist_ok=True)
    (place / "override.conf").write_text(page_block("ini", "ListenStream=127.0.0.1"))
    token = Path("/etc/preheat/shop.token")
    token.write_text("a-long-random-word\n")
    token.chmod(0o600)
    sh("chown preheat:preheat /etc/preheat/shop.token")
    with Path("/etc/preheat/shop.toml").open("a") as file:
        file.write("\n" + page_block("toml", "token_file"))
    again = f"stop {UNIT}.service", f"restart {UNIT}.socket", f"start {UNIT}.service"
    code, out = sh("; ".join(f"systemctl {one}" for one in ("daemon-reload", *again)))
    check(
        "the daemon starts with a port",
        code == 0,
        out + sh(f"journalctl -u {UNIT} -n 30 --no-pager")[1],
    )
    ask = "curl -sS -o /dev/null -w '%{http_code}' http://127.0.0.1:9111/metrics"
    check("without the token the port answers 401", sh(ask)[1] == "401", sh(ask)[1])
    answer = sh(f"{ask} -H 'Authorization: Bearer a-long-random-word'")[1]
    check("with the token it answers", answer == "200", answer)


def stopping() -> None:
    code, out = sh(f"systemctl stop {UNIT}.service {UNIT}.socket")
    check("systemctl stop returns 0", code == 0, out)
    check("the unit did not fail", show("Result") == "success", show("Result"))
    check(
        "nothing of it runs any more",
        not sh("pgrep -u preheat -a")[1],
        sh("pgrep -u preheat -a")[1],
    )
    sh(f"systemctl start {UNIT}.socket {UNIT}.service")


def user_unit() -> None:
    uid = sh("id -u alice")[1].strip()
    sh("loginctl enable-linger alice")
    time.sleep(3)
    home = Path("/home/alice/.config/preheat")
    home.mkdir(parents=True)
    (home / "preheat.toml").write_text(page_block("toml", "app.warm:classifier"))
    sh("chown -R alice /home/alice/.config")
    user = f"XDG_RUNTIME_DIR=/run/user/{uid} systemctl --user"
    code, out = sh(f"{user} enable --now preheatd", user="alice")
    check("the user unit starts", code == 0, out + sh(f"journalctl _UID={uid} -n 30 --no-pager")[1])
    seen = f"runuser -l alice -c '{user} show -P StatusText preheatd'"
    until("alice's own daemon makes it fresh", seen, r"1 fresh")


BEFORE = {"systemctl enable --now preheatd@shop.socket": (write_project,)}
AFTER = {
    "systemctl daemon-reload": (installed,),
    "systemctl status preheatd@shop": (started,),
    "export PREHEAT_STORE=": (
        worker_of_another_account,
        an_edit,
        reloading,
        dying,
        watchdog,
        drop_ins,
        stopped_often,
        warm_once,
    ),
    "curl --unix-socket": (control_socket, tcp_port, stopping, user_unit),
}


def of(line: str, hooks: dict[str, tuple]) -> list:  # type: ignore[type-arg]
    return [hook for start, all_ in hooks.items() if line.startswith(start) for hook in all_]


def attempt(hook) -> None:  # type: ignore[no-untyped-def]
    try:
        hook()
    except Exception:
        check(hook.__name__, False, traceback.format_exc())


def follow_the_page() -> None:
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line[:2] in ("# ", "$ ")]
    for start in (*BEFORE, *AFTER):
        check(f"the page still has {start!r}", any(line[2:].startswith(start) for line in lines))
    for line in lines:
        command = line[2:]
        for hook in of(command, BEFORE):
            attempt(hook)
        say(line)
        if line.startswith("$ export"):
            exports.append(command)
        elif (why := NOT_IN_A_CONTAINER.get(command.split()[0])) is not None:
            say(f"not tried: {why}")
        else:
            code, out = sh(
                command, user="root" if line.startswith("#") else "alice", limit=LIMIT_SECONDS
            )
            say(out[-4000:])
            check(f"{command!r} returns 0", code == 0, code)
        for hook in of(command, AFTER):
            attempt(hook)


def after_the_reboot() -> None:
    until("the daemon is there after a reboot", f"systemctl is-active {UNIT}", "^active")
    until("packages are fresh after a reboot", status(), r"^1")
    until(
        "preheat-warm@shop ran at boot",
        "systemctl show -P Result,ActiveState preheat-warm@shop",
        "success",
    )
    check("no unit of preheat failed", "preheat" not in sh("systemctl --failed --no-legend")[1])


def main() -> None:
    results = Path("/root/results.json")
    if BOOTED_AGAIN.exists():
        counted = json.loads(results.read_text())
        passed.extend(counted[0])
        failed.extend(counted[1])
        attempt(after_the_reboot)
        for what in failed:
            say(f"failed: {what}")
        say(f"FOLLOWED docs/service.md: {len(passed)} passed, {len(failed)} failed")
        subprocess.run(["systemctl", "poweroff"], check=False)
        return
    say(sh("systemctl --version | head -1; uname -r; python3 --version")[1])
    attempt(follow_the_page)
    results.write_text(json.dumps([passed, failed]))
    BOOTED_AGAIN.touch()
    subprocess.run(["systemctl", "reboot"], check=False)


if __name__ == "__main__":
    sys.exit(main())
