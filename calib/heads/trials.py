"""Candidate plans on held-out examples, and the choice among them.

The objective is the negative log-likelihood: probabilities are averaged, then one temperature is fitted, then it is
measured. For a multi-label model it is that of all labels of an example. For a regression it is that of the labels
under normal errors, after fitting the scale of the members' variance (``metrics.scores``). Without the temperature it
would count the lower confidence of pruned members, which calibration takes away, and always prefer the plan that
prunes least. Of the plans that are as good as the best one (within one standard error of the paired difference, or
within 0.005 nats), that of highest mutual information wins: diversity that costs next to nothing. On a tie, the
cheaper one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...bundle.architecture import Architecture
from ...bundle.plan import Keep
from ...data.batching import Batch, CachedBatches, item_batches
from ...data.examples import Examples
from ...data.label_encoding import IGNORED, are_tags, batch_labels
from ...data.processor import Processor
from ...errors import InputError
from ...families.registry import architecture_of, layout_of
from ...metrics.scores import fit_scale, gaussian_nll, information, rmse
from ...progress import Progress, no_progress
from ...tasks.regression import Loss, loss_of
from ..losses import activated, label_pairs, two_classes
from .candidates import Candidate, round_up
from .taylor import gated_heads

SLACK = 0.005
"""NLL in nats that a plan may lose for the sake of diversity."""

TEMPERATURES = tuple(2 ** (step / 4) for step in range(-8, 9))
"""Tried for the calibrated objective: 0.25 to 4."""


@dataclass(frozen=True)
class Trial:
    """A candidate measured on held-out examples, after fitting one temperature, or the scale of a regression.

    Attributes:
        candidate: what was measured.
        temperature: of all member logits, fitted on these examples; 1 for a regression.
        losses: −log averaged probability of the label, or of all labels, nats, [N]; of tags of words summed for each
            text, in shares of the mean text's words; of a regression its density under the fitted scale
            (``metrics.scores``).
        accuracy: of the averaged probabilities; of a multi-label model the share of examples all of whose labels are
            right at 0.5; ``None`` for a regression.
        mutual_information: mean over examples, or labelled words, nats.
        rmse: of the scores of a regression; ``None`` otherwise.
    """

    candidate: Candidate
    temperature: float
    losses: np.ndarray
    accuracy: float | None
    mutual_information: float
    rmse: float | None = None

    @property
    def nll(self) -> float:
        """Mean of the losses."""
        return float(self.losses.mean())

    def lost(self, single: Trial) -> float:
        """Percentage points of accuracy below the single model, or per cent of RMSE above it."""
        if self.accuracy is not None and single.accuracy is not None:
            return 100 * (single.accuracy - self.accuracy)
        assert self.rmse is not None  # what has no accuracy is a regression
        assert single.rmse is not None
        return 100 * (self.rmse - single.rmse) / max(single.rmse, float(np.finfo(np.float32).tiny))

    def quality(self) -> str:
        """How right it is, in words."""
        return f"a RMSE of {self.rmse:.4g}" if self.accuracy is None else f"an accuracy of {self.accuracy:.3f}"

    def to_json(self) -> dict[str, Any]:
        """One row of the table of candidates; figures rounded, the cost ratio upwards."""
        return {
            "fork": self.candidate.fork,
            "counts": list(self.candidate.counts),
            "ratio": round_up(self.candidate.ratio),
            "nll": round(self.nll, 5),
            "temperature": round(self.temperature, 3),
            **({} if self.accuracy is None else {"accuracy": round(self.accuracy, 4)}),
            **({} if self.rmse is None else {"rmse": float(f"{self.rmse:.4g}")}),
            "mutual_information": round(self.mutual_information, 5),
        }


def lost_words(loss: str, single: Trial) -> str:
    """What is lost to the single model, in words."""
    return f"{loss} % of the RMSE" if single.accuracy is None else f"{loss} points of accuracy"


class HeldOut:
    """Held-out examples that candidates are tried on; their tensors are made once."""

    def __init__(self, examples: Examples, processor: Processor, architecture: Architecture, batch_size: int) -> None:
        self._given = np.asarray(examples.labels)
        self._count = len(examples)
        self.labels = torch.from_numpy(self._given)  # of tags those of every labelled word, once the tensors are made
        self.activation = architecture.score_activation
        self.loss: Loss | None = None  # of a classifier, whose labels are classes
        if architecture.task == "score":
            self.loss = loss_of(np.asarray(examples.labels), self.activation, examples.source)
        self._places: list[np.ndarray] = []
        self._tags: list[np.ndarray] = []
        self._batches = CachedBatches(self._each(item_batches(examples.inputs, processor, architecture, batch_size)))
        if architecture.every_token:
            tagged = zip(self._places, self._tags, strict=True)
            self._texts = np.concatenate([places[np.nonzero(tags != IGNORED)[0]] for places, tags in tagged])
            self.labels = torch.from_numpy(np.concatenate([tags[tags != IGNORED] for tags in self._tags]))
            if not len(self.labels):
                raise InputError(f"no word of the held-out examples of {examples.source} has a tag; give more examples")

    def __len__(self) -> int:
        return self._count

    @property
    def answers(self) -> int:
        """Rows of logits: N, or the number of labelled words."""
        return len(self.labels)

    def kept(self, batch: int, places: Tensor, logits: Tensor) -> tuple[Any, Tensor]:
        """Which rows a batch's logits [B, C], or [B, T, C], fill, and with what."""
        if not self._tags:
            return places, logits
        ends = np.cumsum([(tags != IGNORED).sum() for tags in self._tags])
        real = torch.from_numpy(self._tags[batch] != IGNORED)
        return slice(int(ends[batch] - real.sum()), int(ends[batch])), logits[real]

    def by_text(self, losses: np.ndarray) -> np.ndarray:
        """Losses of answers → [N] of examples, of the same mean: words of one text do not vary by themselves."""
        if not self._tags:
            return losses
        return np.bincount(self._texts, losses, minlength=self._count) * (self._count / len(losses))

    def batches(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Places and tensors of one batch after the other."""
        for places, arrays in zip(self._places, self._batches, strict=True):
            yield torch.from_numpy(places), {name: torch.from_numpy(array) for name, array in arrays.items()}

    def steps(self) -> int:
        """Number of batches."""
        return len(self._places)

    def _each(self, made: Iterable[tuple[np.ndarray, list[Any], Batch]]) -> Iterator[Batch]:
        for places, items, arrays in made:
            self._places.append(places)
            if are_tags(self._given):
                self._tags.append(batch_labels(items, self._given[places], arrays))
            yield arrays


def measure(
    model: nn.Module, candidates: Sequence[Candidate], held_out: HeldOut, *, progress: Progress = no_progress
) -> list[Trial]:
    """Try every candidate on held-out examples.

    Returns:
        One trial for each candidate, in order.
    """
    keeps = list(dict.fromkeys(keep for candidate in candidates for keep in candidate.members))
    logits = _logits_of(model, keeps, held_out, progress)
    trials = []
    for candidate in progress(candidates, len(candidates), "comparing plans"):
        stacked = torch.stack([logits[keep] for keep in candidate.members])
        if held_out.loss == "squared error":
            trials.append(_regression_trial(candidate, activated(stacked, held_out.activation), held_out.labels))
        elif held_out.labels.dtype == torch.bool:
            trials.append(_label_trial(candidate, label_pairs(stacked), held_out.labels))
        elif held_out.loss is not None:
            trials.append(_trial(candidate, two_classes(stacked), held_out.labels.long()))
        else:
            trials.append(_trial(candidate, stacked, held_out.labels))
    return [replace(trial, losses=held_out.by_text(trial.losses)) for trial in trials]


def choose(trials: Sequence[Trial]) -> Trial:
    """Of the trials as good as that of the least NLL, the most diverse; on a tie the cheapest."""
    best = min(trials, key=lambda trial: (trial.nll, trial.candidate.ratio))
    level = [trial for trial in trials if _as_good(trial.losses - best.losses)]
    return max(level, key=lambda trial: (trial.mutual_information, -trial.candidate.ratio))


def _as_good(differences: np.ndarray) -> bool:
    """Whether losses [N] above the best plan's are within one standard error of none, or of no account."""
    return bool(differences.mean() <= max(differences.std() / math.sqrt(len(differences)), SLACK))


def _trial(candidate: Candidate, logits: Tensor, labels: Tensor) -> Trial:
    """Fit the temperature of member logits [M, N, C] and measure."""
    losses = [_losses(logits / temperature, labels) for temperature in TEMPERATURES]
    best = int(np.argmin([float(loss.mean()) for loss in losses]))
    logs = (logits / TEMPERATURES[best]).double().log_softmax(dim=-1)
    mean = logs.exp().mean(dim=0)
    information = torch.special.entr(mean).sum(dim=-1) + (logs.exp() * logs).sum(dim=-1).mean(dim=0)
    return Trial(
        candidate,
        TEMPERATURES[best],
        losses[best].numpy(),
        float((mean.argmax(dim=-1) == labels).double().mean()),
        float(information.clamp(min=0).mean()),
    )


def _label_trial(candidate: Candidate, logits: Tensor, labels: Tensor) -> Trial:
    """Fit the temperature of member logits [M, N, C, 2] on labels [N, C], and measure."""
    flat = logits.flatten(1, 2)  # [M, N·C, 2]
    trial = _trial(candidate, flat, labels.flatten().long())
    mean = (flat / trial.temperature).double().softmax(dim=-1).mean(dim=0)[:, 1].unflatten(0, labels.shape)  # [N, C]
    return replace(
        trial,
        losses=trial.losses.reshape(labels.shape).sum(axis=-1),
        accuracy=float(((mean > 0.5) == labels).all(dim=-1).double().mean()),
        mutual_information=trial.mutual_information * labels.shape[1],
    )


def _regression_trial(candidate: Candidate, scores: Tensor, labels: Tensor) -> Trial:
    """Fit the scale of members' scores [M, N] and measure."""
    members = scores.double().numpy()
    errors, variance = labels.numpy() - members.mean(axis=0), members.var(axis=0)
    scale = fit_scale(errors, variance)
    losses = gaussian_nll(errors, variance, scale)
    return Trial(candidate, 1.0, losses, None, float(information(variance, scale).mean()), rmse(errors))


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """−log of the averaged probability of each label, [N] float64, from member logits [M, N, C]."""
    chosen = logits.gather(-1, labels.expand(len(logits), -1)[..., None])[..., 0]
    logs = (chosen - logits.logsumexp(dim=-1)).double()  # [M, N]
    return math.log(len(logits)) - logs.logsumexp(dim=0)


def _logits_of(model: nn.Module, keeps: Sequence[Keep], held_out: HeldOut, progress: Progress) -> dict[Keep, Tensor]:
    """Logits [N, C] float32 of every pruned member; what stands below its first pruned layer runs once a batch."""
    architecture = architecture_of(model)
    found = {keep: torch.empty(held_out.answers, architecture.classes) for keep in keeps}
    training = model.training
    model.eval()
    try:
        steps = progress(held_out.batches(), held_out.steps(), f"running {len(keeps)} pruned members")
        for batch, (places, tensors) in enumerate(steps):
            with torch.no_grad():
                trunk = _layer_outputs(model, tensors)
                for keep in keeps:
                    full = [len(kept) == architecture.heads for kept in keep]
                    fork = full.index(False) if False in full else len(full)
                    with _replayed(model, trunk[:fork]), gated_heads(model, _gates(keep, architecture.heads)):
                        rows, logits = held_out.kept(batch, places, model(**tensors).logits.float())
                        found[keep][rows] = logits
    finally:
        model.train(training)
    return found


def _gates(keep: Keep, heads: int) -> list[Tensor]:
    """One [1, 1, H, 1] gate for each layer: 1 for heads that stay."""
    gates = torch.zeros(len(keep), 1, 1, heads, 1)
    for layer, kept in enumerate(keep):
        gates[layer, 0, 0, list(kept)] = 1
    return list(gates)


def _layers(model: nn.Module) -> list[nn.Module]:
    layout = layout_of(model)
    return [model.get_submodule(layout.layer.format(l=layer)) for layer in range(architecture_of(model).layers)]


def _layer_outputs(model: nn.Module, inputs: dict[str, Tensor]) -> list[Any]:
    """What each layer of the unpruned model returns."""
    found: list[Any] = []
    handles = [
        layer.register_forward_hook(lambda _module, _arguments, output: found.append(output))
        for layer in _layers(model)
    ]
    try:
        model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def _replayed(model: nn.Module, outputs: Sequence[Any]) -> Iterator[None]:
    """Let the first layers return recorded outputs instead of running."""
    layers = _layers(model)[: len(outputs)]
    for layer, output in zip(layers, outputs, strict=True):
        layer.forward = lambda *_, output=output, **__: output
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own comes back
