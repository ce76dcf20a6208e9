"""Keys and values of whole pages: a model's tensors into kv blocks and back.

::

    of a sequence   a layer's keys, values      [heads, tokens, dim]       as an engine keeps them
    of a page       kv block        [attention layer][k, v][token][head][dim]      KvLayout
    MLA             kv block        [attention layer][token][latent + rotary]      KvLatentLayout

The order inside a block is the store's, the same for every engine (docs/formats.md).  MLA models
hand over their two parts (compressed latent, rotary) as one head each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anchorstore.layout import KvLatentLayout, KvLayout

LayerTensors = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""For each attention layer its keys and values [heads, tokens, dim] (MLA: latent, rotary)."""


def kv_blocks(
    layers: LayerTensors, layout: KvLayout | KvLatentLayout, first_page: int, stop_page: int
) -> torch.Tensor:
    """Blocks [pages, *layout.shape] of pages [first, stop), in the layout's dtype."""
    page, pages = layout.page_tokens, stop_page - first_page
    dtype = getattr(torch, layout.dtype)
    blocks = torch.empty((pages, *layout.shape), dtype=dtype)
    tokens = slice(first_page * page, stop_page * page)
    for index, (keys, values) in enumerate(layers):
        if isinstance(layout, KvLatentLayout):
            row = torch.cat([keys[0, tokens], values[0, tokens]], dim=-1)
            blocks[:, index] = row.reshape(pages, page, layout.width)
            continue
        for part, tensor in enumerate((keys, values)):
            heads = tensor[layout.head_start : layout.head_stop, tokens]
            split = heads.reshape(heads.shape[0], pages, page, layout.head_dim)
            blocks[:, index, part] = split.permute(1, 2, 0, 3)
    return blocks


def layer_tensors(
    blocks: torch.Tensor, layout: KvLayout | KvLatentLayout, latent_width: int, dtype: torch.dtype
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The inverse of kv_blocks for `blocks` [pages, *layout.shape]: keys and values a layer.

    `latent_width`: for MLA the columns of the first part; ignored else.
    """
    pages = blocks.shape[0]
    tokens = pages * layout.page_tokens
    if isinstance(layout, KvLatentLayout):
        rows = blocks.transpose(0, 1).reshape(layout.layers, 1, tokens, layout.width).to(dtype)
        return [(row[..., :latent_width], row[..., latent_width:]) for row in rows]
    heads = layout.head_stop - layout.head_start
    shape = (layout.layers, 2, heads, tokens, layout.head_dim)
    both = blocks.permute(1, 2, 4, 0, 3, 5).reshape(shape).to(dtype)
    return [(layer[0], layer[1]) for layer in both]
