"""A double of a target's interpreter: a script that answers like preheat's own processes do.

It imports no torch and builds nothing; what it does is written in ``double.json`` in its working
directory, read anew by each process: ``{"build": ACTION, "proof": ACTION, "environment": WORD}``. An
action is one of the functions of ``Actions``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from preheat.formats import FORMATS
from preheat.job import (
    BuiltEvent,
    FailedEvent,
    Job,
    PhaseEvent,
    ProvenEvent,
    encode_event,
    read_job,
)
from preheat.lifeline import live_with_parent
from preheat.manifest import (
    BuildRecord,
    Environment,
    Form,
    FormProof,
    Manifest,
    ModuleSource,
    ObjectRef,
    Proof,
    Settings,
    Sources,
    SpecRecord,
    environment_digest,
    sha256,
)
from preheat.sources.digest import module_digest
from preheat.store import DiskStore

CONTROL_NAME = "double.json"


def environment(word: str = "one") -> Environment:
    """An environment that differs from others by one word."""
    return Environment(
        python="3",
        abi="abi",
        platform="linux",
        torch=word,
        torch_git="",
        triton=None,
        cuda=None,
        driver=None,
        device="cpu",
        gpus=(),
        cpu_isa="",
        cpu_count=1,
        variables={},
    )


def manifest(
    target: str,
    factory: str,
    *,
    sources: Sources | None = None,
    objects: tuple[ObjectRef, ...] = (),
    word: str = "one",
    proof: Proof | None = None,
) -> Manifest:
    """A manifest with nothing in it that does not matter here."""
    return Manifest(
        target=target,
        factory=factory,
        environment=environment(word),
        settings=Settings(threads=1, default_dtype="", matmul_precision="", configuration={}),
        spec=SpecRecord(
            grad=False,
            backward=False,
            mode=None,
            dynamic=None,
            fullgraph=False,
            backend="inductor",
            options={},
            examples=1,
        ),
        sources=sources or Sources(),
        live=(),
        forms=(Form(kind="dynamo", format=FORMATS["dynamo"], objects=objects),),
        build=BuildRecord(preheat="0", started_at="now", seconds={}, graphs=1, kernels=0),
        proof=proof,
    )


PROOF = Proof(
    forms=(
        FormProof(form="dynamo", frames_compiled=0, max_error=0.0, load_seconds=0.1, modules=1),
    ),
    examples=1,
    against="eager",
    seconds=0.1,
)


def write_double(project: Path, **control: Any) -> None:
    """Say what the double does from now on; it sees all of it or nothing."""
    temporary = project / f".{CONTROL_NAME}.new"
    temporary.write_text(json.dumps(control))
    temporary.replace(project / CONTROL_NAME)


def make_project(
    path: Path,
    targets: tuple[str, ...] = ("encoder",),
    *,
    extra: str = "",
    **control: Any,
) -> Path:
    """A project with one module a target, built by the double. Returns its configuration file."""
    package = path / "app"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name in targets:
        (package / f"{name}.py").write_text(f"def {name}():\n    return 1\n")
    python = path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport runpy\nrunpy.run_path({__file__!r}, run_name='__main__')\n"
    )
    python.chmod(0o755)
    written = ", ".join(f'"app.{name}:{name}"' for name in targets)
    file = path / "preheat.toml"
    file.write_text(f'targets = [{written}]\nstore = "../store"\npython = "./python"\n{extra}')
    write_double(path, **control)
    return file


class Actions:
    """What a build or proof process of the double can do."""

    def __init__(self, job: Job, stage: str) -> None:
        self.job = job
        self.stage = stage
        self.without: dict[str, str] = {}
        self.more_forms: tuple[Form, ...] = ()

    def say(self, event: PhaseEvent | FailedEvent | BuiltEvent | ProvenEvent) -> None:
        sys.stdout.buffer.write(encode_event(event))
        sys.stdout.buffer.flush()

    def ok(self) -> None:
        self.say(PhaseEvent(phase="import" if self.stage == "build" else "proof"))
        if self.stage == "proof":
            self.say(ProvenEvent(proof=PROOF, without=self.without))
            return
        store = DiskStore(self.job.staging, create=True)
        digest, size = store.put_object(f"compiled {self.job.target}".encode())
        built = manifest(
            self.job.target,
            self.job.factory,
            sources=self.sources(),
            objects=(ObjectRef(name="code", sha256=digest, size=size),),
            word=str(control().get("environment", "one")),
        )
        built = msgspec.structs.replace(built, forms=(*built.forms, *self.more_forms))
        store.publish(built)
        self.say(BuiltEvent(manifest=built))

    def two_forms(self) -> None:
        """Two forms are built, and one of them is proven."""
        self.more_forms = (Form(kind="lean", format=FORMATS["lean"], objects=()),)
        self.without = {"lean": "proof: The lean form does not load."}
        self.ok()

    def sources(self) -> Sources:
        name = self.job.factory.partition(":")[0]
        path = f"{name.replace('.', '/')}.py"
        text = (Path(self.job.project) / path).read_bytes()
        module = ModuleSource(
            module=name,
            root=0,
            path=path,
            file_sha256=sha256(text),
            digest=module_digest(text),
        )
        return Sources(modules=(module,))

    def fail(self) -> None:
        sys.stderr.write("Traceback: the factory raised\n")
        message = f"{self.job.factory} raised ZeroDivisionError: division by zero."
        message = str(control().get("message", message))
        self.say(FailedEvent(kind="target", message=message, remedy="Correct the factory."))
        sys.exit(1)

    def refuse(self) -> None:
        self.say(FailedEvent(kind="refused", message="Cannot be packaged.", refused=True))
        sys.exit(1)

    def garbage(self) -> None:
        sys.stdout.write("a library prints\n\xff{not json}\n\n" + "x" * 100_000 + "\n")
        sys.stdout.flush()
        self.ok()

    def noisy(self) -> None:
        sys.stderr.write("first line\n" + ("y" * 99 + "\n") * 20_000 + "last line\n")
        self.ok()

    def segv(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def exit3(self) -> None:
        sys.exit(3)

    def silent(self) -> None:
        """Ends well without a result."""

    def other_environment(self) -> None:
        self.say(BuiltEvent(manifest=manifest(self.job.target, self.job.factory, word="two")))

    def edit_then_ok(self) -> None:
        """The source is edited after it was read."""
        self.ok()
        path = Path(self.job.project) / (
            self.job.factory.partition(":")[0].replace(".", "/") + ".py"
        )
        path.write_text(path.read_text() + f"\nx = {time.monotonic_ns()}\n")

    def hang(self) -> None:
        self.say(PhaseEvent(phase="kernels"))
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(f"running-{self.job.target}").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)

    def leaves_a_child(self) -> None:
        self.ok()
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(f"running-{self.job.target}").write_text(str(child.pid))

    def allocate(self) -> None:
        """Takes ever more memory, and so does a child; a gigabyte in the end."""
        script = (
            "import time; taken = []\n"
            "while len(taken) < 64: taken.append(b'x' * 2**23); time.sleep(0.02)"
        )
        child = subprocess.Popen([sys.executable, "-c", script])
        Path(f"running-{self.job.target}").write_text(f"{os.getpid()} {child.pid}")
        exec(script)  # noqa: S102  # the very same
        self.ok()

    def stubborn(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.hang()

    def gate(self) -> None:
        """Waits until the file ``gate`` exists."""
        Path(f"running-{self.job.target}").write_text(f"{os.getpid()} {os.getpid()}")
        while not Path("gate").exists():
            time.sleep(0.01)
        self.ok()


def control() -> dict[str, Any]:
    """What ``double.json`` says now."""
    answer: dict[str, Any] = json.loads(Path(CONTROL_NAME).read_text())
    return answer


def note(words: str) -> None:
    """Append to ``double.log``, for tests that count processes."""
    with Path("double.log").open("a") as file:
        file.write(words + "\n")


def main() -> None:
    """Be ``python -m preheat.{environment,build,verify}``."""
    assert sys.argv[1] == "-m"
    live_with_parent(1)
    module = sys.argv[2]
    if module == "preheat.environment":
        note("environment")
        answer(control())
        return
    job = read_job(Path(sys.argv[3]).read_bytes())
    stage = "build" if module == "preheat.build" else "proof"
    note(f"{stage} {job.target}")
    wanted = control().get(stage, "ok")
    action = wanted.get(job.target, "ok") if isinstance(wanted, dict) else wanted
    getattr(Actions(job, stage), action)()


def answer(said: dict[str, Any]) -> None:
    """The probe's answer, after what a library prints."""
    if said.get("probe") == "broken":
        sys.exit("ModuleNotFoundError: No module named 'torch'")
    found = environment(str(said.get("environment", "one")))
    sys.stdout.write("a library prints\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(
        msgspec.json.encode(
            {
                "cpu": found,
                "cuda": None,
                "digests": {"cpu": environment_digest(found), "cuda": None},
                "default_device": "cpu",
            }
        )
    )


if __name__ == "__main__":
    main()
