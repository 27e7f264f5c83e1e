"""A model's predictions on data, example by example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.examples import Examples
from ..metrics.uncertainty import pairwise_disagreement, pairwise_divergence
from ..progress import Progress, no_progress
from ..runtime import Prediction
from ..runtime.collect import collect, collect_words
from ..tasks import DISTANCE, PER_CLASS, TASKS
from .competitors import Model

SCORES = ("predictive_entropy", "mutual_information", "energy", "distance", "score_variance")

OF_MEMBERS = ("mutual_information", "score_variance")


@dataclass(frozen=True)
class Observation:
    """A model's predictions on N inputs, its classes in the order of the first model's.

    ``divergence`` and ``pair_disagreement`` are ``None`` without the members' probabilities. ``texts`` and ``words``
    [N] are the indices of words in token classification.
    """

    members: int
    prediction: Prediction
    divergence: np.ndarray | None
    pair_disagreement: np.ndarray | None
    texts: np.ndarray | None = None
    words: np.ndarray | None = None

    def scores(self) -> dict[str, np.ndarray]:
        """Return uncertainty scores [N] by name; higher means less certain."""
        prediction = self.prediction
        scores = {} if prediction.confidence is None else {"max_probability": -prediction.confidence}
        scores |= {name: getattr(prediction, name) for name in SCORES if self.members > 1 or name not in OF_MEMBERS}
        return {name: values for name, values in scores.items() if values is not None}


def observe(
    model: Model, inputs: Sequence[Any], batch_size: int, progress: Progress = no_progress, title: str = "predicting"
) -> Observation:
    """Run a model on inputs."""
    task = TASKS[model.architecture.task]

    def reduce(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        reduced = {name: outputs[name] for name in (*task.outputs, DISTANCE) if name in outputs}
        reduced |= {name: reduced[name][:, model.columns] for name in PER_CLASS if name in reduced}
        members = outputs.get(task.member_output)
        if members is not None and task.one_class:
            reduced["divergence"] = pairwise_divergence(members)
            reduced["pair_disagreement"] = pairwise_disagreement(members)
        return reduced

    gather: Any = collect_words if model.architecture.every_token else collect
    settings: dict[str, Any] = {"batch_size": batch_size, "progress": progress, "title": title}
    outputs = gather(model.runs, model.processor, model.architecture, inputs, reduce, **settings)
    texts = words = None
    if model.architecture.every_token:
        outputs, texts, words = outputs.outputs, outputs.texts, outputs.words
    further = outputs.get("divergence"), outputs.get("pair_disagreement")
    return Observation(len(model.plan.members), Prediction.from_outputs(outputs), *further, texts, words)


@dataclass(frozen=True)
class Evidence:
    """Test set and OOD examples, with every model's predictions."""

    test_set: Examples
    ood: Examples | None
    seen: list[Observation]
    seen_ood: list[Observation | None]
    labels: list[str]
    images: bool
