"""Goal: an engine resumes from another's pages, says truthfully how, and never depends on it.
Method: a real daemon as a process; engines that share nothing but its address; tiny random
models.  What was reused is counted exactly; outputs are compared with an engine without a store.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from anchorstore.client import Client
from anchorstore.errors import InvalidKey, ModelError
from anchorstore.testing.daemon import Daemon
from engine_adapter.budget import Budget
from engine_adapter.strategy import KvOnly, NoReuse, dense_tail, zero_state
from engine_adapter.transformers.engine import Engine
from engine_adapter.transformers.store import Miss, PageStore, Prefix
from tests.adapter.engines import DEFAULTS, EVERY_ROW, IMPATIENT, PAGE, engine_of, save_model
from tests.adapter.zoo import FAMILY_NAMES, random_tokens

SHARED = 20 * PAGE + 5
PROMPT = random_tokens(SHARED, seed=1)
BRANCH = PROMPT + random_tokens(30, seed=2)
NEW_TOKENS = 8


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def qwen(folder: pathlib.Path) -> pathlib.Path:
    return save_model("qwen3_5", folder)


def _plain(directory: pathlib.Path, tokens: list[int]) -> tuple[list[int], torch.Tensor]:
    """What an engine without a store generates."""
    engine = engine_of(directory, None)
    result = engine.generate(tokens, NEW_TOKENS, keep_logits=True)
    assert result.resume.miss == "no_store"
    assert result.logits is not None
    engine.close()
    return result.tokens, result.logits


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_engine_with_every_row_continues_as_if_it_had_computed_all(
    name: str, daemon: Daemon, folder: pathlib.Path
) -> None:
    directory = save_model(name, folder)
    writer = engine_of(directory, daemon, EVERY_ROW, salt=name.encode())
    assert writer.generate(PROMPT, 1).resume.miss == "not_stored"
    assert writer.counters["put_sealed"] == 2 * 20
    reader = engine_of(directory, daemon, EVERY_ROW, salt=name.encode())
    result = reader.generate(BRANCH, NEW_TOKENS, keep_logits=True)
    assert result.prompt_tokens == len(BRANCH)
    assert result.resume.miss == ""
    assert result.resume.shared_tokens == result.resume.reused_tokens == 20 * PAGE
    assert result.resume.rows_replayed == 20 * PAGE
    tokens, logits = _plain(directory, BRANCH)
    assert result.tokens == tokens
    assert result.logits is not None
    assert float((result.logits - logits).abs().max()) < 1e-2
    for engine in (writer, reader):
        engine.close()


def test_engine_at_the_defaults_reuses_the_shared_pages_less_the_margin(
    daemon: Daemon, qwen: pathlib.Path
) -> None:
    writer = engine_of(qwen, daemon, salt=b"defaults")
    writer.generate(PROMPT, 1)
    reader = engine_of(qwen, daemon, salt=b"defaults")
    for cut in (SHARED, 200, 192, 17):
        result = reader.generate([*PROMPT[:cut], 7, 8, 9], 1, store_pages=False)
        boundary = cut // PAGE * PAGE
        resume = boundary - PAGE
        assert result.resume.shared_tokens == (boundary if resume else 0), cut
        assert result.resume.reused_tokens == resume, cut
        assert result.resume.rows_replayed == -(-resume // 20), cut
    assert result.resume.miss == "short_prompt"  # one page, and the margin eats it
    whole = reader.generate(PROMPT[: 10 * PAGE], 1, store_pages=False)
    assert whole.resume.shared_tokens == 9 * PAGE  # the last token is computed
    for engine in (writer, reader):
        engine.close()


def test_engine_controls_reuse_what_they_say(daemon: Daemon, qwen: pathlib.Path) -> None:
    engine = engine_of(qwen, daemon, EVERY_ROW, salt=b"controls")
    engine.generate(PROMPT, 1)
    exact = engine.generate(BRANCH, 4, strategy=NoReuse(EVERY_ROW), store_pages=False)
    assert (exact.resume.miss, exact.resume.reused_tokens, exact.session.lineage) == (
        *("not_asked", 0),
        0,
    )
    margin = Budget(PAGE, 1.0, 1, 2 * PAGE, PAGE)
    kv_only = engine.generate(BRANCH, 4, strategy=KvOnly(margin), store_pages=False)
    assert (kv_only.resume.reused_tokens, kv_only.resume.rows_replayed) == (18 * PAGE, 0)
    zero = engine.generate(BRANCH, 4, strategy=zero_state(margin), store_pages=False)
    assert (zero.resume.reused_tokens, zero.resume.rows_replayed) == (20 * PAGE, 0)
    dense = engine.generate(BRANCH, 4, strategy=dense_tail(50, PAGE, PAGE), store_pages=False)
    assert (dense.resume.reused_tokens, dense.resume.rows_replayed) == (19 * PAGE, 50)
    assert {result.session.lineage for result in (kv_only, zero, dense)} == {1}
    with pytest.raises(ModelError, match="4 rows a page, the engine keeps 16"):
        engine.generate(BRANCH, 1, strategy=engine_of(qwen, None).strategy)
    engine.close()


def test_zero_state_without_a_margin_gives_other_logits(daemon: Daemon, qwen: pathlib.Path) -> None:
    """The control of the exactness test: a lost state is visible on these models."""
    engine = engine_of(qwen, daemon, EVERY_ROW, salt=b"zero")
    engine.generate(PROMPT, 1)
    zero = zero_state(EVERY_ROW)
    result = engine.generate(BRANCH, NEW_TOKENS, strategy=zero, keep_logits=True)
    _, logits = _plain(qwen, BRANCH)
    assert result.logits is not None
    assert float((result.logits[0] - logits[0]).abs().max()) > 0.1
    engine.close()


def test_session_going_on_uses_its_own_cache_and_saves_what_it_decodes(
    daemon: Daemon, qwen: pathlib.Path
) -> None:
    writer = engine_of(qwen, daemon, EVERY_ROW, salt=b"turns")
    first = writer.generate(PROMPT, 2 * PAGE)
    turn = random_tokens(10, seed=3)
    second = writer.generate(turn, NEW_TOKENS, session=first.session)
    assert second.resume.miss == "resident"
    assert second.prompt_tokens == SHARED + 2 * PAGE + len(turn)
    everything = PROMPT + first.tokens + turn
    assert second.tokens == _plain(qwen, everything)[0]
    assert second.session.tokens == everything + second.tokens[:-1]
    reader = engine_of(qwen, daemon, EVERY_ROW, salt=b"turns")
    again = reader.generate(everything, NEW_TOKENS, store_pages=False)
    assert again.resume.reused_tokens == (len(everything) - 1) // PAGE * PAGE
    assert again.tokens == second.tokens
    for engine in (writer, reader):
        engine.close()


def test_engine_with_other_weights_salt_or_rows_never_hits_wrongly(
    daemon: Daemon, qwen: pathlib.Path, folder: pathlib.Path
) -> None:
    engine = engine_of(qwen, daemon, salt=b"mine")
    engine.generate(PROMPT, 1)
    others = {
        "weights": engine_of(save_model("qwen3_5", folder, seed=1), daemon, salt=b"mine"),
        "salt": engine_of(qwen, daemon, salt=b"yours"),
        "adapter": engine_of(qwen, daemon, salt=b"mine", adapter="lora"),
        "name": engine_of(qwen, daemon, salt=b"mine", model_name="other"),
    }
    for what, other in others.items():
        result = other.generate(BRANCH, 1, store_pages=False)
        assert (result.resume.miss, result.resume.reused_tokens) == ("not_stored", 0), what
        other.close()
    rows = engine_of(qwen, daemon, EVERY_ROW, salt=b"mine")
    result = rows.generate(BRANCH, 1, store_pages=False)
    assert result.resume.miss == "incomplete"  # kv is shared between layouts, anchors are not
    kv_only = rows.generate(BRANCH, 1, strategy=KvOnly(EVERY_ROW), store_pages=False)
    assert kv_only.resume.reused_tokens == 20 * PAGE
    rows.close()
    engine.close()


def test_engine_with_a_fallback_uses_it_only_where_the_window_is_missing(
    daemon: Daemon, qwen: pathlib.Path
) -> None:
    engine = engine_of(qwen, daemon, salt=b"fallback")
    engine.generate(PROMPT, 1)
    other = engine_of(qwen, daemon, EVERY_ROW, salt=b"fallback", fallback=KvOnly(DEFAULTS))
    result = other.generate(BRANCH, 1)
    assert (result.resume.strategy, result.resume.reused_tokens) == ("kv_only", 19 * PAGE)
    assert (result.resume.lineage, result.resume.miss) == (1, "")
    assert (other.counters["miss_incomplete"], other.counters["hit"]) == (1, 1)
    unknown = other.generate(random_tokens(200, seed=9), 1, store_pages=False)
    assert (unknown.resume.strategy, unknown.resume.miss) == ("", "not_stored")
    same = engine.generate(BRANCH, 1)
    assert (same.resume.strategy, same.resume.rows_replayed) == ("suffix_replay", 16)
    for each in (engine, other):
        each.close()


def test_engine_without_a_daemon_gives_the_plain_output(
    tmp_path: pathlib.Path, qwen: pathlib.Path
) -> None:
    engine = engine_of(qwen, f"unix://{tmp_path}/nobody.sock", options=IMPATIENT)
    result = engine.generate(BRANCH, NEW_TOKENS)
    assert result.resume.miss == "unreachable"
    assert result.tokens == _plain(qwen, BRANCH)[0]
    assert engine.counters["miss_unreachable"] == 1
    engine.close()


def test_engine_whose_daemon_comes_late_attaches_and_stores(
    tmp_path: pathlib.Path, qwen: pathlib.Path
) -> None:
    late = Daemon(tmp_path)
    engine = engine_of(qwen, late, options=IMPATIENT)
    assert engine.generate(PROMPT, 1).resume.miss == "unreachable"
    with late:
        reasons: list[str] = []
        while engine.counters["put_sealed"] == 0:
            assert len(reasons) < 100, reasons
            reasons.append(engine.generate(PROMPT, 1).resume.miss)
        assert engine.generate(BRANCH, 1).resume.reused_tokens == 19 * PAGE
        engine.close()


def test_engine_whose_prompt_exceeds_a_call_reuses_what_one_call_names(
    tmp_path: pathlib.Path, qwen: pathlib.Path
) -> None:
    with Daemon(tmp_path, settings={"limits.pages_per_call": "7"}) as daemon:
        engine = engine_of(qwen, daemon)
        engine.generate(PROMPT, 1)
        assert engine.counters["put_sealed"] == 2 * 20  # in three calls
        result = engine.generate(BRANCH, NEW_TOKENS, store_pages=False)
        assert result.resume.shared_tokens == 7 * PAGE
        engine.close()


def test_engine_in_bfloat16_keeps_blocks_in_bfloat16(daemon: Daemon, qwen: pathlib.Path) -> None:
    wide = engine_of(qwen, daemon, salt=b"dtype")
    wide.generate(PROMPT, 1)
    narrow = engine_of(qwen, daemon, dtype="bfloat16", salt=b"dtype")
    assert narrow.loaded.kv_layout.block_bytes() * 2 == wide.loaded.kv_layout.block_bytes()
    assert narrow.generate(PROMPT, 1).resume.miss == "not_stored"  # other layouts
    again = engine_of(qwen, daemon, dtype="bfloat16", salt=b"dtype")
    result = again.generate(BRANCH, NEW_TOKENS, keep_logits=True)
    assert result.resume.reused_tokens == 19 * PAGE
    assert result.logits is not None
    assert torch.isfinite(result.logits).all()
    for engine in (wide, narrow, again):
        engine.close()


@pytest.mark.parametrize("end", ["kill", "freeze", "restart"])
def test_engine_whose_daemon_is_lost_gives_the_plain_output(
    end: str, tmp_path: pathlib.Path, qwen: pathlib.Path
) -> None:
    with Daemon(tmp_path) as daemon:
        engine = engine_of(qwen, daemon, options=IMPATIENT)
        engine.generate(PROMPT, 1)
        getattr(daemon, end)()
        result = engine.generate(BRANCH, NEW_TOKENS)
        assert result.resume.reused_tokens == 0
        assert result.resume.miss in {"unreachable", "deadline", "boot", "not_stored"}
        assert result.tokens == _plain(qwen, BRANCH)[0]
        daemon.thaw()
        engine.close()


class _Interrupted:
    """A client whose daemon is started anew between a lookup and the reading of what it found."""

    def __init__(self, client: Client, daemon: Daemon) -> None:
        self._client, self._daemon = client, daemon

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def lookup(self, *args: Any, **kwargs: Any) -> Any:
        window = self._client.lookup(*args, **kwargs)
        self._daemon.restart()
        for _ in range(1_000):  # until the client has noticed: nothing is stored there
            if self._client.lookup(*args, **kwargs).miss == "not_stored":
                break
            time.sleep(0.01)
        return window


def test_prefix_whose_daemon_was_replaced_under_the_copy_is_a_miss(
    tmp_path: pathlib.Path, qwen: pathlib.Path
) -> None:
    with Daemon(tmp_path) as daemon:
        engine = engine_of(qwen, daemon, options=IMPATIENT)
        engine.generate(PROMPT, 1)
        loaded, store = engine.loaded, engine.store
        assert store is not None
        assert isinstance(store.find(BRANCH, engine.strategy), Prefix)
        client: Any = _Interrupted(store.client, daemon)
        broken = PageStore(client, loaded.kv_layout, loaded.anchor_layout, None)
        found = broken.find(BRANCH, engine.strategy)
        assert isinstance(found, Miss)
        assert found.reason == "BootChanged"
        assert broken.counters == {"miss_BootChanged": 1}
        interrupted = Engine(loaded, broken, engine.strategy)
        assert interrupted.generate(BRANCH, NEW_TOKENS).tokens == _plain(qwen, BRANCH)[0]
        engine.close()


def test_engine_over_tcp_resumes_as_over_the_socket(daemon: Daemon, qwen: pathlib.Path) -> None:
    near = engine_of(qwen, daemon, EVERY_ROW, salt=b"tcp")
    near.generate(PROMPT, 1)
    far = engine_of(qwen, daemon.tcp_address, EVERY_ROW, salt=b"tcp")
    result = far.generate(BRANCH, NEW_TOKENS)
    assert result.resume.reused_tokens == 20 * PAGE
    assert result.tokens == _plain(qwen, BRANCH)[0]
    for engine in (near, far):
        engine.close()


def test_engine_refuses_prompts_and_models_it_cannot_handle(
    tmp_path: pathlib.Path, daemon: Daemon, qwen: pathlib.Path
) -> None:
    engine = engine_of(qwen, daemon)
    with pytest.raises(ModelError, match="the prompt is empty"):
        engine.generate([], 1)
    with pytest.raises(InvalidKey, match="token id -1 is outside"):
        engine.generate([-1] * 3 * PAGE, 1)
    with pytest.raises(ModelError, match="no model directory"):
        Engine.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 8}')
    with pytest.raises(ModelError, match="no linear-attention layer"):
        Engine.load(tmp_path)
    (tmp_path / "config.json").write_text((qwen / "config.json").read_text())
    with pytest.raises(ModelError, match="cannot be loaded"):
        Engine.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not JSON"):
        Engine.load(tmp_path)
    engine.close()
