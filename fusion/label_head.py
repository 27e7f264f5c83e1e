"""The label head: member logits → a probability of each label, and how much the members disagree on it.

With p_m,c = 1 / (1 + exp(−z_m,c / T_c)), p̄_c = mean_m p_m,c (probabilities are averaged, never logits), and h the
entropy of a label that applies with probability p, h(p) = −p log p − (1 − p) log(1 − p), nats:

    label entropy              h(p̄_c)                           total uncertainty of a label
    label mutual information   h(p̄_c) − mean_m h(p_m,c) ≥ 0      epistemic part (Depeweg et al. 2018)
    predictive entropy         Σ_c h(p̄_c)                       of the input
    expected entropy           Σ_c mean_m h(p_m,c)
    mutual information         their difference ≥ 0
    energy                     −mean_m Σ_c log(1 + exp z_m,c)   without T: JointEnergy (Wang et al. 2021)

Given a member its labels are independent, so that the expected entropy is exact. The sum of the labels' entropies is at
most too large for that of all labels together, which the members' mixture may tie to each other: an upper bound, as the
mutual information is. Entropies of a label are cut to [0, log 2] and those of an input to [0, C · log 2], which
rounding would leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics.uncertainty import highest_entropy


@dataclass(frozen=True)
class LabelOutput:
    """What the fused module of a multi-label model returns.

    Attributes:
        member_logits: [M, B, C], before the temperatures.
        probabilities: [B, C], mean over members.
        label_entropy, label_mutual_information: [B, C], nats.
        predictive_entropy, expected_entropy, mutual_information: [B], nats, summed over the labels.
        energy: [B], nats.
        member_probabilities: [B, M, C].
        distance: [B], of the features from the training data (``fusion.distance``); ``None`` until fitted.
    """

    member_logits: Tensor
    probabilities: Tensor
    label_entropy: Tensor
    label_mutual_information: Tensor
    predictive_entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    energy: Tensor
    member_probabilities: Tensor
    distance: Tensor | None = None


def summarize_labels(
    member_logits: Tensor, temperatures: Sequence[float] = (1.0,), distance: Tensor | None = None
) -> LabelOutput:
    """Apply the label head in float32.

    Args:
        member_logits: [M, B, C].
        distance: [B], passed on.
    """
    logits = member_logits.float() / torch.tensor(temperatures, device=member_logits.device)
    members, without = torch.sigmoid(logits), torch.sigmoid(-logits)  # [M, B, C]
    highest, together = float(highest_entropy(2)), float(highest_entropy(2, logits.shape[-1]))
    expected = _entropy(members, without).mean(dim=0).clamp(0.0, highest)  # [B, C]
    mean = members.mean(dim=0)
    total = torch.maximum(_entropy(mean, without.mean(dim=0)).clamp_max(highest), expected)  # despite rounding
    return LabelOutput(
        member_logits=member_logits,
        probabilities=mean,
        label_entropy=total,
        label_mutual_information=total - expected,
        predictive_entropy=total.sum(dim=-1).clamp_max(together),
        expected_entropy=expected.sum(dim=-1).clamp_max(together),
        mutual_information=(total - expected).sum(dim=-1).clamp_max(together),
        energy=-torch.nn.functional.softplus(member_logits.float()).sum(dim=-1).mean(dim=0),
        member_probabilities=members.transpose(0, 1),
        distance=distance,
    )


def _entropy(probabilities: Tensor, without: Tensor) -> Tensor:
    """−p log p − q log q, nats, of probabilities p and their complements q, which rounding would lose; 0·log 0 = 0."""
    smallest = torch.finfo(torch.float32).tiny
    terms = [part * part.clamp_min(smallest).log() for part in (probabilities, without)]
    return 0.0 - (terms[0] + terms[1])
