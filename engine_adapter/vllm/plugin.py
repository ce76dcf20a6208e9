"""The entry point: vLLM calls `register` in every process that it starts.

It must be cheap and may be called more than once.  A release of vLLM that is not known is left as
it is, with a warning; its connector is refused with the same reason.
"""

from __future__ import annotations

import logging

from engine_adapter.vllm.checks import version_refusal

log = logging.getLogger("anchorstore.vllm")

MODELS = {
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",
    "NemotronHForCausalLM": "nemotron_h",
}
"""vLLM's name of a model class -> module in models/ that taps it."""


def join_logs(ours: logging.Logger, theirs: logging.Logger) -> None:
    """Our lines go where vLLM's go, from the same level on, unless somebody has decided otherwise.

    vLLM gives handlers to its own logger alone; without this, reasons would be said to nobody.
    """
    if any(not isinstance(handler, logging.NullHandler) for handler in ours.handlers):
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    if theirs.handlers:
        ours.propagate = theirs.propagate
    if ours.level == logging.NOTSET:
        ours.setLevel(theirs.level)


def register() -> None:
    """Registers the tapped model classes under vLLM's own names."""
    import vllm
    from vllm import ModelRegistry

    join_logs(logging.getLogger("anchorstore"), logging.getLogger("vllm"))
    reason = version_refusal(vllm.__version__)
    if reason:
        log.warning("%s", reason)
        return
    known = set(ModelRegistry.get_supported_archs())
    for name, module in MODELS.items():
        if name in known:
            where = f"engine_adapter.vllm.models.{module}:Anchored{name}"
            ModelRegistry.register_model(name, where)
