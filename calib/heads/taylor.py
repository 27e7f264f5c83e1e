"""Taylor head importance: sensitivity of the loss to each attention head.

I_h = mean over examples of |Σ over tokens and dimensions of a_h · ∂L/∂a_h|, with a_h the output of head h before the
output projection (Michel et al. 2019, "Are Sixteen Heads Really Better than One?"; Molchanov et al. 2019). The sum over
tokens is the derivative of the loss by a gate of value 1 on the head. One backward pass computes all derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ...bundle.traced import AnyArchitecture
from ...data.batching import item_batches
from ...data.examples import Examples
from ...data.label_encoding import IGNORED, batch_labels
from ...data.processor import Processor
from ...errors import InputError
from ...models.family_registry import architecture_of, blocks_of
from ...models.tracing.slices import gated_heads
from ...progress import Progress, no_progress
from ...tasks.regression import loss_of
from ..losses import label_losses, score_losses


def taylor_scores(model: nn.Module, examples: Examples, processor: Processor,
                  architecture: AnyArchitecture | None = None, *, batch_size: int = 32,
                  progress: Progress = no_progress) -> np.ndarray:  # fmt: skip
    """Head importance by example |Σ a_h · ∂L/∂a_h|, [N, L, H] float32; 0 for heads that a block lacks."""
    architecture = architecture_of(model) if architecture is None else architecture
    blocks = blocks_of(model, architecture)
    scores = np.zeros((len(examples), architecture.layers, architecture.heads), np.float32)
    labels = np.asarray(examples.labels)
    loss = losses_of(architecture, examples)
    batches = item_batches(examples.inputs, processor, architecture, batch_size)
    steps = progress(batches, -(-len(examples) // batch_size), "scoring attention heads")
    training = model.training
    model.eval()
    try:
        for indices, items, arrays in steps:
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            answers = torch.from_numpy(batch_labels(items, labels[indices], arrays))
            gates = [torch.ones(len(indices), block.heads, requires_grad=True) for block in blocks]
            with torch.enable_grad(), gated_heads(model, blocks, gates):
                total = loss(model(**tensors).logits, answers).sum()  # keeps examples independent
                gradients = torch.autograd.grad(total, gates, allow_unused=True, materialize_grads=True)
            for layer, gradient in enumerate(gradients):
                scores[indices, layer, : gradient.shape[1]] = gradient.abs().numpy()
    finally:
        model.train(training)
    if not np.isfinite(scores).all():
        wrong = f"head importance of this {architecture.family!r} model is not finite (NaN or infinity)"
        raise InputError(f"{wrong}; check inputs and weights for an overflow, or plan with --method random")
    return scores


Losses = Callable[[Tensor, Tensor], Tensor]  # logits [B, C], labels [B] or [B, C] (of tokens with T) → losses [B]


def losses_of(architecture: AnyArchitecture, examples: Examples) -> Losses:
    """The loss of a model's task."""
    if architecture.task == "score":
        loss = loss_of(np.asarray(examples.labels), architecture.score_activation, examples.source)
        return partial(score_losses, loss=loss, activation=architecture.score_activation)
    if architecture.every_token:
        return token_loss
    if architecture.task == "multi_label":
        return label_losses
    return partial(nn.functional.cross_entropy, reduction="none")


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each text's labelled tokens, nats; 0 without labelled tokens."""
    each = nn.functional.cross_entropy(logits.movedim(-1, 1), labels, reduction="none", ignore_index=IGNORED)  # [B, T]
    return each.sum(dim=1) / (labels != IGNORED).sum(dim=1).clamp_min(1)
