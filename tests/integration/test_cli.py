"""Goal: every command asks the daemon the right thing, prints it well, exits with the right code.
Method: main() against a daemon of prepared answers on a real socket; text is compared as printed,
JSON is parsed.  The same commands against a real daemon: tests/e2e.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from anchorstore.errors import Forbidden
from anchorstore.testing.canned import Answer, CannedDaemon
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2, store_pb2
from tests.integration.harness import Say

ROOT_A, ROOT_B = bytes(range(32)), b"\xff" * 32
BOOT = bytes(16)
SPACES = [
    admin_pb2.NamespaceStatus(
        domain="team-a", model="qwen", root_digest=ROOT_A, pages=1200, bytes=3 * 2**30,
        quota_bytes=4 * 2**30, max_lineage=16, enabled=True, sessions=2,
    ),
    admin_pb2.NamespaceStatus(
        domain="team-b", model="qwen", root_digest=ROOT_B, max_lineage=255, enabled=False
    ),
]  # fmt: skip
STATUS = admin_pb2.StatusResponse(
    version="9.8.7",
    boot_id=BOOT,
    uptime_ms=7_500_000,
    sessions=2,
    leases=3,
    pages=1200,
    index_bytes=240_000,
    tiers=[
        admin_pb2.TierStatus(
            name="dram", capacity_bytes=4 * 2**30, used_bytes=3 * 2**30, segments=64,
            segments_free=16, components=[
                admin_pb2.ComponentStatus(
                    component=store_pb2.COMPONENT_KV, capacity_bytes=3 * 2**30,
                    used_bytes=3 * 2**30, blocks=1200,
                )
            ],
        )
    ],
    namespaces=SPACES,
    counters={"lookups": 12345, "nothing": 0},
)  # fmt: skip


def list_namespaces_or_pages(request: admin_pb2.ListRequest) -> admin_pb2.ListResponse:
    """Three pages, two an answer."""
    if not request.root_digest:
        return admin_pb2.ListResponse(namespaces=SPACES)
    first = request.cursor
    count = min(request.limit, 2, 3 - first)
    block = admin_pb2.BlockStatus(
        component=store_pb2.COMPONENT_KV, layout_digest=ROOT_B, shard=4, tier="dram", bytes=4096
    )
    pages = [
        admin_pb2.PageStatus(path_hash=bytes([page]) * 32, page=page, blocks=[block, block][:page])
        for page in range(first, first + count)
    ]
    cursor = first + count
    return admin_pb2.ListResponse(pages=pages, next_cursor=cursor if cursor < 3 else 0)


ANSWERS: dict[Method, Answer] = {
    Method.STATUS: STATUS,
    Method.LIST: list_namespaces_or_pages,
    Method.CHECK: admin_pb2.CheckResponse(ok=True, pages=3, blocks=6),
    Method.EXPLAIN: admin_pb2.ExplainResponse(),
    Method.SET_NAMESPACE: admin_pb2.SetNamespaceResponse(),
    Method.REMOVE: admin_pb2.RemoveResponse(blocks_removed=7, blocks_leased=2),
}


def test_status_prints_tiers_namespaces_and_counters(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS):
        code, out, err = say("status")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert "anchorstore 9.8.7, boot 000000000000, serving for 2h05m" in out
    assert ["dram", "all", "4GiB", "3GiB", "(75%)", "1,200", "64", "16", "no"] in lines
    assert ["dram", "kv", "up", "to", "3GiB", "3GiB", "(100%)", "1,200"] in lines
    first = ["000102030405", "team-a", "qwen", "1,200", "3GiB", "4GiB", "16", "2", "on"]
    assert first in lines
    assert ["ffffffffffff", "team-b", "qwen", "0", "0B", "none", "any", "0", "OFF"] in lines
    assert ["lookups", "12,345"] in lines
    assert "nothing" not in out


def test_status_as_json_has_every_field(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS):
        code, out, _ = say("status", "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found) == set(STATUS.DESCRIPTOR.fields_by_name)
    assert found["uptime_ms"] == 7_500_000
    assert found["tiers"][0]["components"][0]["component"] == "kv"
    assert found["namespaces"][0]["root_digest"] == ROOT_A.hex()
    assert found["counters"] == {"lookups": 12345, "nothing": 0}


@pytest.mark.parametrize("words", [("status",), ("ls",), ("check",), ("explain", "1,2")])
def test_command_without_a_daemon_exits_with_3(words: tuple[str, ...], say: Say) -> None:
    code, out, err = say(*words)
    assert (code, out) == (3, "")
    assert err.startswith(f"anchorstore {words[0]}: no daemon at ")
    assert err.count("\n") == 1


def test_command_to_a_hung_daemon_exits_with_3_after_its_deadline(
    say: Say, socket_path: Path
) -> None:
    with CannedDaemon(socket_path, {}):
        code, _, err = say("status", "--deadline", "50ms")
    assert code == 3
    assert "no answer within 50ms" in err


def test_command_to_a_daemon_that_hangs_up_exits_with_3(say: Say, socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        accept = threading.Thread(target=lambda: listener.accept()[0].close())
        accept.start()
        code, _, err = say("status")
        accept.join()
    assert code == 3
    assert str(socket_path) in err


def test_command_that_is_refused_exits_with_2_and_the_reason(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, {Method.CHECK: Forbidden("for operators alone")}):
        code, _, err = say("check")
    assert code == 2
    assert err == (
        "anchorstore check: for operators alone; --token-file FILE shows an operator's token\n"
    )


def test_status_of_one_domain_says_so_and_leaves_out_what_it_was_not_told(
    say: Say, socket_path: Path
) -> None:
    own = admin_pb2.StatusResponse(boot_id=BOOT, sessions=2, pages=1200, namespaces=SPACES[:1])
    with CannedDaemon(socket_path, {Method.STATUS: own}):
        _, out, _ = say("status")
    assert out.splitlines()[1:3] == [
        "sessions 2, pages 1,200",
        "not an operator: own domain only",
    ]
    assert "index" not in out and "TIER" not in out


def test_command_to_something_else_that_answers_exits_with_3(say: Say) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            stream, _ = listener.accept()
            with stream:
                stream.recv(4096)
                stream.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        code, _, err = say("status", "--address", url)
        thread.join()
    assert code == 3
    assert err.startswith(f"anchorstore status: {url} does not speak anchorstore: ")


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--bogus"),
        ("config", "check", "--bogus"),
        ("namespace", "enable", "m", "--bogus"),
    ],
)
def test_unknown_option_is_refused_under_the_command_s_own_usage(
    words: tuple[str, ...], say: Say
) -> None:
    code, _, err = say(*words)
    command = " ".join(word for word in words[:2] if word[0] != "-")
    assert code == 2
    assert err.startswith(f"usage: anchorstore {command} ")
    assert err.endswith(f"anchorstore {command}: error: unrecognized arguments: --bogus\n")


def test_ls_with_a_limit_cuts_namespaces_too(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS):
        _, text, _ = say("ls", "--limit", "1")
        _, out, _ = say("ls", "--limit", "1", "--json")
        _, whole, _ = say("ls", "--limit", "0", "--json")
        _, plain, _ = say("ls", "--json")
    assert text.endswith("... more than 1 namespaces; --limit 0 lists all\n")
    assert len(text.splitlines()) == 3
    found = json.loads(out)
    assert (len(found["namespaces"]), found["more"]) == (1, True)
    assert json.loads(whole)["more"] is False
    assert set(json.loads(plain)) == {"namespaces"}


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("-1", "-1 is out of range, must be 0 to 2147483647"),
        (str(2**31), "2147483648 is out of range, must be 0 to 2147483647"),
        ("many", "'many' is not an integer"),
    ],
)
def test_ls_with_a_wrong_limit_exits_with_2(limit: str, reason: str, say: Say) -> None:
    code, _, err = say("ls", "m", f"--limit={limit}")
    assert code == 2
    assert reason in err


@pytest.mark.parametrize(
    ("shard", "shown", "heads"),
    [(0, "-", (0, 0)), (2, "heads 0-1", (0, 2)), ((2 << 16) + 3, "head 2", (2, 3))],
)
def test_ls_names_a_shard_s_heads(
    shard: int, shown: str, heads: tuple[int, int], say: Say, socket_path: Path
) -> None:
    block = admin_pb2.BlockStatus(component=store_pb2.COMPONENT_KV, shard=shard, tier="dram")
    page = admin_pb2.PageStatus(path_hash=ROOT_B, blocks=[block])

    def answer(request: admin_pb2.ListRequest) -> admin_pb2.ListResponse:
        spaces = [] if request.root_digest else SPACES
        return admin_pb2.ListResponse(namespaces=spaces, pages=[page])

    with CannedDaemon(socket_path, {Method.LIST: answer}):
        _, text, _ = say("ls", "0001")
        _, out, _ = say("ls", "0001", "--json")
    assert f"  {shown}  " in text.splitlines()[1]
    (found,) = json.loads(out)["pages"][0]["blocks"]
    assert (found["shard"], found["head_start"], found["head_stop"]) == (shard, *heads)


def test_ls_without_a_namespace_lists_namespaces(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS):
        _, text, _ = say("ls")
        _, out, _ = say("ls", "--json")
    assert len(text.splitlines()) == 1 + len(SPACES)
    assert [space["domain"] for space in json.loads(out)["namespaces"]] == ["team-a", "team-b"]


@pytest.mark.parametrize("command", ["ls", "status"])
def test_namespaces_of_one_model_are_told_apart(command: str, say: Say, socket_path: Path) -> None:
    adapter = "sql:" + "1f" * 32
    differences: list[dict[str, Any]] = [
        {"weights_digest": b"\xaa" * 32},
        {"weights_digest": b"\xaa" * 32, "adapter": adapter},
        {"weights_digest": b"\xbb" * 32, "salted": True},
    ]
    spaces = [
        admin_pb2.NamespaceStatus(
            domain="a", model="qwen", root_digest=bytes([number]) * 32, page_tokens=64, **told
        )
        for number, told in enumerate(differences)
    ]
    answers: dict[Method, Answer] = {
        Method.LIST: admin_pb2.ListResponse(namespaces=spaces),
        Method.STATUS: admin_pb2.StatusResponse(namespaces=spaces),
    }
    with CannedDaemon(socket_path, answers):
        _, text, _ = say(command)
        _, out, _ = say(command, "--json")
    head, *lines = text[text.index("NAMESPACE") :].splitlines()
    assert head.startswith("NAMESPACE     DOMAIN  MODEL  WEIGHTS   ADAPTER       PAGE TOKENS  SALT")
    assert [line.split()[3:7] for line in lines] == [
        ["aaaaaaaa", "-", "64", "no"],
        ["aaaaaaaa", "sql:1f1f1f1f", "64", "no"],
        ["bbbbbbbb", "-", "64", "yes"],
    ]
    found = json.loads(out)["namespaces"][1]
    assert (found["weights_digest"], found["adapter"]) == ("aa" * 32, adapter)
    assert (found["page_tokens"], found["salted"]) == (64, False)


def test_ls_of_a_namespace_follows_the_cursor_to_the_end(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        code, out, _ = say("ls", "team-a/qwen", "--limit", "0")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "000000000000", "010101010101", "020202020202", "kv",
    ]  # fmt: skip
    assert "heads 0-3" in out
    cursors = [item.cursor for _, item in daemon.requests[1:]]
    assert cursors == [0, 2]


def test_ls_with_a_limit_stops_there_and_says_so(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS):
        _, text, _ = say("ls", ROOT_A.hex()[:6], "--limit", "2")
        _, out, _ = say("ls", ROOT_A.hex(), "--limit", "1", "--json")
    assert text.endswith("... more than 2 pages; --limit 0 lists all\n")
    found = json.loads(out)
    assert (len(found["pages"]), found["more"]) == (1, True)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("qwen", "2 fit, name one by its root digest"),
        ("000", "none fits"),
        ("team-c/qwen", "none fits"),
        ("team-c/qwen --all", "none fits"),
    ],
)
def test_namespace_that_is_not_one_is_refused_with_the_choice(
    wanted: str, reason: str, say: Say, socket_path: Path
) -> None:
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        code, _, err = say("namespace", "disable", *wanted.split())
    assert code == 2
    assert reason in err
    assert "000102030405  team-a  qwen" in err
    assert [method for method, _ in daemon.requests] == [Method.LIST]


def test_check_of_a_sound_daemon_exits_with_0(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        assert say("check") == (0, "ok: 3 pages, 6 blocks\n", "")
        say("check", "--checksums")
    assert [item.checksums for _, item in daemon.requests] == [False, True]


def test_check_of_a_broken_daemon_exits_with_1_and_names_each(say: Say, socket_path: Path) -> None:
    broken = admin_pb2.CheckResponse(ok=False, violations=["slot 3 is lost"], pages=1, blocks=1)
    with CannedDaemon(socket_path, {Method.CHECK: broken}):
        code, out, _ = say("check")
        json_code, json_out, _ = say("check", "--json")
    assert code == json_code == 1
    assert out == "FAILED: 1 violations in 1 pages, 1 blocks\n  slot 3 is lost\n"
    assert json.loads(json_out)["violations"] == ["slot 3 is lost"]


@pytest.mark.parametrize(("action", "enabled"), [("enable", True), ("disable", False)])
def test_namespace_switch_names_the_root_and_the_state(
    action: str, enabled: bool, say: Say, socket_path: Path
) -> None:
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        code, out, _ = say("namespace", action, "ffff")
    assert (code, out) == (0, f"{action}d ffffffffffff team-b/qwen\n")
    wanted = admin_pb2.SetNamespaceRequest(root_digest=ROOT_B, enabled=enabled)
    assert daemon.requests[-1] == (Method.SET_NAMESPACE, wanted)


def test_namespace_switch_with_all_turns_every_namespace_of_a_model(
    say: Say, socket_path: Path
) -> None:
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        code, out, _ = say("namespace", "disable", "qwen", "--all")
    assert (code, len(out.splitlines())) == (0, 2)
    turned = [item for method, item in daemon.requests if method is Method.SET_NAMESPACE]
    assert [(item.root_digest, item.enabled) for item in turned] == [
        (ROOT_A, False),
        (ROOT_B, False),
    ]


def test_namespace_switch_that_no_restart_will_know_of_says_so(say: Say, socket_path: Path) -> None:
    answer = admin_pb2.SetNamespaceResponse(until_restart=True)
    with CannedDaemon(socket_path, {**ANSWERS, Method.SET_NAMESPACE: answer}):
        code, out, _ = say("namespace", "disable", "ffff")
    assert (code, out) == (0, "disabled ffffffffffff team-b/qwen until the daemon starts again\n")


def test_remove_with_consent_removes_the_subtree(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        code, out, _ = say("remove", "0001", "--below", ROOT_B.hex(), "--yes")
    assert code == 0
    assert out == "removed 7 blocks; 2 of them are still leased\n"
    wanted = admin_pb2.RemoveRequest(root_digest=ROOT_A, path_hash=ROOT_B)
    assert daemon.requests[-1] == (Method.REMOVE, wanted)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("0001",), "say --yes"),
        (("0001", "--below", "864", "--yes"), "'864' has 3 characters, must have 64 hexadecimal"),
        (("0001", "--below", "g" * 64, "--yes"), "must have 64 hexadecimal letters"),
        (("0001", "--below", "", "--yes"), "'' has 0 characters, must have 64"),
    ],
)
def test_remove_without_consent_or_with_a_wrong_hash_removes_nothing(
    words: tuple[str, ...],
    reason: str,
    say: Say,
    socket_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", (socket_path.parent / "empty").open("w+"))
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        code, _, err = say("remove", *words)
    sys.stdin.close()
    assert code == 2
    assert reason in err
    assert Method.REMOVE not in [method for method, _ in daemon.requests]


def test_remove_below_a_page_that_is_not_stored_says_so(say: Say, socket_path: Path) -> None:
    nothing = {**ANSWERS, Method.REMOVE: admin_pb2.RemoveResponse()}
    words = ("remove", "0001", "--below", ROOT_B.hex(), "--yes")
    with CannedDaemon(socket_path, nothing):
        code, out, err = say(*words)
        _, found, _ = say(*words, "--json")
        whole = say("remove", "0001", "--yes")
    assert (code, out) == (2, "")
    assert err == f"anchorstore remove: no such page is stored in qwen: {ROOT_B.hex()}\n"
    assert json.loads(found) == {"blocks_removed": 0, "blocks_leased": 0, "may_come_back": False}
    assert whole == (0, "removed 0 blocks; 0 of them are still leased\n", "")


def test_token_file_is_sent_with_every_call(say: Say, socket_path: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# operators\nsecret-of-an-operator\n")
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        say("ls", "0001", "--token-file", str(tokens))
    sent = [request.token for _, request in daemon.requests]
    assert set(sent) == {"secret-of-an-operator"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--address", "http://x"), "must start with unix:// or tcp://"),
        (("--address", "tcp://[::1:5"), "'[::1' is no host"),
        (("--address", "unix:///"), "must name a socket"),
        (("--socket", "unix:///run/a.sock"), "must be a path; --address takes it"),
        (("--address", "tcp://x"), "host:port"),
        (
            ("--token-file", "/does/not/exist"),
            "anchorstore status: --token-file /does/not/exist: No such file or directory\n",
        ),
        (("--token-file", sys.executable), "is not UTF-8 text"),
        (("--token-file", ""), "--token-file: is empty"),
        (("--socket", ""), "--socket: is empty, must name something"),
        (("--address", ""), "--address: is empty"),
        (("--tls-ca", "", "--address", "tcp://localhost:1"), "--tls-ca: is empty"),
        (("--deadline", "5"), "'5' is not a duration"),
        (("--socket", "a", "--address", "unix:///b"), "not allowed with"),
    ],
)
def test_connection_options_that_are_wrong_exit_with_2(
    words: tuple[str, ...], reason: str, say: Say
) -> None:
    code, _, err = say("status", *words)
    assert code == 2
    assert reason in err
