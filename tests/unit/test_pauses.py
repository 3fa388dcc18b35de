"""The set of reasons for which no build is started, and the events of its changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from preheat.verdict import Reason
from preheatd import events
from preheatd.pauses import Pauses, tell_changes


def test_reasons_come_and_go() -> None:
    heard: list[tuple[str, bool]] = []
    pauses = Pauses(lambda reason, begins: heard.append((reason.detail, begins)))
    assert not pauses
    pauses.add("load", "2.1")
    pauses.add("on_battery", "50% left")
    pauses.add("load", "2.2")  # told once, and said as it is now
    assert pauses.reasons() == (
        Reason(kind="load", detail="2.2"),
        Reason(kind="on_battery", detail="50% left"),
    )
    assert "load" in pauses
    assert "asked" not in pauses
    pauses.remove("load")
    pauses.remove("load")
    assert pauses
    pauses.remove("on_battery")
    assert not pauses
    assert heard == [("2.1", True), ("50% left", True), ("2.2", False), ("50% left", False)]


def test_builds_resume_when_the_last_reason_is_gone() -> None:
    pauses, heard = Pauses(), list[events.Event]()
    tell_changes(pauses, heard.append)
    for kind in ("load", "asked"):
        pauses.add(kind, "why")
    for kind in ("load", "asked"):
        pauses.remove(kind)
    assert [(event.action, event.reasons[0].kind) for event in heard] == [
        (events.PAUSED, "load"),
        (events.PAUSED, "asked"),
        (events.RESUMED, "asked"),
    ]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())))
def test_it_is_a_set_by_kind(changes: list[tuple[str, bool]]) -> None:
    pauses, kinds, balance = Pauses(), set[str](), dict[str, int]()

    def changed(reason: Reason, begins: bool) -> None:
        balance[reason.kind] = balance.get(reason.kind, 0) + (1 if begins else -1)

    pauses.listen(changed)
    for kind, begins in changes:
        if begins:
            pauses.add(kind, "")
            kinds.add(kind)
        else:
            pauses.remove(kind)
            kinds.discard(kind)
    assert {reason.kind for reason in pauses.reasons()} == kinds
    assert bool(pauses) == bool(kinds)
    assert balance == {kind: int(kind in kinds) for kind in balance}
