"""Asking the outside world something that may never answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

# A driver whose GPU is lost may never answer.
ANSWER_LIMIT_SECONDS = 10.0

_T = TypeVar("_T")


class Asker:
    """Asks one question at a time, in a thread that nobody has to wait for, also not at the end."""

    def __init__(self, limit_seconds: float = ANSWER_LIMIT_SECONDS) -> None:
        self._limit_seconds = limit_seconds
        self._unanswered = False

    async def ask(self, question: Callable[[], _T]) -> _T:
        """The answer. Raises what the question raises, and ``TimeoutError`` when there is no answer;
        at once while an earlier question has none yet, so that threads do not pile up."""
        if self._unanswered:
            raise self._no_answer()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()
        self._unanswered = True

        def deliver(result: _T | None, error: Exception | None) -> None:
            self._unanswered = False
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # the question's own

        def run() -> None:
            result, trouble = None, None
            try:
                result = question()
            except Exception as error:
                trouble = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(deliver, result, trouble)

        # A thread of the loop's executor would be waited for when the daemon ends.
        threading.Thread(target=run, daemon=True, name="asking").start()
        try:
            return await asyncio.wait_for(answer, self._limit_seconds)
        except TimeoutError:
            if answer.done() and not answer.cancelled():
                raise  # it is the answer
            raise self._no_answer() from None

    def _no_answer(self) -> TimeoutError:
        return TimeoutError(f"no answer within {self._limit_seconds:g} s")
