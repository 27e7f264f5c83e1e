"""Losses of scores and labels: for plans and for tuning.

Labels of a score that are all 0 or 1 say what is relevant: the loss is the cross-entropy of 1 / (1 + exp(−z)), whatever
activation the model has, as sentence-transformers trains cross-encoders on such pairs. It is that of a softmax over two
classes with the logits 0 and z, so that a temperature, NLL and accuracy mean what they mean there. Any other numbers
are a regression: the loss is the squared error of the score, after the model's activation. In a multi-label model each
label is a decision of its own, as transformers trains it: the loss is the mean over labels of the cross-entropy, and a
likelihood is that of all labels of an example, their sum.
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
