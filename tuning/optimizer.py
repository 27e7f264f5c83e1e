"""AdamW (Loshchilov & Hutter 2019) with a learning rate that rises, then falls, linearly."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..calib.losses import label_losses, score_losses
from ..data.label_encoding import labelled
from ..tasks import ScoreActivation
from ..tasks.regression import Loss
from .settings import Settings

GRADIENT_NORM = 1.0  # maximum over all gradients together


def make_optimizer(module: nn.Module, settings: Settings, device: torch.device) -> torch.optim.AdamW:
    """AdamW over all tuned weights; biases, LayerNorms and factors do not decay."""
    named = tuned_parameters(module)
    kinds = ((True, settings.how.weight_decay), (False, 0.0))
    sorts = [([tensor for name, tensor in named if decays(name, tensor.ndim) is kind], decay) for kind, decay in kinds]
    groups = [{"params": tensors, "weight_decay": decay} for tensors, decay in sorts if tensors]
    return torch.optim.AdamW(groups, lr=settings.how.learning_rate, fused=device.type in ("cpu", "cuda"))


def tuned_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return names and parameters that tuning changes."""
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def decays(name: str, axes: int = 2) -> bool:
    """Return True if a weight of some axes decays; vectors, such as LayerNorms of transformers, do not.

    >>> decays("layers.0.mlp.up.weight"), decays("layers.0.mlp.up.bias"), decays("embeddings.norm.weight")
    (True, False, False)
    """
    return axes > 1 and not (name.endswith((".bias", "_factor")) or name.rpartition(".")[0].endswith("norm"))


def rate_at(update: int, updates: int, warmup: float) -> float:
    """Return the fraction of the peak learning rate at an update: linear warm-up, then linear decay to nearly 0.

    >>> [round(rate_at(update, 10, 0.2), 3) for update in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.125]
    """
    rising = round(updates * warmup)
    return (update + 1) / rising if update < rising else (updates - update) / (updates - rising)


def member_loss(member_logits: Tensor, labels: Tensor, activation: ScoreActivation = "identity") -> Tensor:
    """Mean loss of the members' outputs, [S, B, C] or [S, B, T, C]: cross-entropy in nats, or the task's loss."""
    if member_logits.shape[-1] == 1:
        loss: Loss = "squared error" if labels.is_floating_point() else "cross-entropy"
        return score_losses(member_logits, labels, loss, activation).mean()
    if labels.dtype == torch.bool:
        return label_losses(member_logits, labels).mean()
    if labels.ndim == 2:
        member_logits, labels = labelled(member_logits, labels)  # [S, N, C] against [N]
        total = cross_entropy(member_logits.flatten(0, 1).float(), labels.repeat(len(member_logits)), reduction="sum")
        return total / max(1, len(labels) * len(member_logits))
    return cross_entropy(member_logits.flatten(0, 1).float(), labels.repeat(len(member_logits)))  # [S·B, C] and [S·B]
