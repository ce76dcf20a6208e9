"""The daemon's log: one event a line, with fields, on standard error.

An event is a few lower-case words, everything that varies is a field:
``log.info("session opened", domain="team-a", session=3)``.  JSON for machines, aligned text on a
terminal.  The logger is made here and handed on; nothing configures structlog's globals.  What
libraries say through the standard library's logging (asyncio, grpc) joins the same stream.
Clients and adapters never use this: a library does not configure logging.
"""

from __future__ import annotations

import logging
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from anchorstore.config import LogConfig

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def _readable(_logger: object, _name: str, event: EventDict) -> EventDict:
    """Digests and ids as hex, seconds with six decimals: what JSON and people can read."""
    for key, value in event.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            event[key] = bytes(value).hex()
        elif isinstance(value, float):
            event[key] = round(value, 6)
    return event


def is_json(config: LogConfig, stream: TextIO) -> bool:
    """Whether lines are JSON objects: as configured, "auto" = unless on a terminal."""
    return config.format == "json" or (config.format == "auto" and not stream.isatty())


def make_logger(config: LogConfig, node: str, stream: TextIO) -> FilteringBoundLogger:
    """The daemon's logger; `node` stands in every line.  Safe to use from any thread."""
    as_json = is_json(config, stream)
    tail: list[Processor]
    if as_json:
        tail = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # The plain traceback: the rich one prints local variables, which may hold tokens.
        plain = structlog.dev.plain_traceback
        console = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), sort_keys=False, exception_formatter=plain
        )
        tail = [console]
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(
                fmt="iso", utc=True, key="time" if as_json else "timestamp"
            ),
            _readable,
            *tail,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[config.level]),
        cache_logger_on_first_use=True,
    )
    bound: FilteringBoundLogger = logger.bind(node=node) if as_json else logger
    return bound


class _Forward(logging.Handler):
    """Hands the standard library's records to the daemon's logger."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"library": record.name}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        self._logger.log(record.levelno, record.getMessage(), **fields)


def forward_libraries(logger: FilteringBoundLogger) -> logging.Handler:
    """Sends warnings and errors of every library to `logger`; for the daemon's process alone."""
    handler = _Forward(logger)
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    return handler
