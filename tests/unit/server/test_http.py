"""Goal: the health pages speak strict HTTP and say what the daemon's state is.
Method: parse and encode requests and answers as bytes, without a socket (the sockets are in
tests/integration/test_http_server.py).
"""

from __future__ import annotations

import pytest

from anchorstore.server.http import (
    Health,
    HttpRefused,
    Reply,
    encode_reply,
    parse_request,
    routes_of,
)


def head(line: str = "GET /metrics HTTP/1.1", *fields: str, host: bool = True) -> bytes:
    lines = [line, *(["Host: x"] if host else []), *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


@pytest.mark.parametrize(
    ("request_head", "wanted"),
    [
        (head(), ("GET", "/metrics")),
        (head("HEAD /livez?verbose=1 HTTP/1.1"), ("HEAD", "/livez")),
        (head("GET /readyz HTTP/1.0", host=False), ("GET", "/readyz")),
        (head("GET / HTTP/1.1", "Content-Length: 0"), ("GET", "/")),
        (head("GET / HTTP/1.1", "accept:text/plain"), ("GET", "/")),
    ],
)
def test_parse_request_of_a_right_head_gives_method_and_path(
    request_head: bytes, wanted: tuple[str, str]
) -> None:
    assert parse_request(request_head) == wanted


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head("GET /metrics"), 400),
        (head("GET  /metrics HTTP/1.1"), 400),
        (head("GET metrics HTTP/1.1"), 400),
        (head("GET http://x/metrics HTTP/1.1"), 400),
        (head("GET / HTTP/2"), 505),
        (head("GET / HTTP/1.1", host=False), 400),
        (head("GET / HTTP/1.1", "Host: y"), 400),
        (head("GET / HTTP/1.1", "no colon"), 400),
        (head("GET / HTTP/1.1", "Name : value"), 400),
        (head("GET / HTTP/1.1", " folded: line"), 400),
        (head("GET / HTTP/1.1", "Name: a\nb"), 400),
        (head("GET / HTTP/1.1", "Name: \xff"), 400),
        (head("POST / HTTP/1.1", "Content-Length: 5"), 413),
        (head("GET / HTTP/1.1", "Content-Length: 0", "Content-Length: 0"), 413),
        (head("GET / HTTP/1.1", "Transfer-Encoding: chunked"), 413),
    ],
)
def test_parse_request_of_a_wrong_head_is_refused(request_head: bytes, status: int) -> None:
    with pytest.raises(HttpRefused) as caught:
        parse_request(request_head)
    assert caught.value.reply.status == status
    assert caught.value.reply.body.endswith(b"\n")


def test_encode_reply_of_head_keeps_the_length_and_leaves_the_body_out() -> None:
    whole = encode_reply(Reply(200, b"ok\n"))
    assert whole.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nContent-Length: 3\r\n" in whole
    assert b"\r\nConnection: close\r\n" in whole
    assert whole == encode_reply(Reply(200, b"ok\n"), with_body=False) + b"ok\n"


def test_readyz_follows_start_and_drain() -> None:
    health = Health()
    routes = routes_of(health, lambda: b"metric 1\n", "text/plain")
    readyz, livez = routes["/readyz"], routes["/livez"]
    assert (readyz().status, readyz().body) == (503, b"starting\n")
    health.starting = "prefault 37%"
    assert readyz().body == b"prefault 37%\n"
    health.starting = ""
    assert (readyz().status, health.ready) == (200, True)
    health.draining = True
    assert (readyz().status, readyz().body) == (503, b"draining\n")
    assert livez().status == 200, "a draining daemon lives"
    assert routes["/metrics"]().body == b"metric 1\n"
