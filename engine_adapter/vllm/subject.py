"""What the adapter reads of vLLM's request objects.  Only these attributes are relied on.  Pure.

request_id, all_token_ids, num_tokens, num_computed_tokens, prompt_token_ids, prompt_embeds,
mm_features, lora_request, cache_salt, skip_reading_prefix_cache
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from anchorstore.keys import SALT_BYTES_MAX
from engine_adapter.vllm.jobs import SpaceKey


def space_of(request: Any, adapter_of: Callable[[Any], str], epoch: bytes) -> SpaceKey:
    """Adapter and salt of a request; `epoch` keeps apart what was cached before a reset.

    A salt that is longer than a namespace takes stands there as its SHA-256.
    """
    salt = (request.cache_salt or "").encode(errors="surrogatepass")
    if epoch or len(salt) > SALT_BYTES_MAX:
        salt = hashlib.sha256(epoch + salt).digest()
    lora = request.lora_request
    return SpaceKey(adapter_of(lora) if lora is not None else "", salt)


def adapter_number(request: Any) -> int:
    """vLLM's number of the request's LoRA adapter; 0 for none."""
    return 0 if request.lora_request is None else int(request.lora_request.lora_int_id)


def unkeyable(request: Any, space: SpaceKey) -> str:
    """Why a request's pages have no name; "" where they have one."""
    if request.lora_request is not None and not space.adapter:
        return "adapter"
    if request.mm_features:
        return "multimodal"
    if request.prompt_token_ids is None or request.prompt_embeds is not None:
        return "prompt_embeds"
    return ""
