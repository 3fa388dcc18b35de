"""Builds and proofs that are forked from a zygote, in a real daemon with real torch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from support.project import Project, until
from support.watched import watched

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="zygotes need Linux: pidfd and /proc"
)

FILES = {
    "app/__init__.py": "",
    "app/settings.py": "FACTOR = 2.0\n",
    "app/warm.py": """
        import preheat
        import torch

        from app import settings


        def program(x):
            return x.sin() * settings.FACTOR


        @preheat.target
        def scaled():
            return preheat.Spec(program, examples=[(torch.linspace(0, 1, 16),)], grad=False)
    """,
    "preheat.toml": """
        targets = ["app.warm:scaled"]
        watch = ["app"]
    """,
}
LOAD = """
    import torch, preheat, json
    from app.warm import program
    model = preheat.load("scaled", program, on_miss="error")
    x = torch.linspace(0, 1, 16)
    from app import settings
    print(json.dumps(bool(torch.allclose(model(x), x.sin() * settings.FACTOR))))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Project:
    made = Project(tmp_path_factory.mktemp("zygote"), FILES, caches)
    done = made.preheat("warm")
    assert done.code == 0, done
    return made


def loads(project: Project) -> bool:
    done = project.python(LOAD)
    assert done.code == 0, done
    return bool(done.json())


def test_an_edit_is_forked_and_then_confirmed(project: Project) -> None:
    assert not project.manifest("scaled").proof.forked  # type: ignore[union-attr]
    with watched(project) as daemon:
        project.edit("app/settings.py", "2.0", "2.25")
        daemon.wait("build_published")
        assert daemon.proof().forked
        assert "fresh processes" not in daemon.log()
        assert len(daemon.zygotes()) == 2
        assert loads(project)
        daemon.wait("proof_confirmed")
        assert not daemon.proof().forked
        assert {form.form for form in daemon.proof().forms} == {"lean", "dynamo"}
        zygotes = daemon.zygotes()
    assert loads(project)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in zygotes), "zygotes end")


def test_other_modules_ask_for_a_fresh_proof(project: Project) -> None:
    with watched(project) as daemon:
        project.write({"app/settings.py": "import wave\nFACTOR = 2.5 + 0 * len(wave.__name__)\n"})
        daemon.wait("build_published")
        assert "imported other modules than in a fresh process: wave" in daemon.log()
        assert not daemon.proof().forked
        project.write({"app/settings.py": "FACTOR = 2.75\n"})
        daemon.wait("build_published")
        assert not daemon.proof().forked  # the other way round
    assert loads(project)


def test_variables_that_are_set_ask_for_fresh_processes(project: Project) -> None:
    with watched(project) as daemon:
        text = 'import os\nos.environ["SOME_LIBRARY_SWITCH"] = "1"\nFACTOR = 3.0\n'
        project.write({"app/settings.py": text})
        daemon.wait("build_published")
        assert "it sets environment variables: SOME_LIBRARY_SWITCH" in daemon.log()
        assert not daemon.proof().forked
        project.write({"app/settings.py": "FACTOR = 3.25\n"})
        daemon.wait("build_published")
        assert daemon.proof().forked
    assert loads(project)


def test_a_module_named_like_a_library_asks_for_fresh_processes(project: Project) -> None:
    shadow = project.root / "cProfile.py"
    try:
        with watched(project) as daemon:
            project.write({shadow.name: "", "app/settings.py": "FACTOR = 3.5\n"})
            daemon.wait("build_published")
            assert "has a module named cProfile, as a library is" in daemon.log()
            assert not daemon.proof().forked
        assert loads(project)
    finally:
        shadow.unlink()


def test_a_zygote_that_is_killed_costs_time_alone(project: Project) -> None:
    hold = "import socket\nwith socket.socket(socket.AF_UNIX) as c:\n    c.connect_ex({!r}) or c.recv(1)\n"
    address = f"\0preheat-zygote-{os.getpid()}"
    with watched(project) as daemon, socket.socket(socket.AF_UNIX) as gate:
        gate.bind(address)
        gate.listen()
        gate.settimeout(400)
        # The socket is gone when the build is made once more.
        project.write({"app/settings.py": hold.format(address) + "FACTOR = 3.75\n"})
        connection, _ = gate.accept()
        gate.close()
        zygotes = daemon.zygotes()
        assert len(zygotes) == 3  # two and a child
        for pid in zygotes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        connection.close()
        daemon.wait("build_published")
        assert "once more in fresh processes" in daemon.log()
        assert not daemon.proof().forked
    assert loads(project)


def test_what_only_a_fork_can_do_is_withdrawn(project: Project) -> None:
    """A program that is another one in a forked process than in a fresh one."""
    text = """
        import sys

        FORKED = "zygote" in (getattr(sys.modules["__main__"], "__file__", "") or "")
        FACTOR = 4.25 if FORKED else 4.5
    """
    with watched(project) as daemon:
        project.write({"app/settings.py": text})
        daemon.wait("build_published")
        assert daemon.proof().forked
        withdrawn = daemon.wait("package_withdrawn")
        assert "form" in withdrawn["detail"]
        daemon.wait("build_published")
        assert not daemon.proof().forked
        status = project.preheat("status", "--history", "5")
        assert "package withdrawn" in status.out
    assert loads(project)


def test_it_can_be_switched_off(project: Project) -> None:
    project.edit("preheat.toml", "targets =", "zygote = false\ntargets =")
    with watched(project) as daemon:
        project.write({"app/settings.py": "FACTOR = 5.0\n"})
        daemon.wait("build_published")
        assert daemon.zygotes() == []
        assert not daemon.proof().forked
    project.edit("preheat.toml", "zygote = false", "zygote = true")


def test_warm_proves_once_more(project: Project) -> None:
    with watched(project) as daemon:
        project.write({"app/settings.py": "FACTOR = 5.25\n"})
        daemon.wait("build_published")
        assert daemon.proof().forked
    plan = project.preheat("plan", "--json").json()["targets"][0]
    assert (plan["verdict"], plan["action"]) == ("FRESH", "confirm")
    warmed = project.preheat("warm", "--json").json()["targets"][0]
    assert (warmed["verdict"], warmed["result"]) == ("FRESH", "confirmed")
    assert not project.manifest("scaled").proof.forked  # type: ignore[union-attr]
