"""What logits say of an input, whatever the task: how unsure they are, and how far from its labels.

Of classes that is the entropy of the softmax and the cross-entropy of the label. Several labels, and a score whose
labels say what is relevant, are softmaxes over two classes with the logits 0 and z (``calib.losses``): an input's
entropy and loss are the sums over its labels. Of a tagger a text is as unsure as its least sure word, as spans are, and
its loss is the mean over its tagged words, as in training. A regression is as far from its label as the squared error
says, and one model alone tells nothing of how unsure it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...bundle.architecture import Architecture
from ...data.examples import Examples
from ...data.label_encoding import IGNORED
from ...metrics.classification import auroc
from ...metrics.scores import rmse
from ...tasks.regression import loss_of
from ..losses import activated, label_pairs
from .objectives import entropies, label_losses

Figures = dict[str, float]


@dataclass(frozen=True)
class Answers:
    """How logits of a task are read; K inputs come first among N, and have labels.

    Attributes:
        labels: [K] class indices, [K, C] of each label 0 or 1, [K] numbers, or [K, W] tags of words.
        entropies: logits [..., B, C] (of taggers [..., B, W, C], so below) → nats [..., B]; zeros where one model tells
            none.
        losses: logits [..., B, C] and labels [B, …] → [..., B].
        figures: logits [M, N, C] of members and the labels → what is told of them.
        tells_doubt: whether entropies mean anything.
    """

    labels: np.ndarray
    entropies: Callable[[Tensor], np.ndarray]
    losses: Callable[[Tensor, np.ndarray], np.ndarray]
    figures: Callable[[Tensor, np.ndarray], Figures]
    tells_doubt: bool = True


def answers_of(architecture: Architecture, known: Examples, words: np.ndarray | None = None) -> Answers:
    """How the logits of a model are read.

    Args:
        words: of a tagger, which words of each text it reads, [N, W] bool.
    """
    labels = np.asarray(known.labels)
    if architecture.task == "classification":
        return Answers(labels, entropies, label_losses, _class_figures)
    if words is not None:
        tags = np.full((len(labels), words.shape[1]), IGNORED)
        shared = min(labels.shape[1], words.shape[1])
        tags[:, :shared] = np.where(words[: len(labels), :shared], labels[:, :shared], IGNORED)
        return Answers(tags, _word_entropies, _word_losses, _word_figures)
    if architecture.task == "multi_label":
        return Answers(labels.astype(np.int64), _pair_entropies, _pair_losses, _pair_figures)
    if loss_of(labels, architecture.score_activation, known.source) == "cross-entropy":
        return Answers(labels.astype(np.int64)[:, None], _pair_entropies, _pair_losses, _pair_figures)

    def score(logits: Tensor) -> np.ndarray:
        return activated(logits.double(), architecture.score_activation).numpy()

    return Answers(
        labels,
        lambda logits: np.zeros(logits.shape[:-1]),
        lambda logits, given: (score(logits) - given) ** 2,
        lambda logits, given: {"rmse": rmse(given - score(logits).mean(axis=0)[: len(given)])},
        tells_doubt=False,
    )


def _pair_entropies(logits: Tensor) -> np.ndarray:
    """[..., C] → [...], the sum over labels."""
    found: np.ndarray = entropies(label_pairs(logits)).sum(axis=-1)
    return found


def _pair_losses(logits: Tensor, labels: np.ndarray) -> np.ndarray:
    """[..., B, C] and [B, C] → [..., B], the sum over labels."""
    found: np.ndarray = label_losses(label_pairs(logits), labels).sum(axis=-1)
    return found


def _word_entropies(logits: Tensor) -> np.ndarray:
    """[..., B, W, C] → [..., B], that of the least sure word."""
    found: np.ndarray = entropies(logits).max(axis=-1, initial=0.0)
    return found


def _word_losses(logits: Tensor, labels: np.ndarray) -> np.ndarray:
    """[..., B, W, C] and [B, W] → [..., B], the mean over tagged words; 0 where there are none."""
    tagged = labels != IGNORED
    losses = label_losses(logits, np.where(tagged, labels, 0)) * tagged
    found: np.ndarray = losses.sum(axis=-1) / np.maximum(tagged.sum(axis=-1), 1)
    return found


def _averaged(logits: Tensor) -> Tensor:
    """Logits of the members' averaged probabilities, [M, …, C] → [..., C]: their softmax is the average again."""
    return logits.double().softmax(dim=-1).mean(dim=0).clamp(min=1e-30).log()


def _class_figures(logits: Tensor, labels: np.ndarray) -> Figures:
    rows, count = _averaged(logits), len(labels)
    entropy, confidence = entropies(rows), rows.exp().max(dim=-1).values.numpy()
    found = {
        "accuracy": float((rows[:count].argmax(dim=-1).numpy() == labels).mean()),
        "nll": float(label_losses(rows[:count], labels).mean()),
    }
    if count < len(entropy):
        found["auroc_predictive_entropy"] = auroc(entropy[:count], entropy[count:])
        found["auroc_max_probability"] = auroc(-confidence[:count], -confidence[count:])
    return found


def _word_figures(logits: Tensor, labels: np.ndarray) -> Figures:
    rows, count, tagged = _averaged(logits), len(labels), labels != IGNORED  # [N, W, C]
    answers, known = rows[:count][torch.from_numpy(tagged)], labels[tagged]  # of the tagged words
    entropy = _word_entropies(rows)
    found = {
        "accuracy": float((answers.argmax(dim=-1).numpy() == known).mean()),
        "nll": float(label_losses(answers, known).mean()),
    }
    if count < len(entropy):
        found["auroc_predictive_entropy"] = auroc(entropy[:count], entropy[count:])
    return found


def _pair_figures(logits: Tensor, labels: np.ndarray) -> Figures:
    rows, count = _averaged(label_pairs(logits)), len(labels)  # [N, C, 2]
    right = rows[:count].argmax(dim=-1) == torch.from_numpy(labels)
    entropy = entropies(rows).sum(axis=-1)
    found = {
        "accuracy": float(right.all(dim=-1).double().mean()),
        "nll": float(label_losses(rows[:count], labels).sum(axis=-1).mean()),
    }
    if count < len(entropy):
        found["auroc_predictive_entropy"] = auroc(entropy[:count], entropy[count:])
    return found
