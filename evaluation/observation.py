"""A model's predictions on data, example by example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..data.examples import Examples
from ..metrics.class_metrics import log_losses
from ..metrics.uncertainty import pairwise_disagreement, pairwise_divergence
from ..progress import Progress, no_progress
from ..runtime import Prediction
from ..runtime.collect import Sweep
from ..tasks import DISTANCE, PER_CLASS, TASKS
from .competitors import Model

SCORES = ("predictive_entropy", "mutual_information", "energy", "distance", "score_variance")

OF_MEMBERS = ("mutual_information", "score_variance")


@dataclass(frozen=True)
class Observation:
    """A model's predictions on N inputs, its classes in the order of the first model's.

    ``divergence`` and ``pair_disagreement`` are ``None`` without the members' probabilities; ``alone`` holds the
    members' own NLL and accuracy [N], averaged over members, of labelled examples. ``texts`` and ``words`` [N] are the
    indices of words in token classification. ``logits`` [N, 1, C] are a single model's.
    """

    members: int
    prediction: Prediction
    divergence: np.ndarray | None
    pair_disagreement: np.ndarray | None
    texts: np.ndarray | None = None
    words: np.ndarray | None = None
    alone: Mapping[str, np.ndarray] = field(default_factory=dict)
    logits: np.ndarray | None = None

    def scores(self) -> dict[str, np.ndarray]:
        """Return uncertainty scores [N] by name; higher means less certain."""
        prediction = self.prediction
        scores = {} if prediction.confidence is None else {"max_probability": -prediction.confidence}
        scores |= {name: getattr(prediction, name) for name in SCORES if self.members > 1 or name not in OF_MEMBERS}
        return {name: values for name, values in scores.items() if values is not None}


def observe(model: Model, inputs: Sequence[Any], batch_size: int, progress: Progress = no_progress,
            title: str = "predicting", labels: np.ndarray | None = None) -> Observation:  # fmt: skip
    """Run a model on inputs; ``labels`` [N] of a classification also measure the members alone."""
    sweep = Sweep(model.runs, model.processor, model.architecture, inputs, batch_size, progress, title)
    classes = TASKS[model.architecture.task].one_class and not model.architecture.every_token
    reduce = partial(_reduced, model, labels if classes else None)
    if model.architecture.every_token:
        words = sweep.collect_words(reduce)
        return _observation(model, words.outputs, words.texts, words.words)
    return _observation(model, sweep.collect(reduce))


def uncalibrated(model: Model, calibrated: Observation) -> Observation:
    """Observe a checkpoint from the logits of its calibrated twin."""
    import torch

    from ..fusion.output_heads import summarize_task

    assert calibrated.logits is not None  # a single model's
    logits = torch.from_numpy(calibrated.logits).transpose(0, 1)  # [1, N, C]
    fields = vars(summarize_task(model.architecture, logits))
    outputs = {name: each.numpy() for name, each in fields.items() if each is not None}
    return _observation(model, _reduced(model, None, outputs), calibrated.texts, calibrated.words)


ALONE = ("member_nll", "member_accuracy")


def _reduced(model: Model, labels: np.ndarray | None, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    task = TASKS[model.architecture.task]
    reduced = {name: outputs[name] for name in (*task.outputs, DISTANCE) if name in outputs}
    reduced |= {name: reduced[name][:, model.columns] for name in PER_CLASS if name in reduced}
    members = outputs.get(task.member_output)
    if members is not None and task.one_class:
        reduced["divergence"] = pairwise_divergence(members)
        reduced["pair_disagreement"] = pairwise_disagreement(members)
    if members is not None and labels is not None:
        own = model.columns[labels[outputs["places"]]]  # [B], in the model's own order of classes
        losses = [log_losses(members[:, member], own) for member in range(members.shape[1])]
        right = (members.argmax(axis=2) == own[:, None]).mean(axis=1)
        reduced |= dict(zip(ALONE, (np.mean(losses, axis=0), right), strict=True))
    if model.kind == "single" and "member_logits" in outputs:
        reduced["member_logits"] = outputs["member_logits"]
    return reduced


def _observation(model: Model, outputs: Mapping[str, np.ndarray], *words: np.ndarray | None) -> Observation:
    texts, places = words or (None, None)
    alone = {name: outputs[name] for name in ALONE if name in outputs}
    further = outputs.get("divergence"), outputs.get("pair_disagreement"), texts, places, alone
    return Observation(
        len(model.plan.members), Prediction.from_outputs(outputs), *further, logits=outputs.get("member_logits")
    )


@dataclass(frozen=True)
class Evidence:
    """Test set and OOD examples, with every model's predictions."""

    test_set: Examples
    ood: Examples | None
    seen: list[Observation]
    seen_ood: Sequence[Observation | None]
    labels: list[str]
    images: bool
