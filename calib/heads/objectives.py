"""Objectives of circuits: uncertainty, lower is better, in nats; and the questions that a model answers.

With H_x the predictive entropy of example x, over N in-distribution examples i with labels y_i and K
out-of-distribution (OOD) examples o, drawn w times each by a bootstrap (else once):

    nll         Σ_i w_i · −log p(y_i | i)  ÷  Σ_i w_i
    separation  Σ_i Σ_o w_i w_o · log(1 + exp(H_i − H_o))  ÷  Σ_i Σ_o w_i w_o
    both        nll + separation

``separation`` is the log-loss of deciding which of a pair is the OOD one by the difference of their entropies: a smooth
stand-in for 1 − AUROC.

An input is one or several questions, each a softmax: its class; for each label, and for a score whose labels say what
is relevant, two classes with the logits 0 and z (``calib.losses``); for each word of a tagger its tag. Entropy and
loss of an input are the sums over its questions; of a tagger the entropy of the least sure word, as spans have it, and
the mean loss of its tagged words, as in training. Of a regression ``nll`` is the squared error; it has no entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...bundle.architecture import Architecture
from ...data.batching import Batch
from ...data.examples import Examples
from ...data.label_encoding import IGNORED, token_labels, word_starts
from ...data.words import NO_WORD
from ...metrics.class_metrics import auroc
from ...metrics.scores import rmse
from ...tasks.regression import loss_of
from ..losses import activated, label_pairs


@dataclass(frozen=True)
class Statistics:
    """Of V variants of a model losses [V, N], nats, and entropies of known [V, N] and unknown examples [V, K]."""

    losses: np.ndarray
    known: np.ndarray
    unknown: np.ndarray


def evaluate(objective: str, found: Statistics, weights: np.ndarray, ood_weights: np.ndarray) -> np.ndarray:
    """The objective of each variant, [V] float64; weights are w of the in-distribution and of the OOD examples."""
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
    step = max(1, 2**22 // max(1, len(known)))  # pairs compared at a time
    chosen, shares = unknown[outside], ood_weights[outside]
    for start in range(0, len(chosen), step):
        some = slice(start, start + step)
        total += float(weights @ np.logaddexp(0, known[:, None] - chosen[some]) @ shares[some])
    return total / float(weights.sum() * shares.sum())


class Questions:
    """The questions of inputs, batch by batch: their class, each label, relevance, or words; of a regression a number.

    Each batch has r questions: their inputs ``texts`` [r], their answers ``labels`` [r], and ``labelled`` [r]: whether
    there is one. The first ``count`` inputs have labels.
    """

    def __init__(self, architecture: Architecture, examples: Examples) -> None:
        self._given, self.count = np.asarray(examples.labels), len(examples)
        self._task, self._activation = architecture.task, architecture.score_activation
        self.tagged, self.regression = architecture.task == "tokens", False
        if architecture.task == "score":
            self.regression = loss_of(self._given, self._activation, examples.source) == "squared error"
        self._asked: list[Tensor] = []
        self.texts: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []
        self.labelled: list[np.ndarray] = []

    def add(self, places: np.ndarray, items: Sequence[Any], arrays: Batch, *, unlabelled: bool = True) -> None:
        """Add the next batch: places [B] of prepared inputs, and their tensors; unlabelled words only if asked for."""
        known = places < self.count
        given = self._given[places[known]]
        if self.tagged:
            starts = word_starts(items, arrays["input_ids"].shape[1])
            labels = np.full(starts.shape, IGNORED)
            labels[known] = token_labels(starts[known], given)
        else:
            labels = np.full((len(places), *given.shape[1:]), IGNORED, np.float64 if self.regression else np.int64)
            labels[known] = given
        labelled = known if self.regression else labels != IGNORED
        asked = np.ones_like(labels, bool)
        if self.tagged:
            asked = starts != NO_WORD if unlabelled else labelled
        self._asked.append(torch.from_numpy(np.flatnonzero(asked)))
        self.texts.append(places[np.nonzero(asked)[0]])
        self.labels.append(labels[asked])
        self.labelled.append(labelled[asked])

    def rows(self, batch: int, logits: Tensor) -> Tensor:
        """Logits [..., B, C], of taggers [..., B, T, C] → logits of the batch's questions, [..., r, C]."""
        if self._task == "multi_label":
            logits = label_pairs(logits)
        elif self._task == "score" and not self.regression:
            logits = label_pairs(logits[..., 0])
        if self._given.ndim == 2:
            logits = logits.flatten(-3, -2)
        return logits.cpu()[..., self._asked[batch], :]

    def measure(self, batch: int, rows: Tensor, losses: np.ndarray, entropy: np.ndarray) -> None:
        """Fill in the losses [V, K] and entropies [V, N] of a batch's inputs, from rows [V, r, C]."""
        texts, known, labels = self.texts[batch], self.labelled[batch], self.labels[batch]
        rows, asked = rows.double(), rows[:, torch.from_numpy(known)]
        if self.regression:
            losses[:, texts[known]] = (self._scores(asked) - labels[known]) ** 2
            return
        each = label_losses(asked, labels[known])
        if self.tagged:  # the mean of a text
            each /= np.bincount(texts[known], minlength=self.count)[texts[known]]
        np.add.at(losses.T, texts[known], each.T)
        (np.maximum if self.tagged else np.add).at(entropy.T, texts, entropies(rows).T)

    def figures(self, logits: Tensor, total: int) -> dict[str, float]:
        """Accuracy, NLL and AUROC of members' averaged probabilities, from logits [M, R, C]; of a regression RMSE."""
        texts, labels, known = (np.concatenate(each) for each in (self.texts, self.labels, self.labelled))
        if self.regression:
            return {"rmse": rmse((labels - self._scores(logits).mean(axis=0))[known])}
        # logits of the averaged probabilities, [R, C]: their softmax is the average again
        rows = logits.double().softmax(dim=-1).mean(dim=0).clamp(min=1e-30).log()
        right = rows.argmax(dim=-1).numpy() == labels
        losses = label_losses(rows[torch.from_numpy(known)], labels[known])
        found = {"accuracy": self.accuracy(right[known], texts[known]), "nll": self.mean(losses)}
        if self.count < total:
            entropy = np.zeros(total)
            (np.maximum if self.tagged else np.add).at(entropy, texts, entropies(rows))
            found["auroc_predictive_entropy"] = auroc(entropy[: self.count], entropy[self.count :])
            if self._task == "classification":
                confidence = rows.exp().amax(dim=-1).numpy()
                found["auroc_max_probability"] = auroc(
                    -confidence[texts < self.count], -confidence[texts >= self.count]
                )
        return found

    def accuracy(self, right: np.ndarray, texts: np.ndarray) -> float:
        """The share of inputs all of whose questions are answered rightly, or of words."""
        return float(right.mean() if self.tagged else (np.bincount(texts, ~right, minlength=self.count) == 0).mean())

    def mean(self, values: np.ndarray) -> float:
        """The mean of the inputs' sums, or over words."""
        return float(values.mean() if self.tagged else values.sum() / self.count)

    def _scores(self, logits: Tensor) -> np.ndarray:
        return activated(logits.double(), self._activation).numpy()
