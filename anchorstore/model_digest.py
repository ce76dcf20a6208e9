"""Digests of what is computed: of a model with its configuration, of a LoRA adapter with its own.

::

    weights digest --+                         adapter_model.safetensors --+
    configuration  --+--> model digest         adapter_config.json       --+--> adapter digest
                     (in the namespace, as its weights)              (in the name of the adapter)

Equal weights compute something else under another base of the rotary embedding, another dtype or
another alpha.  What cannot change a number (paths, versions) is left out; what might stays in: a
needless difference costs a miss, a missing one a wrong answer.  docs/formats.md, section 6.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from anchorstore.errors import ModelError
from anchorstore.keys import canonical_cbor
from anchorstore.weights import digest_of_files, stamps_of

MODEL_FORMAT = "anchorstore/model/1"
ADAPTER_FORMAT = "anchorstore/adapter/1"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
CONFIG_BYTES_MAX = 2**20

NAMES = frozenset(
    (
        "_name_or_path",
        "name_or_path",
        "base_model_name_or_path",
        "_commit_hash",
        "transformers_version",
        "peft_version",
    )
)
"""Keys, at any depth, that say where something lies or who wrote it."""

DTYPES = frozenset(("dtype", "torch_dtype"))
"""Keys of a model's configuration that repeat, or are overruled by, the dtype it runs in."""


def model_digest(weights: bytes, config: Mapping[str, Any], dtype: str, **effective: Any) -> bytes:
    """32 bytes that name the function that a model computes.

    Args:
        weights: the weights digest.
        config: the text model's configuration, as it is after every override.
        dtype: that the model runs in, "bfloat16".
        effective: whatever else changes its numbers; what is None or empty counts as absent.

    Raises:
        ModelError: a value that reads differently in every process.
    """
    described = {key: value for key, value in config.items() if key not in DTYPES}
    others = {key: value for key, value in effective.items() if value not in (None, "", (), {})}
    text = canonical_json({"config": described, "dtype": dtype, **others})
    fields = {"format": MODEL_FORMAT, "weights": weights, "config": text}
    return hashlib.sha256(canonical_cbor(fields)).digest()


def adapter_digest(directory: pathlib.Path, **effective: Any) -> bytes:
    """32 bytes that name a LoRA adapter: its tensors and its adapter_config.json.

    `effective`: what else changes what the engine makes of it.  ModelError where a file is not
    there, is not what it should be, or changed meanwhile.
    """
    before = adapter_stamps(directory)
    path, tensors = (directory / name for name in ADAPTER_FILES)
    weights = digest_of_files(directory, [tensors])
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ModelError(f"{path}: more than {CONFIG_BYTES_MAX} bytes")
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no adapter's configuration: {error}") from error
    if adapter_stamps(directory) != before:
        raise ModelError(f"{directory}: the adapter changed while it was read")
    text = canonical_json({"config": config, **effective})
    fields = {"format": ADAPTER_FORMAT, "weights": weights, "config": text}
    return hashlib.sha256(canonical_cbor(fields)).digest()


def adapter_stamps(directory: pathlib.Path) -> list[list[Any]]:
    """What tells the adapter's files from others put in their place; ModelError for none."""
    return stamps_of([directory / name for name in ADAPTER_FILES])


def canonical_json(value: Any) -> str:
    """One text for one value: keys sorted, no spaces, ASCII, without `NAMES`."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """The same of what JSON has; ModelError where the text would hold an address in memory."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if key not in NAMES}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(each) for each in value), key=canonical_json)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if hasattr(value, "to_dict") and not isinstance(value, type):
        return _plain(value.to_dict())
    text = str(value)
    if " at 0x" in text:
        raise ModelError(f"the configuration holds {text:.200}, which names nothing")
    return text
