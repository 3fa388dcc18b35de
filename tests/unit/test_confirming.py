"""A proof that is made once more: what takes a package away, and what says nothing about it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, cast

import pytest

from preheat.store import DiskStore
from preheatd.confirming import Confirming
from preheatd.stages import BuildFailed, Superseded
from preheatd.state import State
from support.manifests import ENVIRONMENT
from support.packages import proven

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.job import ProvenEvent
    from preheat.manifest import Manifest
    from preheatd.attempts import Attempt

PACKAGE = proven(b"code", forked=True)


class Ended:
    """A proof whose process is ended by a signal."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def prove_freshly(self) -> ProvenEvent:
        raise BuildFailed("proof_crashed", "The proof process was ended.", signal=self.number)


@pytest.fixture
def confirming(tmp_path: Path) -> Confirming:
    store = DiskStore(tmp_path / "store", create=True)
    store.put_object(b"code")
    store.publish(PACKAGE)
    state = State(tmp_path / "state")
    state.prepare()

    async def unchanged(_: Manifest) -> None:
        pass

    return Confirming(store=store, state=state, publish=store.publish, still_current=unchanged)  # type: ignore[arg-type]


async def confirm(confirming: Confirming, number: int) -> BuildFailed | None:
    return await confirming.confirm(PACKAGE, cast("Attempt", Ended(number)), 60.0)


def is_there(confirming: Confirming) -> bool:
    return confirming.store.read_ref("model", ENVIRONMENT) is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
async def test_a_proof_that_somebody_ended_takes_nothing_away(
    confirming: Confirming, number: int
) -> None:
    with pytest.raises(Superseded):
        await confirm(confirming, number)
    assert is_there(confirming)
    # A program may send that signal to itself; then it would never end.
    assert await confirm(confirming, number) is not None
    assert not is_there(confirming)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
async def test_a_proof_that_crashed_takes_the_package_away(
    confirming: Confirming, number: int
) -> None:
    assert await confirm(confirming, number) is not None
    assert not is_there(confirming)
