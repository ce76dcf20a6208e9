"""Strict reading of a Hugging Face config: every number has a type and a limit.

A config.json comes from the network.  What it lacks gets the default of the family's own config
class; what it has must be sane, or ModelError names key, value and limit.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anchorstore.errors import ModelError

LAYERS_MAX = 1024
HIDDEN_MAX = 2**17
HEADS_MAX = 4096
DIM_MAX = 2**16
KERNEL_MAX = 64


class Fields:
    """A config mapping with checked reads.

    A key that is null counts as missing.  `path` prefixes the keys in messages.
    """

    def __init__(self, config: Mapping[str, Any], path: str = "") -> None:
        self.config = config
        self.path = path

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.config.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there, as null."""
        return key in self.config and self.config[key] is None

    def fail(self, key: str, rule: str) -> ModelError:
        """The error that says which rule `key` breaks."""
        return ModelError(f"config: {self.path}{key} is {self.config.get(key)!r:.120}, {rule}")

    def integer(self, key: str, default: int, high: int, low: int = 1) -> int:
        """An integer from `low` to `high`, or `default` where the key is missing."""
        if not self.has(key):
            return default
        value = self.config[key]
        if type(value) is not int:
            raise self.fail(key, "must be an integer")
        if not low <= value <= high:
            raise self.fail(key, f"must be {low} to {high}")
        return value

    def first_integer(self, keys: Sequence[str], default: int, high: int) -> int:
        """The integer under the first key that is there; names change between releases."""
        for key in keys:
            if self.has(key):
                return self.integer(key, default, high)
        return default

    def text(self, key: str, default: str) -> str:
        """A text, or `default` where the key is missing."""
        if not self.has(key):
            return default
        value = self.config[key]
        if not isinstance(value, str):
            raise self.fail(key, "must be text")
        return value

    def mapping(self, key: str) -> Fields | None:
        """The mapping under `key`, or None where it is missing."""
        if not self.has(key):
            return None
        value = self.config[key]
        if not isinstance(value, Mapping):
            raise self.fail(key, "must be a mapping")
        return Fields(value, f"{self.path}{key}.")

    def texts(self, key: str, length: int | None) -> list[str] | None:
        """A list of texts with `length` entries (None: 1 to LAYERS_MAX); None where missing."""
        values = self._list(key)
        if values is None:
            return None
        if not all(isinstance(value, str) for value in values):
            raise self.fail(key, "must be a list of texts")
        if length is not None and len(values) != length:
            raise self.fail(key, f"has {len(values)} entries, must have {length}, one a layer")
        return values

    def integers(self, key: str, low: int, high: int) -> list[int] | None:
        """A list of distinct integers from `low` to `high`; None where the key is missing."""
        values = self._list(key)
        if values is None:
            return None
        for value in values:
            if type(value) is not int:
                raise self.fail(key, "must be a list of integers")
            if not low <= value <= high:
                raise self.fail(key, f"names {value}, must be {low} to {high}")
        if len(set(values)) != len(values):
            raise self.fail(key, "names an entry twice")
        return values

    def _list(self, key: str) -> list[Any] | None:
        if not self.has(key):
            return None
        values = self.config[key]
        if not isinstance(values, list | tuple):
            raise self.fail(key, "must be a list")
        if not len(values) <= LAYERS_MAX:
            raise self.fail(key, f"has {len(values)} entries, limit {LAYERS_MAX}")
        return list(values)
