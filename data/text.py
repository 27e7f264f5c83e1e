"""Text → token ids, with the checkpoint's own ``tokenizer.json`` and without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut
from .spec import InputSpec

UNLIMITED = 2**31


@dataclass(frozen=True)
class EncodedText:
    """One tokenised text.

    Attributes:
        ids, types: token ids and token-type ids, equally long.
        truncated: whether tokens were cut off to fit the model.
    """

    ids: list[int]
    types: list[int]
    truncated: bool

    @property
    def tokens(self) -> int:
        """Number of tokens, special ones included."""
        return len(self.ids)


class TextProcessor:
    """Tokenises and pads text for one model. Safe to use from many threads.

    Args:
        folder: holds ``tokenizer.json`` and, optionally, ``tokenizer_config.json``.
        architecture: of the model that reads the tokens.

    Raises:
        InputError: the tokenizer is missing, unreadable, or larger than the model's vocabulary.
    """

    def __init__(self, folder: Path, spec: InputSpec) -> None:
        from tokenizers import Tokenizer

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise InputError(
                f"{folder} holds no tokenizer.json; save the tokenizer with transformers 5 (save_pretrained writes it)"
            )
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the tokenizers library raises plain Exception for every malformed file
            raise InputError(f"cannot read {file}: {cut(error, 120)}") from error
        size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if size > spec.vocabulary:
            raise InputError(
                f"tokenizer has token ids up to {size - 1}, but the model's vocabulary has "
                f"{spec.vocabulary} entries; "
                "use the tokenizer the model was trained with"
            )
        self._spec = spec
        config = _configuration(folder)
        self.max_tokens = min(spec.max_sequence, int(config["model_max_length"]))
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length=self.max_tokens, direction=config.get("truncation_side", "right"))
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[Any], first: int = 0) -> list[EncodedText]:
        """Tokenise texts.

        Args:
            texts: the texts.
            first: index of the first one, for messages.

        Raises:
            InputError: an item is not a string, or is empty; its index is named.
        """
        for index, text in enumerate(texts, start=first):
            if not isinstance(text, str):
                raise InputError(f"input {index} is a {type(text).__name__}; this model reads text (str)")
            if not text.strip():
                raise InputError(f"input {index} is an empty text; expected at least one word")
            if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(f"input {index} holds a lone surrogate, which is no character; decode the text again")
        encodings = self._tokenizer.encode_batch(list(texts))
        for index, encoding in enumerate(encodings, start=first):
            if all(encoding.special_tokens_mask):
                raise InputError(
                    f"input {index}, {cut(texts[index - first])}, has no token the model knows; expected readable text"
                )
        return [EncodedText(item.ids, item.type_ids, bool(item.overflowing)) for item in encodings]

    def collate(self, items: Sequence[EncodedText]) -> dict[str, np.ndarray]:
        """Pad encoded texts to the longest of them.

        Returns:
            ``input_ids``, ``attention_mask`` and, where the model has it, ``token_type_ids``: each
            [B, T] int64.
        """
        shape = (len(items), max(item.tokens for item in items))
        arrays = {name: np.zeros(shape, np.int64) for name in self._spec.input_names}
        arrays["input_ids"][:] = self._spec.padding_token
        for row, item in enumerate(items):
            arrays["input_ids"][row, : item.tokens] = item.ids
            arrays["attention_mask"][row, : item.tokens] = 1
            if "token_type_ids" in arrays:
                arrays["token_type_ids"][row, : item.tokens] = item.types
        return arrays

    def describe(self) -> dict[str, Any]:
        """What another runtime needs to know to prepare the same tensors."""
        return {
            "modality": "text",
            "tokenizer": "processor/tokenizer.json",
            "max_tokens": self.max_tokens,
            "padding_token": self._spec.padding_token,
        }


def _configuration(folder: Path) -> dict[str, Any]:
    """The tokenizer's settings that matter here, checked; a missing length is one too large to matter."""
    file = folder / "tokenizer_config.json"
    config: Any = {}
    if file.is_file():
        try:
            config = json.loads(file.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file} is not JSON ({error}); save the tokenizer again") from error
    if not isinstance(config, dict):
        raise InputError(f"{file} is a JSON {type(config).__name__}; expected an object; save the tokenizer again")
    length, side = config.get("model_max_length", UNLIMITED), config.get("truncation_side", "right")
    if not isinstance(length, int | float) or not length >= 4:
        raise InputError(f"{file} has model_max_length = {cut(length)}; expected a number of tokens, 4 or more")
    if side not in ("left", "right"):
        raise InputError(f"{file} has truncation_side = {cut(side)}; expected 'left' or 'right'")
    return {"model_max_length": min(length, UNLIMITED), "truncation_side": side}
