"""Text to token ids for a model directory: its own tokenizer, or bytes where it has none."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from anchorstore.errors import ModelError

BYTE_VALUES = 256
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


@dataclasses.dataclass(frozen=True)
class TextCodec:
    """Encodes text for one model.

    Attributes:
        tokenizer: the transformers tokenizer; None encodes UTF-8 bytes as ids 0 to 255.
        description: what it is, for people.
    """

    tokenizer: Any | None
    description: str

    @classmethod
    def load(cls, directory: pathlib.Path) -> TextCodec:
        """The codec of a model directory; ModelError where its vocabulary has no room for bytes."""
        if any((directory / name).is_file() for name in _TOKENIZER_FILES):
            import transformers

            tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
            return cls(tokenizer, "its own tokenizer")
        config = directory / "config.json"
        if not config.is_file():
            raise ModelError(f"{directory} is no model directory: it has no config.json")
        found = json.loads(config.read_text(encoding="utf-8"))
        size = found.get("vocab_size", found.get("text_config", {}).get("vocab_size", 0))
        if size < BYTE_VALUES:
            raise ModelError(
                f"{directory} has no tokenizer and a vocabulary of {size}: bytes need {BYTE_VALUES}"
            )
        return cls(None, "a token is a byte")

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens."""
        if self.tokenizer is None:
            return list(text.encode())
        return list(self.tokenizer.encode(text, add_special_tokens=False))
