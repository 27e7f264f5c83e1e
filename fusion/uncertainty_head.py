"""The uncertainty head: member logits → averaged probabilities and how much the members disagree.

With p_m = softmax(z_m / T) and p̄ = mean_m p_m (probabilities are averaged, never logits):

    predictive entropy   H(p̄)                      total uncertainty, nats
    expected entropy     mean_m H(p_m)              aleatoric part
    mutual information   H(p̄) − mean_m H(p_m) ≥ 0   epistemic part (Depeweg et al. 2018)
    disagreement         share of members whose argmax differs from that of p̄
    energy               −mean_m log Σ_c exp z_m,c  without T, nats (Liu et al. 2020)

The largest logit is taken out before the division by T, so that none overflows, and entropies are cut to [0, log C],
which rounding would leave.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics.uncertainty import highest_entropy


@dataclass(frozen=True)
class FusedOutput:
    """What the fused module returns: member logits and the fields of a ``Prediction`` as tensors.

    Of a model of tokens everything has an axis T behind B; ``member_probabilities`` are [B, M, T, C].

    Attributes:
        member_logits: [M, B, C], before the temperature.
        probabilities: [B, C].
        label: [B] int64, argmax of ``probabilities``.
        confidence: [B], max of ``probabilities``.
        predictive_entropy, expected_entropy, mutual_information: [B], nats.
        disagreement: [B] in [0, 1].
        energy: [B], nats.
        member_probabilities: [B, M, C].
        distance: [B], of the features from the training data (``fusion.distance``); ``None`` until fitted.
        abstain, out_of_distribution: always ``None`` here; thresholds belong to the runtime.
    """

    member_logits: Tensor
    probabilities: Tensor
    label: Tensor
    confidence: Tensor
    predictive_entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    disagreement: Tensor
    energy: Tensor
    member_probabilities: Tensor
    distance: Tensor | None = None
    abstain: None = None
    out_of_distribution: None = None


def summarize(member_logits: Tensor, temperature: float = 1.0, distance: Tensor | None = None) -> FusedOutput:
    """Apply the uncertainty head in float32.

    Args:
        member_logits: [M, B, C]; of tokens [M, B, T, C].
        distance: [B], passed on.
    """
    logits = member_logits.float()
    members = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)) / temperature, dim=-1)  # [M, B, C]
    mean = members.mean(dim=0)  # [B, C]
    highest = float(highest_entropy(logits.shape[-1]))
    expected = entropy(members).mean(dim=0).clamp(0.0, highest)  # [B]
    predictive = torch.maximum(entropy(mean).clamp_max(highest), expected)  # H(p̄) ≥ E[H] despite rounding
    confidence, label = mean.max(dim=-1)
    return FusedOutput(
        member_logits=member_logits,
        probabilities=mean,
        label=label,
        confidence=confidence,
        predictive_entropy=predictive,
        expected_entropy=expected,
        mutual_information=predictive - expected,
        disagreement=(members.argmax(dim=-1) != label).float().mean(dim=0),
        energy=-torch.logsumexp(logits, dim=-1).mean(dim=0),
        member_probabilities=members.transpose(0, 1),
        distance=distance,
    )


def entropy(probabilities: Tensor) -> Tensor:
    """Shannon entropy over the last axis, nats; 0·log 0 = 0."""
    smallest = torch.finfo(probabilities.dtype).tiny
    return 0.0 - (probabilities * probabilities.clamp_min(smallest).log()).sum(dim=-1)
