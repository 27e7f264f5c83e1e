"""Objectives of circuits (in nats, lower is better), and the questions that a model answers.

H_x is the predictive entropy of example x. There are N in-distribution examples i with labels y_i and K
out-of-distribution (OOD) examples o. A bootstrap draws example x w_x times; without one, w_x is 1.

    nll         Σ_i w_i · −log p(y_i | i)  ÷  Σ_i w_i
    separation  Σ_i Σ_o w_i w_o · log(1 + exp(H_i − H_o))  ÷  Σ_i Σ_o w_i w_o
    both        nll + separation

``separation`` is the log-loss of identifying the OOD example of a pair by the entropies: a smooth 1 − AUROC.

An input has one or several questions, each a softmax: its class, each of its labels or its relevance (with the logits
0 and z, as in ``calib.losses``), or the tag of each word. Entropy and loss of an input are sums over its questions; of
words they are the entropy of the least certain one, and the mean loss. A regression's ``nll`` is the squared error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...bundle.architecture import Architecture
from ...data.batching import Batch
from ...data.examples import Examples
from ...data.label_encoding import IGNORED, token_labels, word_starts
from ...data.text import NO_WORD
from ...metrics.class_metrics import auroc
from ...metrics.scores import rmse
from ...tasks.regression import loss_of
from ..losses import activated, label_pairs


def evaluate(objective: str, losses: np.ndarray, entropies: np.ndarray, ood_entropies: np.ndarray,
             weights: np.ndarray, ood_weights: np.ndarray) -> np.ndarray:  # fmt: skip
    """The objective [V] of V variants, from losses and entropies [V, N] and [V, K] of OOD examples, with weights w."""
    value = np.zeros(len(losses))
    if objective in ("nll", "both"):
        value += losses @ weights / weights.sum()
    if objective in ("separation", "both"):
        pairs = zip(entropies, ood_entropies, strict=True)
        value += [_separation(inside, outside, weights, ood_weights) for inside, outside in pairs]
    return value


def entropies(logits: Tensor) -> np.ndarray:
    """Entropy of softmax(logits) in nats: [..., C] → [...] float64."""
    logs = logits.double().log_softmax(dim=-1)
    return (-(logs.exp() * logs).sum(dim=-1)).numpy()


def label_losses(logits: Tensor, labels: np.ndarray) -> np.ndarray:
    """−log probability of each label, nats: logits [..., B, C], labels [B] → [..., B] float64."""
    index = torch.from_numpy(labels).expand(logits.shape[:-1])[..., None]
    return (-logits.double().log_softmax(dim=-1).gather(-1, index)[..., 0]).numpy()


def _separation(inside: np.ndarray, outside: np.ndarray, weights: np.ndarray, ood_weights: np.ndarray) -> float:
    """Weighted mean of log(1 + exp(inside − outside)) over all pairs of ID and OOD entropies."""
    drawn, ood_drawn = weights > 0, ood_weights > 0
    inside, weights, total = inside[drawn], weights[drawn], 0.0
    step = max(1, 2**22 // max(1, len(inside)))  # OOD examples compared at a time
    chosen, shares = outside[ood_drawn], ood_weights[ood_drawn]
    for start in range(0, len(chosen), step):
        some = slice(start, start + step)
        total += float(weights @ np.logaddexp(0, inside[:, None] - chosen[some]) @ shares[some])
    return total / float(weights.sum() * shares.sum())


class Questions:
    """Questions by batch: their inputs ``texts`` [r], answers ``labels`` [r], and the mask ``labelled`` [r]."""

    def __init__(self, architecture: Architecture, examples: Examples) -> None:
        self._labels, self.count = np.asarray(examples.labels), len(examples)
        self._task, self._activation = architecture.task, architecture.score_activation
        self.tagged, self.regression = architecture.task == "tokens", False
        if architecture.task == "score":
            self.regression = loss_of(self._labels, self._activation, examples.source) == "squared error"
        self._rows: list[Tensor] = []
        self.texts: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []
        self.labelled: list[np.ndarray] = []

    def add(self, places: np.ndarray, items: Sequence[Any], arrays: Batch, *, unlabelled: bool = True) -> None:
        """Add the next batch: places [B] of prepared inputs, and their tensors; ``unlabelled`` adds untagged words."""
        with_label = places < self.count
        answers = self._labels[places[with_label]]
        if self.tagged:
            starts = word_starts(items, arrays["input_ids"].shape[1])
            labels = np.full(starts.shape, IGNORED)
            labels[with_label] = token_labels(starts[with_label], answers)
        else:
            labels = np.full((len(places), *answers.shape[1:]), IGNORED, np.float64 if self.regression else np.int64)
            labels[with_label] = answers
        labelled = with_label if self.regression else labels != IGNORED
        used = np.ones_like(labels, bool)
        if self.tagged:
            used = starts != NO_WORD if unlabelled else labelled
        self._rows.append(torch.from_numpy(np.flatnonzero(used)))
        self.texts.append(places[np.nonzero(used)[0]])
        self.labels.append(labels[used])
        self.labelled.append(labelled[used])

    def rows(self, batch: int, logits: Tensor) -> Tensor:
        """Logits [..., B, C], or [..., B, T, C] of tokens → logits of the batch's questions, [..., r, C]."""
        if self._task == "multi_label":
            logits = label_pairs(logits)
        elif self._task == "score" and not self.regression:
            logits = label_pairs(logits[..., 0])
        if self._labels.ndim == 2:
            logits = logits.flatten(-3, -2)
        return logits.cpu()[..., self._rows[batch], :]

    def measure(self, batch: int, rows: Tensor, losses: np.ndarray, entropy: np.ndarray) -> None:
        """Write the losses [V, K] and entropies [V, N] of a batch's inputs, from rows [V, r, C]."""
        texts, labelled, labels = self.texts[batch], self.labelled[batch], self.labels[batch]
        rows, answered = rows.double(), rows[:, torch.from_numpy(labelled)]
        if self.regression:
            losses[:, texts[labelled]] = (self._scores(answered) - labels[labelled]) ** 2
            return
        each = label_losses(answered, labels[labelled])
        if self.tagged:  # the mean of a text
            each /= np.bincount(texts[labelled], minlength=self.count)[texts[labelled]]
        np.add.at(losses.T, texts[labelled], each.T)
        (np.maximum if self.tagged else np.add).at(entropy.T, texts, entropies(rows).T)

    def metrics(self, logits: Tensor, total: int) -> dict[str, float]:
        """Accuracy, NLL and AUROC of averaged probabilities, from logits [M, R, C]; RMSE of a regression."""
        texts, labels, labelled = (np.concatenate(each) for each in (self.texts, self.labels, self.labelled))
        if self.regression:
            return {"rmse": rmse((labels - self._scores(logits).mean(axis=0))[labelled])}
        # logits [R, C] whose softmax is the averaged probabilities
        rows = logits.double().softmax(dim=-1).mean(dim=0).clamp(min=1e-30).log()
        correct = rows.argmax(dim=-1).numpy() == labels
        losses = label_losses(rows[torch.from_numpy(labelled)], labels[labelled])
        metrics = {"accuracy": self.accuracy(correct[labelled], texts[labelled]), "nll": self.mean(losses)}
        if self.count < total:
            entropy = np.zeros(total)
            (np.maximum if self.tagged else np.add).at(entropy, texts, entropies(rows))
            metrics["auroc_predictive_entropy"] = auroc(entropy[: self.count], entropy[self.count :])
            if self._task == "classification":
                confidence = rows.exp().amax(dim=-1).numpy()
                known = texts < self.count
                metrics["auroc_max_probability"] = auroc(-confidence[known], -confidence[~known])
        return metrics

    def accuracy(self, correct: np.ndarray, texts: np.ndarray) -> float:
        """Share of inputs with correct answers to all questions; for token classification, share of words."""
        right = correct if self.tagged else np.bincount(texts, ~correct, minlength=self.count) == 0
        return float(right.mean())

    def mean(self, values: np.ndarray) -> float:
        """Mean of the inputs' sums; for token classification, mean over words."""
        return float(values.mean() if self.tagged else values.sum() / self.count)

    def _scores(self, logits: Tensor) -> np.ndarray:
        return activated(logits.double(), self._activation).numpy()
