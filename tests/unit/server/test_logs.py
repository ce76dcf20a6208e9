"""Goal: a log line is one line, readable by machines, and carries what it was given.
Method: log into a string and read the lines back.
"""

from __future__ import annotations

import io
import json
import logging

from anchorstore.config import LogConfig
from anchorstore.server.logs import forward_libraries, make_logger


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_logger_for_machines_writes_one_object_a_line() -> None:
    stream = io.StringIO()
    log = make_logger(LogConfig(), "node-1", stream)
    log.info("session opened", session=b"\x01\xff", seconds=1 / 3, text="two\nlines")
    log.warning("odd")
    first, second = lines(stream)
    assert first.pop("time")
    assert first == {
        "event": "session opened",
        "level": "info",
        "node": "node-1",
        "session": "01ff",
        "seconds": 0.333333,
        "text": "two\nlines",
    }
    assert second["level"] == "warning"


def test_logger_below_its_level_is_silent() -> None:
    stream = io.StringIO()
    log = make_logger(LogConfig(level="warning"), "node-1", stream)
    log.info("not written")
    log.error("written")
    assert [line["event"] for line in lines(stream)] == ["written"]


def test_logger_of_an_exception_keeps_local_variables_out() -> None:
    for style in ("json", "text"):
        stream = io.StringIO()
        log = make_logger(LogConfig(format=style), "node-1", stream)
        secret = "-".join(("a", "bearer", "token"))
        try:
            raise ValueError(f"{len(secret)} letters")
        except ValueError:
            log.exception("failed")
        assert "ValueError: 14 letters" in stream.getvalue()
        assert secret not in stream.getvalue()


def test_forward_libraries_brings_their_warnings_into_the_log() -> None:
    stream = io.StringIO()
    handler = forward_libraries(make_logger(LogConfig(), "node-1", stream))
    try:
        logging.getLogger("asyncio").warning("slow %s", "callback")
        logging.getLogger("asyncio").info("chatter")
    finally:
        logging.getLogger().removeHandler(handler)
        logging.captureWarnings(False)
    (line,) = lines(stream)
    assert (line["event"], line["library"], line["level"]) == (
        "slow callback",
        "asyncio",
        "warning",
    )
