"""Goal: an operator's commands tell the truth about a real daemon and change what they say.
Method: main() in this process against a daemon in a thread, which an engine has filled with ten
pages; the daemon's own audit runs at the end of each test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchorstore.cli.main import main
from anchorstore.keys import path_hashes
from anchorstore.transport.segment import PLACE, SegmentShape
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import KV, Engine, Running, config_of, running
from tests.integration.test_remote import certificate

PAGES = 10
TOKENS = list(range(64 * PAGES))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    tokens, admins = tmp_path / "tokens", tmp_path / "admins"
    tokens.write_text("team-b token-of-a-tenant\n")
    admins.write_text("token-of-an-operator\n")
    config = config_of(
        tmp_path,
        listen__tcp="127.0.0.1:0",
        auth__token_file=str(tokens),
        auth__admin_token_file=str(admins),
    )
    with running(config) as here:
        yield here


@pytest.fixture
def engine(daemon: Running) -> Engine:
    """A session whose ten pages are sealed."""
    found = Engine(daemon.socket)
    results = found.put(path_hashes(found.grant.root_digest, TOKENS))
    assert results == bytes([1]) * 2 * PAGES
    return found


def printed(*words: str) -> tuple[int, str]:
    """Runs a command: (exit code, everything printed)."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    return code, out.getvalue()


def say(daemon: Running, *words: str) -> tuple[int, str]:
    """Runs a command on the daemon's socket."""
    return printed(*words, "--socket", daemon.socket)


def ask(daemon: Running, *words: str) -> Any:
    """The JSON that a command prints."""
    code, out = say(daemon, *words, "--json")
    assert code == 0, out
    return json.loads(out)


def test_status_of_a_filled_daemon_counts_what_was_put(daemon: Running, engine: Engine) -> None:
    status = ask(daemon, "status")
    (tier,) = status["tiers"]
    by_component = {part["component"]: part for part in tier["components"]}
    assert status["pages"] == PAGES
    assert by_component["kv"]["blocks"] == by_component["anchor"]["blocks"] == PAGES
    assert tier["used_bytes"] == sum(part["used_bytes"] for part in tier["components"]) > 0
    assert status["counters"]["blocks_sealed"] == 2 * PAGES
    (space,) = status["namespaces"]
    assert space["root_digest"] == engine.grant.root_digest.hex()
    assert (space["pages"], space["sessions"], space["enabled"]) == (PAGES, 1, True)
    code, text = say(daemon, "status")
    assert code == 0
    assert "blocks_sealed" in text


def test_ls_names_every_page_with_its_blocks(daemon: Running, engine: Engine) -> None:
    found = ask(daemon, "ls", "m")
    hashes = path_hashes(engine.grant.root_digest, TOKENS)
    assert found["more"] is False
    assert {page["path_hash"] for page in found["pages"]} == {
        hashes[start : start + 32].hex() for start in range(0, len(hashes), 32)
    }
    for page in found["pages"]:
        assert sorted(block["component"] for block in page["blocks"]) == ["anchor", "kv"]
        assert {block["tier"] for block in page["blocks"]} == {"dram"}
    pages_seen = [ask(daemon, "ls", "m", "--limit", str(limit)) for limit in (1, PAGES)]
    assert [(len(seen["pages"]), seen["more"]) for seen in pages_seen] == [
        (1, True),
        (PAGES, False),
    ]


def test_ls_tells_namespaces_of_one_model_apart_and_no_salt(daemon: Running) -> None:
    weights, salt, adapter = bytes(range(32)), b"secret-of-a-caller", "sql:" + "1f" * 32
    specs: list[dict[str, Any]] = [
        {"weights_digest": bytes(32), "page_tokens": 64},
        {"weights_digest": weights, "page_tokens": 64, "adapter": adapter},
        {"weights_digest": weights, "page_tokens": 32, "salt": salt},
    ]
    wanted = {}
    for spec in specs:
        layout = dataclasses.replace(KV, page_tokens=spec["page_tokens"])
        space = pb.NamespaceSpec(model="m", **spec)
        engine = Engine(daemon.socket, layouts=[layout], namespace=space)
        told = [spec["weights_digest"].hex(), spec.get("adapter", ""), spec["page_tokens"]]
        wanted[engine.grant.root_digest.hex()] = [*told, "salt" in spec]
    spaces = ask(daemon, "ls")["namespaces"]
    fields = ("weights_digest", "adapter", "page_tokens", "salted")
    assert {each["root_digest"]: [each[name] for name in fields] for each in spaces} == wanted
    for words in (("ls",), ("ls", "--json"), ("status", "--json")):
        _, text = say(daemon, *words)
        assert "00010203" in text and "sql:1f1f1f1f" in text
        assert salt.decode() not in text and salt.hex() not in text


def test_explain_says_how_far_and_why(daemon: Running, engine: Engine) -> None:
    whole = ask(daemon, "explain", json.dumps(TOKENS))
    assert (whole["pages_asked"], whole["pages_present"]) == (PAGES, PAGES)
    branch = [*TOKENS[: 64 * 4], *(token + 1 for token in TOKENS[64 * 4 :])]
    part = ask(daemon, "explain", json.dumps(branch))
    assert (part["pages_asked"], part["pages_present"]) == (PAGES, 4)
    assert part["ends_because"] != whole["ends_because"]
    code, text = say(daemon, "explain", path_hashes(engine.grant.root_digest, branch).hex())
    assert code == 0
    assert part["ends_because"] in text


def test_check_of_a_filled_daemon_verifies_every_block(daemon: Running, engine: Engine) -> None:
    found = ask(daemon, "check", "--checksums")
    assert found["ok"], found
    assert found["blocks"] == found["blocks_verified"] == 2 * PAGES


def test_check_of_damaged_bytes_exits_with_1(daemon: Running, engine: Engine) -> None:
    hashes = path_hashes(engine.grant.root_digest, TOKENS)
    columns = engine.lookup(hashes, margin_pages=1).columns[0]
    segment, slot, _, _ = np.frombuffer(columns.places, PLACE)[0].tolist()
    memory = daemon.daemon.tier.memory(daemon.daemon.tier.index_of(segment))
    grant = engine.grant.layouts[0]
    shape = SegmentShape(daemon.daemon.tier.segment_bytes, grant.slot_bytes)
    offset = shape.offset(slot)
    memory[offset] ^= 1
    code, out = say(daemon, "check", "--checksums")
    memory[offset] ^= 1
    assert code == 1
    assert out.startswith("FAILED: 1 violations")


def test_namespace_disabled_misses_until_it_is_enabled(daemon: Running, engine: Engine) -> None:
    hashes = path_hashes(engine.grant.root_digest, TOKENS)
    assert engine.lookup(hashes).boundary_pages == PAGES
    assert say(daemon, "namespace", "disable", "m")[0] == 0
    assert engine.lookup(hashes).boundary_pages == 0
    assert ask(daemon, "ls")["namespaces"][0]["enabled"] is False
    assert say(daemon, "namespace", "enable", "m")[0] == 0
    assert engine.lookup(hashes).boundary_pages == PAGES


def test_remove_below_a_page_keeps_what_comes_before(daemon: Running, engine: Engine) -> None:
    hashes = path_hashes(engine.grant.root_digest, TOKENS)
    found = ask(daemon, "remove", "m", "--below", hashes[32 * 6 : 32 * 7].hex(), "--yes")
    assert found == {
        "blocks_removed": 2 * (PAGES - 6),
        "blocks_leased": 0,
        "may_come_back": False,
    }
    assert engine.lookup(hashes).boundary_pages == 6
    code, out = say(daemon, "remove", "m", "--below", hashes[32 * 6 : 32 * 7].hex(), "--yes")
    assert code == 2 and "no such page is stored in m" in out  # it is gone already
    assert ask(daemon, "remove", "m", "--yes")["blocks_removed"] == 2 * 6
    assert engine.lookup(hashes).boundary_pages == 0


@pytest.mark.parametrize(
    ("token", "code", "part"),
    [
        ("token-of-an-operator", 0, "ok: 10 pages"),
        ("token-of-a-tenant", 2, "check: for operators alone; the token is that of --token-file"),
        ("token-of-a-stranger", 2, "not valid"),
    ],
)
def test_check_over_tcp_is_for_operators(
    token: str, code: int, part: str, daemon: Running, engine: Engine, tmp_path: Path
) -> None:
    file = tmp_path / "mine"
    file.write_text(token)
    host, port = daemon.tcp
    words = ("check", "--address", f"tcp://{host}:{port}", "--token-file", str(file))
    found, out = printed(*words)
    assert found == code
    assert part in out


def test_status_over_tcp_tells_a_tenant_whose_sight_it_is(
    daemon: Running, engine: Engine, tmp_path: Path
) -> None:
    file = tmp_path / "mine"
    file.write_text("token-of-a-tenant")
    host, port = daemon.tcp
    code, out = printed("status", "--address", f"tcp://{host}:{port}", "--token-file", str(file))
    assert (code, out.splitlines()[1:]) == (
        0,
        ["sessions 0, pages 0", "not an operator: own domain only"],
    )


def test_ls_over_tcp_shows_a_tenant_nothing_of_others(
    daemon: Running, engine: Engine, tmp_path: Path
) -> None:
    file = tmp_path / "mine"
    file.write_text("token-of-a-tenant")
    host, port = daemon.tcp
    where = ["--address", f"tcp://{host}:{port}", "--token-file", str(file), "--json"]
    for command in ("ls", "status"):
        code, out = printed(command, *where)
        assert code == 0
        assert json.loads(out)["namespaces"] == []
        assert engine.grant.root_digest.hex() not in out


def test_check_over_tls_needs_the_right_authority(tmp_path: Path) -> None:
    made = certificate(tmp_path)
    file = tmp_path / "tokens"
    file.write_text("@admin token-of-an-operator\n")
    config = config_of(
        tmp_path,
        listen__tcp="127.0.0.1:0",
        auth__token_file=str(file),
        tls__certificate=made["certificate"],
        tls__key=made["key"],
    )
    with running(config) as daemon:
        url = f"tcp://localhost:{daemon.tcp[1]}"
        words = ["check", "--address", url, "--token-file", str(file), "--tls-ca"]
        assert printed(*words, made["certificate"]) == (0, "ok: 0 pages, 0 blocks\n")
        (tmp_path / "other").mkdir()
        code, out = printed(*words, certificate(tmp_path / "other")["certificate"])
        assert code == 3
        assert "TLS with localhost" in out
        code, out = printed(*words, str(file))
        assert code == 2
        assert f"--tls-ca {file}" in out


def test_metrics_of_a_filled_daemon_match_its_status(daemon: Running, engine: Engine) -> None:
    engine.lookup(path_hashes(engine.grant.root_digest, TOKENS))
    text = daemon.do(daemon.daemon.metrics.exposition).decode()
    for line in (
        "anchorstore_pages 10.0",
        'anchorstore_component_blocks{component="kv",tier="dram"} 10.0',
        'anchorstore_blocks_written_total{outcome="sealed"} 20.0',
        'anchorstore_lookups_total{outcome="hit"} 1.0',
        'anchorstore_lookup_hits_by_lineage_total{lineage="0"} 1.0',
        'anchorstore_call_seconds_count{method="lookup"} 1.0',
        'anchorstore_call_seconds_count{method="seal"} 1.0',
        'anchorstore_connections{carrier="unix"} 1.0',
    ):
        assert line in text.splitlines(), text
    assert "anchorstore_core_events_total{" not in text, "a counter of the core has no metric"
