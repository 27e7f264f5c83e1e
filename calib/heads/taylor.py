"""Taylor head importance: how much the loss feels each attention head.

I_h = mean over examples of |Σ over tokens and dimensions of a_h · ∂L/∂a_h|, with a_h the output of
head h before the output projection (Michel et al. 2019, "Are Sixteen Heads Really Better than
One?"; Molchanov et al. 2019). The inner sum is the derivative of the example's loss by a gate of
value 1 on the head, so one backward pass to one gate per example, layer and head gives all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from ...families.registry import architecture_of, layout_of
from ...progress import Progress, no_progress
from ...tasks.regression import loss_of
from ..losses import label_losses, score_losses


def taylor_scores(
    model: nn.Module,
    examples: Examples,
    processor: Processor,
    *,
    batch_size: int = 32,
    progress: Progress = no_progress,
) -> np.ndarray:
    """Per-example head importance |Σ a_h · ∂L/∂a_h|, with L the example's loss.

    That is the cross-entropy of a classifier; of tokens its mean over the tokens that have a label; of a model of one
    output what its labels ask for (``calib.losses``), and of a multi-label one the mean over labels
    (``calib.losses``).

    The model runs in evaluation mode; its parameters get no gradients.

    Returns:
        [N, L, H] float32, in the order of ``examples``. Its mean over the first axis is the
        importance.
    """
    architecture = architecture_of(model)
    scores = np.empty((len(examples), architecture.layers, architecture.heads), np.float32)
    labels = np.asarray(examples.labels)
    loss = losses_of(architecture, examples)
    steps = progress(
        item_batches(examples.inputs, processor, architecture, batch_size),
        -(-len(examples) // batch_size),
        "scoring attention heads",
    )
    training = model.training
    model.eval()
    try:
        for indices, items, arrays in steps:
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            known = batch_labels(items, labels[indices], arrays)
            scores[indices] = finite(_batch_scores(model, tensors, torch.from_numpy(known), loss), architecture.family)
    finally:
        model.train(training)
    return scores


def finite(scores: np.ndarray, family: str) -> np.ndarray:
    """The same scores [B, L, H]."""
    if not np.isfinite(scores).all():
        raise InputError(
            f"the importance of a head of this {family!r} model is not finite (NaN or infinity) for some example; "
            "expected activations and gradients within float32: look for an input or weights that overflow, or plan "
            "with --method random"
        )
    return scores


Losses = Callable[[Tensor, Tensor], Tensor]
"""Logits [B, C] and labels [B] or [B, C], or of tokens [B, T, C] and [B, T], → the loss of each example, [B]."""


def losses_of(architecture: AnyArchitecture, examples: Examples) -> Losses:
    """The loss of a model's task."""
    if architecture.task == "score":
        asked = loss_of(np.asarray(examples.labels), architecture.score_activation, examples.source)
        return partial(score_losses, loss=asked, activation=architecture.score_activation)
    if architecture.every_token:
        return token_loss
    return label_losses if architecture.task == "multi_label" else classification_loss


def classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, nats."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each text's labelled tokens, nats; 0 where there are none."""
    each = nn.functional.cross_entropy(logits.movedim(-1, 1), labels, reduction="none", ignore_index=IGNORED)  # [B, T]
    return each.sum(dim=1) / (labels != IGNORED).sum(dim=1).clamp_min(1)


def _batch_scores(model: nn.Module, inputs: dict[str, Tensor], labels: Tensor, losses: Losses) -> np.ndarray:
    """[B, L, H] absolute gate gradients of one batch."""
    architecture = architecture_of(model)
    gates = [torch.ones(len(labels), 1, architecture.heads, 1, requires_grad=True) for _ in range(architecture.layers)]
    with torch.enable_grad(), gated_heads(model, gates):
        loss = losses(model(**inputs).logits, labels).sum()  # examples stay independent
        gradients = torch.autograd.grad(loss, gates)
    return torch.stack([gradient[:, 0, :, 0].abs() for gradient in gradients], dim=1).numpy()


@contextmanager
def gated_heads(model: nn.Module, gates: Sequence[Tensor]) -> Iterator[None]:
    """Multiply every head's output, before the output projection, by its gate.

    Args:
        gates: one [B or 1, 1, H, 1] tensor for each layer.
    """
    layout, heads = layout_of(model), architecture_of(model).heads

    def gate(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]:
        def apply(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            return ((args[0].unflatten(-1, (heads, -1)) * gates[layer]).flatten(-2),)

        return apply

    handles = [
        model.get_submodule(layout.output_projection(layer)).register_forward_pre_hook(gate(layer))
        for layer in range(len(gates))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
