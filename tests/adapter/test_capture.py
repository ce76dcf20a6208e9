"""Goal: the anchors of a page are the same however its tokens arrived, and so are its keys.
Method: one sequence through one model in one pass, in ragged chunks, and token by token; the
blocks of every page are compared with each other and with the residual stream itself.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from anchorstore.layout import KvLatentLayout
from engine_adapter.capture import AnchorRecorder
from engine_adapter.pages import kv_blocks, layer_tensors
from engine_adapter.transformers.model import LoadedModel
from engine_adapter.transformers.states import attention_tensors, put_attention_tensors
from tests.adapter.prefill import PAGE, load, prefill
from tests.adapter.zoo import FAMILY_NAMES, random_tokens

COUNT = 45
TOLERANCE = 1e-4  # float32 through eight layers, other shapes of the same products


@pytest.fixture(scope="module", params=FAMILY_NAMES)
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return load(request.param, rows=3)


def _pages(loaded: LoadedModel, chunks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Anchor and kv blocks of every whole page of COUNT tokens that came in `chunks`."""
    assert sum(chunks) == COUNT
    tokens, recorder = random_tokens(COUNT), AnchorRecorder(loaded.anchor_layout)
    cache = loaded.new_cache()
    start = 0
    for chunk in chunks:
        loaded.forward(tokens[start : start + chunk], cache, recorder, 1)
        start += chunk
    pages = COUNT // PAGE
    kv = kv_blocks(attention_tensors(cache, loaded.spec), loaded.kv_layout, 0, pages)
    return recorder.pages(0, pages), kv


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((found - expected).norm() / expected.norm()) < TOLERANCE


@pytest.mark.parametrize(
    "chunks", [[20, 3, 1, 1, 13, 7], [1] * COUNT, [8] * 5 + [5]], ids=["ragged", "decode", "pages"]
)
def test_capture_in_chunks_equals_capture_in_one_pass(
    loaded: LoadedModel, chunks: list[int]
) -> None:
    anchors, kv = _pages(loaded, chunks)
    whole_anchors, whole_kv = _pages(loaded, [COUNT])
    assert anchors.shape == (COUNT // PAGE, *loaded.anchor_layout.shape)
    assert kv.shape == (COUNT // PAGE, *loaded.kv_layout.shape)
    assert _close(anchors, whole_anchors)
    assert _close(kv, whole_kv)
    assert not _close(anchors.roll(1, dims=2), whole_anchors)  # the measure sees a shifted row


def test_capture_keeps_the_last_rows_of_each_page(loaded: LoadedModel) -> None:
    anchors, _ = _pages(loaded, [COUNT])
    truth = prefill(loaded, COUNT)
    for page in range(COUNT // PAGE):
        stop = (page + 1) * PAGE
        assert torch.equal(anchors[page], truth.anchors[:, stop - 3 : stop])


def test_kv_blocks_put_back_give_the_same_cache(loaded: LoadedModel) -> None:
    truth = prefill(loaded, PAGE * 5)
    layers = attention_tensors(truth.cache, loaded.spec)
    blocks = kv_blocks(layers, loaded.kv_layout, 0, 5)
    restored = loaded.new_cache()
    tensors = layer_tensors(blocks, loaded.kv_layout, loaded.latent_rank, torch.float32)
    put_attention_tensors(restored, loaded.spec, tensors)
    for found, expected in zip(attention_tensors(restored, loaded.spec), layers, strict=True):
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    later = kv_blocks(layers, loaded.kv_layout, 2, 4)
    assert torch.equal(later, blocks[2:4])


def test_kv_blocks_of_a_head_shard_are_its_heads(loaded: LoadedModel) -> None:
    layout = loaded.kv_layout
    if isinstance(layout, KvLatentLayout):
        assert loaded.spec.kv_latent_width is not None  # one latent row: there are no heads
        return
    truth = prefill(loaded, PAGE * 2)
    layers = attention_tensors(truth.cache, loaded.spec)
    whole = kv_blocks(layers, layout, 0, 2)
    shard = kv_blocks(layers, layout.with_heads(1, layout.heads), 0, 2)
    assert torch.equal(shard, whole[..., 1:, :])


def test_recorder_forgets_only_what_it_is_told_to() -> None:
    loaded = load("qwen3_5", rows=2)
    recorder, cache = AnchorRecorder(loaded.anchor_layout), loaded.new_cache()
    tokens = random_tokens(40)
    loaded.forward(tokens[:20], cache, recorder, 1)
    assert (recorder.first_page, recorder.ready_pages) == (0, 2)
    kept = recorder.pages(1, 2).clone()
    recorder.forget(1)
    loaded.forward(tokens[20:], cache, recorder, 1)
    assert (recorder.first_page, recorder.ready_pages) == (1, 5)
    assert torch.equal(recorder.pages(1, 2), kept)
    with pytest.raises(AssertionError):
        recorder.pages(0, 2)


def test_recorder_in_bfloat16_rounds_the_residual_stream() -> None:
    loaded = load("qwen3_5")
    narrow = dataclasses.replace(loaded.anchor_layout, dtype="bfloat16")
    exact, rounded = AnchorRecorder(loaded.anchor_layout), AnchorRecorder(narrow)
    tokens = random_tokens(PAGE)
    for recorder in (exact, rounded):
        loaded.forward(tokens, loaded.new_cache(), recorder, 1)
    assert torch.equal(rounded.pages(0, 1), exact.pages(0, 1).bfloat16())
