"""The vectors behind each layer of a traced model, as transformers hands them out, and whether it does.

Of most models ``hidden_states`` are what goes into the first block and what stands behind each. That is tried, too:
with NaN for what one block gives, they must be finite up to that block, and NaN from there on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..bundle.traced import Block

ASKED = {"output_hidden_states": True}
"""What a model is told so that it hands them out."""


def hands_out_layers(model: nn.Module, inputs: Mapping[str, Tensor], blocks: Sequence[Block], width: int) -> bool:
    """Whether a token classifier's hidden state n + 1 is the output of block n, for each token."""
    real = inputs["attention_mask"].bool()
    for place, block in enumerate(blocks):
        try:
            states = _spoilt(model, inputs, block)
        except Exception:  # whatever a model raises that hands out none, or does not take NaN
            return False
        if any(not isinstance(each, Tensor) or each.shape != (*real.shape, width) for each in states):
            return False
        whole = [bool(torch.isfinite(each[real]).all()) for each in states]
        none = [not bool(torch.isfinite(each[real]).any()) for each in states]
        expected = [layer <= place for layer in range(len(blocks) + 1)]
        if whole != expected or none != [not each for each in expected]:
            return False
    return True


def _spoilt(model: nn.Module, inputs: Mapping[str, Tensor], block: Block) -> tuple[Any, ...]:
    """The hidden states of a model one of whose blocks gives NaN."""

    def spoil(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (torch.full_like(arguments[0], torch.nan),)

    handle = model.get_submodule(block.output).register_forward_pre_hook(spoil)
    try:
        with torch.no_grad():
            return tuple(model(**inputs, **ASKED).hidden_states)
    finally:
        handle.remove()
