"""Learning from teachers (Hinton et al. 2015): soft targets, and the loss of members that learn them.

Each of several members learns its own teacher's outputs, so that members keep the teachers' disagreement (Tran et al.
2020, *Hydra: Preserving Ensemble Diversity for Model Distillation*).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..calib.losses import activated
from ..tasks import ScoreActivation

Targets = Literal["classes", "labels", "scores"]
"""One of C classes; C independent labels, or relevance; a regression's score."""


def soft_targets(logits: Tensor, activation: ScoreActivation, *, kind: Targets, softening: float, mean: bool) -> Tensor:
    """Teachers' logits [M, B, …, C] → probabilities at a temperature, or scores [M, B, 1]; with ``mean`` [1, B, …].

    Logits of NaN, at tokens without a target, stay NaN.
    """
    if kind == "scores":
        targets = activated(logits, activation)[..., None]
    else:
        targets = (logits / softening).softmax(dim=-1) if kind == "classes" else torch.sigmoid(logits / softening)
    return targets.mean(dim=0, keepdim=True) if mean else targets


def distillation_loss(
    member_logits: Tensor, targets: Tensor, activation: ScoreActivation, *, kind: Targets, softening: float
) -> Tensor:
    """Mean loss of members' logits [M, B, …, C] against targets [M or 1, B, …, C].

    It is the divergence KL(target ‖ member) at the temperature ``softening``, in nats times its square, which keeps
    gradients comparable (Hinton et al. 2015); the mean over labels for several, the squared error for scores.
    """
    if kind == "scores":
        return (activated(member_logits, activation) - targets[..., 0]).square().mean()
    targets = targets.expand_as(member_logits)
    scaled = member_logits / softening
    if kind == "labels":
        targets = torch.stack([targets, 1 - targets], dim=-1)
        log_probabilities = torch.nn.functional.logsigmoid(torch.stack([scaled, -scaled], dim=-1))
    else:
        log_probabilities = scaled.log_softmax(dim=-1)
    real = ~targets[..., 0].isnan()
    targets, log_probabilities = targets[real], log_probabilities[real]
    divergences = (torch.xlogy(targets, targets) - targets * log_probabilities).sum(dim=-1)
    return softening**2 * divergences.sum() / max(1, len(divergences))
