"""What tuning minimises: every member's own cross-entropy, averaged."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy


def member_loss(member_logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over members and examples of −log softmax(z_m)[label], nats.

    Members are judged one by one, not their average, so that each stays a classifier of its own; what they
    share gets the mean of their gradients.

    Args:
        member_logits: [S, B, C]; S is 1 where all members are one.
        labels: [B] int64.
    """
    streams = member_logits.shape[0]
    return cross_entropy(member_logits.flatten(0, 1).float(), labels.repeat(streams))  # [S·B, C] against [S·B]
