"""What a circuit is searched for: objectives of uncertainty, lower is better, in nats.

With H_x the predictive entropy of example x, over N in-distribution examples i with labels y_i and K
out-of-distribution (OOD) examples o, drawn w times each by a bootstrap (else once):

    nll         Σ_i w_i · −log p(y_i | i)  ÷  Σ_i w_i
    separation  Σ_i Σ_o w_i w_o · log(1 + exp(H_i − H_o))  ÷  Σ_i Σ_o w_i w_o
    both        nll + separation

``separation`` is the log-loss of telling which of a pair is the OOD one by the difference of their entropies: a smooth
stand-in for 1 − AUROC, which counts the pairs that stand in the wrong order. Both terms are mean log-losses in nats and
weigh 1. Of several labels H and −log p are sums over them, of tags H is that of
the least sure word and −log p the mean over words (``calib.heads.answers``); of a regression ``nll`` is the
squared error, and the others are not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from .options import Objective

OBJECTIVES: tuple[str, ...] = get_args(Objective)


PAIRS = 2**22
"""Pairs compared at a time."""


@dataclass(frozen=True)
class Statistics:
    """What the objectives need of each example, for V variants of a model.

    Attributes:
        losses: −log probability of the label, nats, [V, N]; in-distribution examples.
        known: predictive entropy, nats, of the in-distribution examples, [V, N].
        unknown: the same of the OOD examples, [V, K]; K may be 0.
    """

    losses: np.ndarray
    known: np.ndarray
    unknown: np.ndarray


def evaluate(objective: str, found: Statistics, weights: np.ndarray, ood_weights: np.ndarray) -> np.ndarray:
    """The objective of each variant.

    Args:
        objective: one of ``OBJECTIVES``.
        found: of V variants.
        weights: w of the in-distribution examples, [N].
        ood_weights: w of the OOD examples, [K].

    Returns:
        [V] float64.
    """
    value = np.zeros(len(found.losses))
    if objective in ("nll", "both"):
        value += found.losses @ weights / weights.sum()
    if objective in ("separation", "both"):
        pairs = zip(found.known, found.unknown, strict=True)
        value += [_separation(known, unknown, weights, ood_weights) for known, unknown in pairs]
    return value


def entropies(logits: Tensor) -> np.ndarray:
    """Entropy of softmax(logits) in nats: [..., C] → [...] float64."""
    logs = logits.double().log_softmax(dim=-1)
    return (-(logs.exp() * logs).sum(dim=-1)).numpy()


def label_losses(logits: Tensor, labels: np.ndarray) -> np.ndarray:
    """−log probability of each label, nats: logits [..., B, C], labels [B] → [..., B] float64."""
    index = torch.from_numpy(labels).expand(logits.shape[:-1])[..., None]
    return (-logits.double().log_softmax(dim=-1).gather(-1, index)[..., 0]).numpy()


def _separation(known: np.ndarray, unknown: np.ndarray, weights: np.ndarray, ood_weights: np.ndarray) -> float:
    """Weighted mean of log(1 + exp(known − unknown)) over all pairs."""
    inside, outside = weights > 0, ood_weights > 0
    known, weights, total = known[inside], weights[inside], 0.0
    step = max(1, PAIRS // max(1, len(known)))
    chosen, shares = unknown[outside], ood_weights[outside]
    for start in range(0, len(chosen), step):
        some = slice(start, start + step)
        total += float(weights @ np.logaddexp(0, known[:, None] - chosen[some]) @ shares[some])
    return total / float(weights.sum() * shares.sum())
