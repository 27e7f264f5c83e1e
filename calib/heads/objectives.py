"""What a circuit is searched for: objectives of uncertainty, lower is better, in nats.

With H_x the predictive entropy of example x, over N in-distribution examples i with labels y_i and K
out-of-distribution (OOD) examples o, drawn w times each by a bootstrap (else once):

    nll         Σ_i w_i · −log p(y_i | i)  ÷  Σ_i w_i
    separation  Σ_i Σ_o w_i w_o · log(1 + exp(H_i − H_o))  ÷  Σ_i Σ_o w_i w_o
    both        nll + separation

``separation`` is the log-loss of deciding which of a pair is the OOD one by the difference of their entropies: a smooth
stand-in for 1 − AUROC, which counts pairs in the wrong order. Both terms are mean log-losses in nats and weigh 1.

An input is one or several questions, each a softmax: its class; for each label, and for a score whose labels say what
is relevant, two classes with the logits 0 and z (``calib.losses``); for each word of a tagger its tag. Entropy and
loss of an input are the sums over its questions; of a tagger the entropy of the least sure word, as spans have it, and
the mean loss of its tagged words, as in training. Of a regression ``nll`` is the squared error; it has no entropy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...bundle.architecture import Architecture
from ...data.examples import Examples
from ...data.label_encoding import IGNORED
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


class Answers:
    """How logits of a task are read; K inputs come first among N, and have labels.

    These are classes of Q questions, [K, Q], or :data:`IGNORED`; of a regression [K] numbers. ``words`` [N, W] bool are
    those that a tagger reads.
    """

    def __init__(self, architecture: Architecture, known: Examples, words: np.ndarray | None = None) -> None:
        self._task, self._activation = architecture.task, architecture.score_activation
        self.labels = labels = np.asarray(known.labels)
        self.has_uncertainty = True
        if architecture.task == "score":
            self.has_uncertainty = loss_of(labels, self._activation, known.source) == "cross-entropy"
        if words is not None:
            self.labels = np.full((len(labels), words.shape[1]), IGNORED)
            shared = min(labels.shape[1], words.shape[1])
            self.labels[:, :shared] = np.where(words[: len(labels), :shared], labels[:, :shared], IGNORED)
        elif self.has_uncertainty:
            self.labels = labels.astype(np.int64).reshape(len(labels), -1)

    def entropies(self, logits: Tensor) -> np.ndarray:
        """Logits [..., B, C], of taggers [..., B, W, C] → nats [..., B]; zeros of a regression."""
        if not self.has_uncertainty:
            return np.zeros(logits.shape[:-1])
        return self._joined(entropies(self._questions(logits)))

    def losses(self, logits: Tensor, labels: np.ndarray) -> np.ndarray:
        """Logits as above and some of the labels, [B, …] → [..., B]."""
        if not self.has_uncertainty:
            found: np.ndarray = (self._scores(logits) - labels) ** 2
            return found
        asked = labels != IGNORED
        total: np.ndarray = (label_losses(self._questions(logits), np.where(asked, labels, 0)) * asked).sum(axis=-1)
        return total / np.maximum(asked.sum(axis=-1), 1) if self._task == "tokens" else total

    def figures(self, logits: Tensor) -> dict[str, float]:
        """Accuracy, NLL and AUROC of members' averaged probabilities, from logits [M, N, C]; of a regression RMSE."""
        count = len(self.labels)
        if not self.has_uncertainty:
            return {"rmse": rmse(self.labels - self._scores(logits).mean(axis=0)[:count])}
        # logits of the averaged probabilities, [N, Q, C]: their softmax is the average again
        rows = self._questions(logits).double().softmax(dim=-1).mean(dim=0).clamp(min=1e-30).log()
        asked = self.labels != IGNORED
        right = rows[:count].argmax(dim=-1).numpy() == self.labels
        losses = label_losses(rows[:count], np.where(asked, self.labels, 0))
        if self._task == "tokens":
            found = {"accuracy": float(right[asked].mean()), "nll": float(losses[asked].mean())}
        else:
            found = {"accuracy": float(right.all(axis=-1).mean()), "nll": float(losses.sum(axis=-1).mean())}
        if count < len(rows):
            entropy, confidence = self._joined(entropies(rows)), rows.exp().amax(dim=(1, 2)).numpy()
            found["auroc_predictive_entropy"] = auroc(entropy[:count], entropy[count:])
            if self._task == "classification":
                found["auroc_max_probability"] = auroc(-confidence[:count], -confidence[count:])
        return found

    def _questions(self, logits: Tensor) -> Tensor:
        """The logits of every question, [..., B, Q, C]."""
        if self._task == "classification":
            return logits[..., None, :]
        return logits if self._task == "tokens" else label_pairs(logits)

    def _joined(self, each: np.ndarray) -> np.ndarray:
        """Entropies of questions [..., Q] as one of the input."""
        found: np.ndarray = each.max(axis=-1, initial=0.0) if self._task == "tokens" else each.sum(axis=-1)
        return found

    def _scores(self, logits: Tensor) -> np.ndarray:
        return activated(logits.double(), self._activation).numpy()
