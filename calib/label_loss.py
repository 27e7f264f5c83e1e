"""The loss of a multi-label model: for plans and for tuning.

Each label is a decision of its own, so that an example's loss is the mean over labels of the cross-entropy of
1 / (1 + exp(−z)): what transformers trains such models with. A likelihood is that of all labels of an example, their
sum: each label is a softmax over two classes with the logits 0 and z (:func:`label_pairs`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def label_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each example, nats, [..., B] from logits [..., B, C] and labels [B, C] bool."""
    rows = logits.float()
    found = binary_cross_entropy_with_logits(rows, labels.to(rows.dtype).expand_as(rows), reduction="none")
    return found.mean(dim=-1)


def label_pairs(logits: Tensor) -> Tensor:
    """The logits of "does not apply" and "applies", [..., C, 2], from those of labels [..., C]."""
    return torch.stack([torch.zeros_like(logits), logits], dim=-1)
