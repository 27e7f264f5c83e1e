"""The score head: member logits → one score, and how much the members disagree on it.

With s_m = a(z_m), a the model's own activation (``tasks.task.ScoreActivation``):

    score             mean_m s_m
    score variance    mean_m (s_m − score)²    the members are the whole ensemble, not a sample of one

Scores are averaged, never logits; the variance is that of the mixture of the members' scores (Lakshminarayanan et al.
2017, without a variance of each member's own).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..tasks import ScoreActivation


@dataclass(frozen=True)
class ScoreOutput:
    """What the fused module of a score returns.

    Attributes:
        member_logits: [M, B, 1], before the activation.
        score: [B], mean over members.
        score_variance: [B], ≥ 0, of the members' scores around their mean.
        member_scores: [B, M].
        distance: [B], of the features from the training data (``fusion.distance``); ``None`` until fitted.
    """

    member_logits: Tensor
    score: Tensor
    score_variance: Tensor
    member_scores: Tensor
    distance: Tensor | None = None


def summarize_scores(member_logits: Tensor, activation: ScoreActivation, distance: Tensor | None = None) -> ScoreOutput:
    """Apply the score head in float32.

    Args:
        member_logits: [M, B, 1].
        distance: [B], passed on.
    """
    logits = member_logits.float()[..., 0]  # [M, B]
    members = torch.sigmoid(logits) if activation == "sigmoid" else logits
    mean = members.mean(dim=0)
    return ScoreOutput(
        member_logits=member_logits,
        score=mean,
        score_variance=(members - mean).square().mean(dim=0),
        member_scores=members.transpose(0, 1),
        distance=distance,
    )
