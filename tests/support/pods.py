"""Runs the containers of a Kubernetes manifest on this machine, as a kubelet would.

What counts of a manifest: command, env, workingDir, volumes (emptyDir, hostPath, persistentVolumeClaim),
volumeMounts with subPath and readOnly, and of a security context the account, the root that is read-only, and
the capabilities that remain.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from typing import TYPE_CHECKING, Any

from support.container import LIMIT_SECONDS, PATH, Bind, Container, children

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from subprocess import CompletedProcess, Popen


@dataclasses.dataclass(frozen=True)
class Started:
    """A container that runs."""

    process: Popen[str]

    def terminate(self) -> int:
        """SIGTERM to its first process, as the kubelet does it; its exit code."""
        os.kill(children(self.process.pid)[0], signal.SIGTERM)
        return self.process.wait(10)


class Pod:
    """A pod of one template, on a node whose directories are below ``node``.

    ``claims``: where the data of a claim is. ``image``: what a container of the image starts with, by path.
    """

    def __init__(
        self,
        template: dict[str, Any],
        place: Path,
        *,
        node: Path,
        claims: dict[str, Path],
        image: dict[str, Path],
        path: str = PATH,
    ) -> None:
        self._spec = template["spec"]
        self._place = place
        self._image = image
        self._path = path
        place.mkdir()
        self._volumes = {
            one["name"]: self._volume(one, place, node, claims) for one in self._spec["volumes"]
        }

    @staticmethod
    def _volume(volume: dict[str, Any], place: Path, node: Path, claims: dict[str, Path]) -> Path:
        if "emptyDir" in volume:
            made = place / volume["name"]
            made.mkdir()
            made.chmod(0o777)
            return made
        if "hostPath" in volume:
            assert volume["hostPath"]["type"] == "DirectoryOrCreate"
            made = node / volume["hostPath"]["path"].lstrip("/")
            made.mkdir(parents=True, exist_ok=True)
            return made
        return claims[volume["persistentVolumeClaim"]["claimName"]]

    def _mount(self, mount: dict[str, Any]) -> Bind:
        source = self._volumes[mount["name"]]
        if "subPath" in mount:
            source /= mount["subPath"]
            if not source.exists():
                source.mkdir(0o750)  # for root, as the kubelet makes it
        return Bind(source, mount["mountPath"], mount.get("readOnly", False))

    def container(self, name: str) -> dict[str, Any]:
        every = [*self._spec.get("initContainers", ()), *self._spec["containers"]]
        return next(one for one in every if one["name"] == name)

    def _started(self, name: str, command: list[str]) -> Any:
        described = self.container(name)
        root = Container(self._place / f"root-{len(list(self._place.iterdir()))}")
        for at, source in self._image.items():
            root.bind(source, at)
        for mount in described["volumeMounts"]:
            one = self._mount(mount)
            root.bind(one.source, one.at, read_only=one.read_only)
        security = {**self._spec["securityContext"], **described["securityContext"]}
        kept = "".join(f",+{one.lower()}" for one in security["capabilities"].get("add", ()))
        closed = ["setpriv", "--no-new-privs", "--inh-caps=-all", f"--bounding-set=-all{kept}"]
        variables = {one["name"]: one["value"] for one in described.get("env", ())}
        return root.started(
            *closed,
            *command,
            env={"PATH": self._path, **variables},
            uid=security["runAsUser"],
            cwd=described.get("workingDir", "/"),
            read_only=security["readOnlyRootFilesystem"],
        )

    def run(self, name: str, command: list[str] | None = None) -> CompletedProcess[str]:
        """Run a container to its end; or, as a probe does, another command beside it."""
        import subprocess

        words = command or self.container(name)["command"]
        with self._started(name, words) as process:
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[Started]:
        """A container that does not end by itself."""
        with self._started(name, self.container(name)["command"]) as process:
            yield Started(process)
