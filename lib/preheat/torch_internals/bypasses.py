"""Why torch will not package a graph: it says so in its log only."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class BypassLog(logging.Handler):
    """torch says only in its log why it will not package a graph."""

    last = ""
    _LOGGERS = ("torch._dynamo.output_graph", "torch._functorch._aot_autograd.autograd_cache")

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for start in (
            "Detected a package bypass: ",
            "Bypassing autograd cache due to: ",
            "AOTAutograd cache unable to serialize compiled graph: ",
        ):
            if text.startswith(start):
                type(self).last = text.removeprefix(start)
        parent = logging.getLogger(record.name).parent
        if parent is not None and record.levelno >= logging.WARNING:
            parent.handle(record)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        loggers = [logging.getLogger(name) for name in self._LOGGERS]
        before = [(logger.level, logger.propagate) for logger in loggers]
        type(self).last = ""
        for logger in loggers:
            logger.addHandler(self)
            logger.setLevel(logging.INFO)
            logger.propagate = False
        try:
            yield
        finally:
            for logger, (level, propagate) in zip(loggers, before, strict=True):
                logger.removeHandler(self)
                logger.setLevel(level)
                logger.propagate = propagate
