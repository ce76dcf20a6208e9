"""Which LoRA adapter vLLM holds under a number.  No torch, no vLLM import.

::

    first request of a number   digest of its files, as they are now     kept with their stamps
    further ones, same files    the same name, without reading them
    the files have changed,     no name: vLLM may hold the old ones (it loads a number once) or
    or the path                 the new ones (it drops the least recently used and loads again)
    load_inplace                digest anew: vLLM reads them anew

What is left: files that change between the number's loading and its first request here, or the
other way round, and requests under way while their adapter is replaced in place.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from typing import Any

from anchorstore.errors import ModelError
from anchorstore.model_digest import adapter_digest, adapter_stamps

log = logging.getLogger("anchorstore.vllm")

NAME_CHARACTERS_MAX = 128


@dataclasses.dataclass(slots=True)
class Held:
    """An adapter under its number; `name` is "" where it is not known."""

    path: str
    stamps: list[list[Any]]
    name: str


class Adapters:
    """Names of LoRA adapters: what operators call them, and what their files are."""

    def __init__(self, config: Any) -> None:
        """`config`: vLLM's LoRA configuration, None without one: what it makes of the files."""
        self._effective = {
            "dtype": str(getattr(config, "lora_dtype", "")),
            "modules": sorted(getattr(config, "target_modules", None) or ()),
        }
        self._held: dict[int, Held] = {}

    def __call__(self, lora: Any) -> str:
        """The name of a request's adapter; "" where its pages have none."""
        directory = pathlib.Path(lora.lora_path)
        held = None if lora.load_inplace else self._held.get(lora.lora_int_id)
        if held is None:
            held = self._held[lora.lora_int_id] = self._first(lora, directory)
        elif held.name and not _stands(held, lora.lora_path, directory):
            log.warning("adapter %r is cached no more: its files have changed", lora.lora_name)
            held.name = ""
        return held.name

    def _first(self, lora: Any, directory: pathlib.Path) -> Held:
        try:
            stamps = adapter_stamps(directory)
            return Held(lora.lora_path, stamps, self._name(lora, directory))
        except ModelError as error:
            log.warning("adapter %r is not cached: %s", lora.lora_name, error)
            return Held(lora.lora_path, [], "")

    def _name(self, lora: Any, directory: pathlib.Path) -> str:
        is_3d = bool(lora.is_3d_lora_weight)
        digest = adapter_digest(directory, is_3d=is_3d, **self._effective)
        shown = lora.lora_name[:NAME_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
        return f"{shown}:{digest.hex()}"


def _stands(held: Held, path: str, directory: pathlib.Path) -> bool:
    """Whether the adapter's files are those that its name was taken of."""
    try:
        return held.path == path and held.stamps == adapter_stamps(directory)
    except ModelError:
        return False
