"""Dropout (Srivastava et al. 2014) as training has it, without what drawing it takes on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PARTS = 1 << 16
"""A rate is rounded to as many parts: that many values a sixteen-bit number has."""


def dropout(x: Tensor, rate: float) -> Tensor:
    """``x`` with each element zero with probability ``rate``, the others scaled so that the mean stays.

    On a CPU PyTorch draws one number after the other for every element, which takes longer than all else that dropout
    does; four elements share one draw of 64 bits here. Other devices draw as PyTorch does.
    """
    dropped = round(rate * PARTS)
    if x.device.type != "cpu" or dropped == PARTS:
        return nn.functional.dropout(x, rate)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    parts = draws.view(torch.int16)[: x.numel()].view(x.shape)  # −32768 to 32767, each as likely
    kept = (parts >= dropped - PARTS // 2).to(x.dtype)
    return x * kept.mul_(PARTS / (PARTS - dropped))
