"""The loss of a model of one output: for plans and for tuning.

Labels that are all 0 or 1 say what is relevant: the loss is the cross-entropy of 1 / (1 + exp(−z)), whatever activation
the model has, as sentence-transformers trains cross-encoders on such pairs. It is that of a softmax over two classes
with the logits 0 and z (``label_loss.label_pairs``), so that a temperature, NLL and accuracy mean what they mean there.
Any other numbers are a regression: the loss is the squared error of the score, after the model's activation.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..bundle.tasks import ScoreActivation
from ..errors import InputError
from ..metrics.scores import is_binary

Loss = Literal["cross-entropy", "squared error"]


def loss_of(labels: np.ndarray, activation: ScoreActivation, source: str) -> Loss:
    """Which loss labels ask for.

    Args:
        labels: [N] numbers.
    """
    if activation == "sigmoid" and not ((labels >= 0) & (labels <= 1)).all():
        far = labels[(labels < 0) | (labels > 1)][0]
        raise InputError(
            f"data {source} have the label {far:g}, but this model's scores go through a sigmoid and lie between 0 and "
            "1; give labels on that scale"
        )
    return "cross-entropy" if is_binary(labels) else "squared error"


def activated(logits: Tensor, activation: ScoreActivation) -> Tensor:
    """Scores [...] from logits [..., 1]."""
    return torch.sigmoid(logits[..., 0]) if activation == "sigmoid" else logits[..., 0]


def score_losses(logits: Tensor, labels: Tensor, loss: Loss, activation: ScoreActivation) -> Tensor:
    """The loss of each example, [..., B] from logits [..., B, 1] and labels [B]."""
    if loss == "cross-entropy":
        rows = logits[..., 0].float()
        return torch.nn.functional.binary_cross_entropy_with_logits(
            rows, labels.to(rows.dtype).expand_as(rows), reduction="none"
        )
    return (activated(logits.float(), activation) - labels.float()).square()
