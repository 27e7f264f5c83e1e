"""Trials of candidate plans on held-out examples, and the choice among them.

The objective is the negative log-likelihood after fitting one temperature, or for a regression the scale of the
members' variance (``metrics.scores``). Without this fit the plan that prunes least would always win. Plans are as good
as the best within one standard error of the paired difference, or within 0.005 nats. Of these the plan of highest
mutual information wins; on a tie, the cheaper plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...bundle.architecture import Architecture
from ...data.batching import Batch, CachedBatches, item_batches
from ...data.examples import Examples
from ...data.processor import Processor
from ...errors import InputError
from ...fusion.module import FusedClassifier
from ...metrics.scores import fit_scale, gaussian_nll, information, rmse
from ...progress import Progress, no_progress
from ..losses import activated
from .candidates import Candidate, round_up
from .masking import pruned_logits
from .objectives import Questions

TEMPERATURES = tuple(2 ** (step / 4) for step in range(-8, 9))  # candidate temperatures, 0.25 to 4


@dataclass(frozen=True)
class Trial:
    """A candidate measured on held-out examples, after fitting one temperature, or the scale of a regression.

    Losses [N] belong to the objective. For token classification they are sums over words ÷ mean words of a text.
    Accuracy counts examples with all labels correct; a regression has an RMSE instead.
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
        assert self.rmse is not None  # a regression has no accuracy
        assert single.rmse is not None
        return 100 * (self.rmse - single.rmse) / max(single.rmse, float(np.finfo(np.float32).tiny))

    def fits_better(self, other: Trial) -> bool:
        """Return True if NLL and any accuracy are better than on other examples by more than two standard errors."""
        gaps = [(other.nll - self.nll, [each.losses.var() / len(each.losses) for each in (self, other)])]
        if self.accuracy is not None and other.accuracy is not None:
            rates = ((self.accuracy, len(self.losses)), (other.accuracy, len(other.losses)))
            gaps.append((self.accuracy - other.accuracy, [rate * (1 - rate) / count for rate, count in rates]))
        return all(gap > 2 * math.sqrt(sum(variances)) for gap, variances in gaps)

    def quality(self) -> str:
        """Accuracy or RMSE in words."""
        return f"a RMSE of {self.rmse:.4g}" if self.accuracy is None else f"an accuracy of {self.accuracy:.3f}"

    def to_json(self) -> dict[str, Any]:
        """One row of the table of candidates; metrics rounded, the cost ratio rounded up."""
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


def loss_text(loss: str, single: Trial) -> str:
    """A loss against the single model, in words."""
    return f"{loss} % of the RMSE" if single.accuracy is None else f"{loss} points of accuracy"


class HeldOut:
    """Held-out examples for trials of candidates; tensors and labelled questions are cached."""

    def __init__(self, examples: Examples, processor: Processor, architecture: Architecture, batch_size: int) -> None:
        self.questions, self.activation = Questions(architecture, examples), architecture.score_activation
        self.batches = CachedBatches(self._each(item_batches(examples.inputs, processor, architecture, batch_size)))
        self.labels = torch.from_numpy(np.concatenate(self.questions.labels))  # [R], as the texts
        self.texts = np.concatenate(self.questions.texts)
        if not len(self.labels):
            raise InputError(f"no word in the held-out examples of {examples.source} has a tag; give more examples")

    def _each(self, prepared: Iterable[tuple[np.ndarray, list[Any], Batch]]) -> Iterator[Batch]:
        for places, items, arrays in prepared:
            self.questions.add(places, items, arrays, unlabelled=False)
            yield arrays

    def by_text(self, losses: np.ndarray) -> np.ndarray:
        """Losses of questions → sums by text [N]; for words, divided by the mean number of words of a text."""
        share = self.questions.count / len(losses) if self.questions.tagged else 1.0
        return np.bincount(self.texts, losses, minlength=self.questions.count) * share


def measure(
    module: FusedClassifier, candidates: Sequence[Candidate], held_out: HeldOut, *, progress: Progress = no_progress
) -> list[Trial]:
    """Try every candidate plan of a whole model (``fusion.ensemble.whole_model``) on held-out examples."""
    keeps = dict.fromkeys(keep for candidate in candidates for keep in candidate.members)
    steps = progress(held_out.batches, len(held_out.batches), f"running {len(keeps)} pruned members")
    logits = pruned_logits(module, keeps, steps, held_out.questions)
    tried = _regression_trial if held_out.questions.regression else _trial
    plans = progress(candidates, len(candidates), "comparing plans")
    return [tried(plan, torch.stack([logits[keep] for keep in plan.members]), held_out) for plan in plans]


def choose(trials: Sequence[Trial]) -> Trial:
    """The most diverse of the trials as good as the lowest NLL; on a tie, the cheapest."""
    best = min(trials, key=lambda trial: (trial.nll, trial.candidate.ratio))
    equal = []
    for trial in trials:
        lost = trial.losses - best.losses
        if lost.mean() <= max(lost.std() / math.sqrt(len(lost)), 0.005):
            equal.append(trial)
    return max(equal, key=lambda trial: (trial.mutual_information, -trial.candidate.ratio))


def _trial(candidate: Candidate, logits: Tensor, held_out: HeldOut) -> Trial:
    """Fit the temperature of member logits [M, R, C] and measure."""
    losses = [_losses(logits / temperature, held_out.labels) for temperature in TEMPERATURES]
    best = int(np.argmin([float(loss.mean()) for loss in losses]))
    logs = (logits / TEMPERATURES[best]).double().log_softmax(dim=-1)
    mean = logs.exp().mean(dim=0)
    information = torch.special.entr(mean).sum(dim=-1) + (logs.exp() * logs).sum(dim=-1).mean(dim=0)
    questions, by_text = held_out.questions, held_out.by_text(losses[best].numpy())
    accuracy = questions.accuracy((mean.argmax(dim=-1) == held_out.labels).numpy(), held_out.texts)
    return Trial(candidate, TEMPERATURES[best], by_text, accuracy, questions.mean(information.clamp(min=0).numpy()))


def _regression_trial(candidate: Candidate, stacked: Tensor, held_out: HeldOut) -> Trial:
    """Fit the scale of members' scores, from logits [M, N, 1], and measure."""
    members = activated(stacked, held_out.activation).double().numpy()
    errors, variance = held_out.labels.numpy() - members.mean(axis=0), members.var(axis=0)
    scale = fit_scale(errors, variance)
    losses = gaussian_nll(errors, variance, scale)
    return Trial(candidate, 1.0, losses, None, float(information(variance, scale).mean()), rmse(errors))


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """−log of the averaged probability of each label, [N] float64, from member logits [M, N, C]."""
    chosen = logits.gather(-1, labels.expand(len(logits), -1)[..., None])[..., 0]
    logs = (chosen - logits.logsumexp(dim=-1)).double()  # [M, N]
    return math.log(len(logits)) - logs.logsumexp(dim=0)
