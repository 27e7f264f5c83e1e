"""Losses of scores and labels, for plans and for tuning.

*Relevance*, if all labels of a score are 0 or 1: the cross-entropy of 1 / (1 + exp(−z)) for any activation, which is
that of a softmax over the logits 0 and z. *Regression*: the squared error of the activated score. *Multi-label*: the
mean cross-entropy over independent labels; the likelihood of an example is the product over its labels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..tasks import ScoreActivation
from ..tasks.regression import Loss


def label_pairs(logits: Tensor) -> Tensor:
    """The logits of "does not apply" and "applies", [..., C, 2], from those of labels [..., C]."""
    return torch.stack([torch.zeros_like(logits), logits], dim=-1)


def label_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each example, nats, [..., B] from logits [..., B, C] and labels [B, C] bool."""
    return _cross_entropies(logits, labels).mean(dim=-1)


def activated(logits: Tensor, activation: ScoreActivation) -> Tensor:
    """Scores [...] from logits [..., 1]."""
    return torch.sigmoid(logits[..., 0]) if activation == "sigmoid" else logits[..., 0]


def score_losses(logits: Tensor, labels: Tensor, loss: Loss, activation: ScoreActivation) -> Tensor:
    """The loss of each example, [..., B] from logits [..., B, 1] and labels [B]."""
    if loss == "cross-entropy":
        return _cross_entropies(logits[..., 0], labels)
    return (activated(logits.float(), activation) - labels.float()).square()


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    rows = logits.float()
    return binary_cross_entropy_with_logits(rows, labels.to(rows.dtype).expand_as(rows), reduction="none")
