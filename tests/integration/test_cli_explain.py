"""Goal: `explain` reads a prompt in every form it is written in, asks for its path, and shows what
matches; what is no prompt is refused with the reason.
Method: main() against a daemon of prepared answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from anchorstore.keys import path_hashes
from anchorstore.testing.canned import Answer, CannedDaemon
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2, store_pb2
from tests.integration.harness import Say

ROOT_A, ROOT_B = bytes(range(32)), b"\xff" * 32
SPACES = [
    admin_pb2.NamespaceStatus(domain="team-a", model="qwen", root_digest=ROOT_A),
    admin_pb2.NamespaceStatus(domain="team-b", model="qwen", root_digest=ROOT_B, salted=True),
]
ANSWERS: dict[Method, Answer] = {
    Method.LIST: admin_pb2.ListResponse(namespaces=SPACES),
    Method.EXPLAIN: admin_pb2.ExplainResponse(
        pages_asked=3,
        pages_present=2,
        layouts=[
            admin_pb2.LayoutMatch(
                component=store_pb2.COMPONENT_KV,
                layout_digest=bytes(32),
                shard=0x0003_0004,
                pages=2,
                leading_pages=1,
                lineage_most=3,
                tiers=[
                    admin_pb2.TierPages(tier="dram", pages=1),
                    admin_pb2.TierPages(tier="nvme", pages=2),
                ],
            )
        ],
        ends_because="page 2 is missing",
    ),
}
TOKENS = list(range(130))
HASHES = path_hashes(ROOT_A, TOKENS)
SALTED = json.dumps({"prompt": TOKENS, "cache_salt": "alice"})


@pytest.mark.parametrize(
    "prompt",
    [
        ",".join(map(str, TOKENS)),
        json.dumps(TOKENS),
        " ".join(map(str, TOKENS)),
        HASHES.hex(),
        f"{HASHES[:32].hex()}\n{HASHES[32:].hex().upper()}\n",
        json.dumps([HASHES[:32].hex(), HASHES[32:].hex()]),
        json.dumps({"model": "qwen", "prompt": TOKENS, "max_tokens": 1}),
    ],
    ids=["commas", "json", "spaces", "hashes", "hash-lines", "hash-json", "body"],
)
@pytest.mark.parametrize("is_in_a_file", [False, True])
def test_explain_of_tokens_or_hashes_asks_for_their_path(
    prompt: str, is_in_a_file: bool, say: Say, socket_path: Path, tmp_path: Path
) -> None:
    argument = prompt
    if is_in_a_file:
        argument = str(tmp_path / "prompt")
        Path(argument).write_text(prompt)
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        code, out, err = say("explain", argument, "--namespace", "team-a/qwen")
    assert (code, err) == (0, "")
    request = daemon.requests[-1][1]
    assert isinstance(request, admin_pb2.ExplainRequest)
    assert (request.root_digest, request.path_hashes) == (ROOT_A, HASHES)
    assert "present    2 pages, 128 tokens" in out
    assert (
        "kv layout 000000000000, head 3: 2 of 3 pages, 1 up to the first hole, lineage 0 to 3, "
        "1 in dram, 2 in nvme\n"
    ) in out
    assert "\nends       page 2 is missing\n" in out


def test_explain_with_other_pages_hashes_by_them(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        words = ("explain", "1 2 3 4", "--namespace", "0001", "--page-tokens", "2", "--json")
        _, out, _ = say(*words)
    request = daemon.requests[-1][1]
    assert isinstance(request, admin_pb2.ExplainRequest)
    assert request.path_hashes == path_hashes(ROOT_A, [1, 2, 3, 4], 2)
    assert json.loads(out)["ends_because"] == "page 2 is missing"


def test_explain_of_a_salted_body_asks_in_a_salted_namespace(say: Say, socket_path: Path) -> None:
    with CannedDaemon(socket_path, ANSWERS) as daemon:
        code, _, err = say("explain", SALTED, "--namespace", "team-b/qwen")
    assert (code, err) == (0, "")
    request = daemon.requests[-1][1]
    assert isinstance(request, admin_pb2.ExplainRequest) and request.root_digest == ROOT_B


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("hello world",), "neither token ids nor path hashes"),
        (("no-such-file.json",), "names no file"),
        (("ab" * 31,), "64 hexadecimal letters"),
        (("",), "prompt is empty"),
        (("1,2,3", "--namespace", "0001"), "shorter than one page of 64 tokens"),
        (("1,2,3", "--page-tokens", "0"), "0 is out of range, must be 1 to"),
        (("[1,2",), "prompt starts as a JSON list and is none: "),
        (("[1 2]",), "prompt starts as a JSON list and is none: "),
        (("[[1, 2]]",), "prompt holds 1 prompts: ask for one at a time"),
        (("[true]",), "not true"),
        (('{"messages": []}', "--tokenizer", "/does/not/exist"), "is the body of a chat"),
        (("nosuch.json", "--tokenizer", "/does/not/exist"), "taken as text, no file has that name"),
        (("1,2", "--namespace", "000"), "'000': none fits, a root digest's start has 4 letters"),
        ((SALTED, "--namespace", "team-a/qwen"), "prompt has a cache_salt, and team-a/qwen"),
        (("1,2]",), "neither token ids nor path hashes"),
        (("/",), "prompt / is a folder"),
        (('{"prompt": "1,2,3"}',), 'prompt: its "prompt" is text, which needs --tokenizer DIR'),
        (('{"prompt": ["a b"]}',), 'prompt: its "prompt" "[\\"a b\\"]" is neither'),
        ((sys.executable,), f"prompt file {sys.executable} is not UTF-8 text"),
        (("text", "--tokenizer", "/does/not/exist"), "--tokenizer /does/not/exist: no such folder"),
        ((f"{2**31} " * 64, "--namespace", "0001"), "outside 0..2147483647"),
        ((",".join(map(str, TOKENS)),), "no namespace was named: 2 fit"),
    ],
)
def test_explain_of_a_wrong_prompt_exits_with_2_and_the_reason(
    words: tuple[str, ...], reason: str, say: Say, socket_path: Path
) -> None:
    with CannedDaemon(socket_path, ANSWERS):
        code, _, err = say("explain", *words)
    assert code == 2
    assert reason in err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ('{"ids": [1]}', 'is a JSON object without "prompt"'),
        ('{"messages": []}', "is the body of a chat"),
        ('{"prompt": [1', "starts as a JSON object and is none"),
        ('{"prompt": {}}', 'is a JSON object without "prompt"'),
        ("[1, 2", "starts as a JSON list and is none"),
    ],
)
def test_explain_of_a_file_without_a_prompt_names_the_file(
    text: str, reason: str, say: Say, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.json"
    file.write_text(text)
    code, _, err = say("explain", str(file))
    assert code == 2
    assert err.startswith(f"anchorstore explain: prompt file {file} ")
    assert reason in err
    assert "names no file" not in err
