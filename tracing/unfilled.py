"""A model that is about to get its weights: nothing is drawn at random for them first.

For a base-sized model that takes a second or two.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

DRAWING = "normal_", "uniform_", "erfinv_"
"""What drawing functions are called, or end in (``kaiming_uniform_``), in PyTorch and in transformers, which has some
of its own; the inverse error function is of truncated normal numbers."""


class Unfilled(TorchFunctionMode):
    """Within it, in this thread, parameters are not filled with random numbers; buffers, which may stay, are."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        filled = args[0] if args else given.get("tensor")
        if isinstance(filled, nn.Parameter) and getattr(function, "__name__", "").endswith(DRAWING):
            return filled
        return function(*args, **given)
