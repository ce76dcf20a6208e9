"""A loaded model with everything around it that reuse needs: spec, layouts, layer stack, taps.

::

    model directory --> config --> AnchorSpec --> anchor layout, kv layout
                    --> weights --> model --> TransformersStack (replay), ResidualTap (capture)

Runs one sequence at a time, on CPU, in eager torch code.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from anchorstore.errors import ModelError
from anchorstore.families import AnchorSpec, spec_from_config
from anchorstore.layout import AnchorLayout, KvLatentLayout, KvLayout
from anchorstore.model_digest import model_digest
from engine_adapter.capture import AnchorRecorder, ResidualTap
from engine_adapter.transformers.families import TransformersStack


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model ready for capture and replay.

    Attributes:
        model: the transformers model, in eval mode.
        spec: its groups and layouts.
        stack: its layers, for replay.
        tap: hooks before the first layer of every stored group.
        anchor_layout: blocks of kept rows, in the model's dtype.
        kv_layout: blocks of keys and values, in the model's dtype.
    """

    model: Any
    spec: AnchorSpec
    stack: TransformersStack
    tap: ResidualTap
    anchor_layout: AnchorLayout
    kv_layout: KvLayout | KvLatentLayout

    @classmethod
    def wrap(cls, model: Any, rows_per_page: int, page_tokens: int) -> LoadedModel:
        """Prepare a model that is already in memory; ModelError where its family is refused."""
        spec = spec_from_config(model.config.get_text_config(decoder=True).to_dict())
        if spec.stored_groups == 0:
            raise ModelError(f"{spec.model_type}: no group follows an attention layer")
        dtype = str(model.dtype).removeprefix("torch.")
        stack = TransformersStack(model, spec)
        return cls(
            model.eval(),
            spec,
            stack,
            ResidualTap(stack.stored_group_layers),
            spec.anchor_layout(rows_per_page, dtype, page_tokens),
            spec.kv_layout(dtype, page_tokens),
        )

    @classmethod
    def load(
        cls, directory: pathlib.Path, dtype: str, rows_per_page: int, page_tokens: int
    ) -> LoadedModel:
        """Load from a local directory; nothing is ever downloaded.

        Raises:
            ModelError: no such directory, weights that are not there, or a family that replay
                cannot handle.
        """
        path = directory / "config.json"
        if not path.is_file():
            raise ModelError(f"{directory} is no model directory: it has no config.json")
        try:
            config = json.loads(path.read_bytes())
        except ValueError as error:
            raise ModelError(f"{path.name} is not JSON: {error}") from error
        spec_from_config(config)  # says why a family is refused before any weight is read
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=getattr(torch, dtype), local_files_only=True
            )
        except OSError as error:
            raise ModelError(f"{directory} cannot be loaded: {error}") from error
        return cls.wrap(model, rows_per_page, page_tokens)

    @property
    def latent_rank(self) -> int:
        """MLA: columns of the compressed part of a kv row; 0 for keys and values a head."""
        if self.spec.kv_latent_width is None:
            return 0
        return int(self.model.config.get_text_config(decoder=True).kv_lora_rank)

    def digest(self, weights: bytes) -> bytes:
        """Names what it computes; `weights` is the digest of what it was loaded from."""
        config = self.model.config.get_text_config(decoder=True).to_dict()
        whole = getattr(self.model.config, "quantization_config", None)
        dtype = str(self.model.dtype).removeprefix("torch.")
        return model_digest(weights, config, dtype, quantization_config=whole)

    def new_cache(self) -> Any:
        """An empty transformers cache of the model's own kind."""
        return transformers.DynamicCache(config=self.model.config)

    def forward(
        self, tokens: Sequence[int], cache: Any, recorder: AnchorRecorder, logits_to_keep: int
    ) -> torch.Tensor:
        """Run `tokens` after what `cache` holds, into cache and recorder.

        Returns logits [min(logits_to_keep, len(tokens)), vocabulary], float32.
        """
        if recorder.position == 0 or self.stack.family.continues_in_one_pass:
            return self._pass(tokens, cache, recorder, logits_to_keep)
        logits = [self._pass([token], cache, recorder, 1) for token in tokens]
        return torch.cat(logits[-logits_to_keep:])

    @torch.no_grad()
    def _pass(
        self, tokens: Sequence[int], cache: Any, recorder: AnchorRecorder, logits_to_keep: int
    ) -> torch.Tensor:
        start = recorder.position
        positions = torch.arange(start, start + len(tokens)).unsqueeze(0)
        with self.tap.into(recorder, len(tokens)):
            output = self.model(
                input_ids=torch.tensor([list(tokens)]),
                position_ids=positions,
                cache=cache,
                use_cache=True,
                logits_to_keep=min(logits_to_keep, len(tokens)),
            )
        logits: torch.Tensor = output.logits[0]
        return logits.float()
