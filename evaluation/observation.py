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

    The members' divergence and pair disagreement are ``None`` without their probabilities; ``texts`` and ``words`` [N]
    are the places of a tagger's words.
    """

    members: int
    prediction: Prediction
    divergence: np.ndarray | None
    pair_disagreement: np.ndarray | None
    texts: np.ndarray | None = None
    words: np.ndarray | None = None

    def scores(self) -> dict[str, np.ndarray]:
        """Uncertainty scores by name, [N] each; higher means less certain."""
        prediction = self.prediction
        scores = {} if prediction.confidence is None else {"max_probability": -prediction.confidence}
        scores |= {name: getattr(prediction, name) for name in SCORES if self.members > 1 or name not in OF_MEMBERS}
        return {name: values for name, values in scores.items() if values is not None}


def observe(
    model: Model,
    inputs: Sequence[Any],
    batch_size: int,
    progress: Progress = no_progress,
    title: str = "predicting",
) -> Observation:
    """Run a model on inputs."""
    task = TASKS[model.architecture.task]

    def reduce(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        kept = {name: outputs[name] for name in (*task.outputs, DISTANCE) if name in outputs}
        kept |= {name: kept[name][:, model.columns] for name in PER_CLASS if name in kept}
        members = outputs.get(task.member_output)
        if members is not None and task.one_class:
            kept |= {"divergence": pairwise_divergence(members), "pair_disagreement": pairwise_disagreement(members)}
        return kept

    gather: Any = collect_words if model.architecture.every_token else collect
    how: dict[str, Any] = {"batch_size": batch_size, "progress": progress, "title": title}
    outputs, texts, words = gather(model.runs, model.processor, model.architecture, inputs, reduce, **how), None, None
    if model.architecture.every_token:
        outputs, texts, words = outputs.outputs, outputs.texts, outputs.words
    further = outputs.get("divergence"), outputs.get("pair_disagreement")
    return Observation(len(model.plan.members), Prediction.from_outputs(outputs), *further, texts, words)


@dataclass(frozen=True)
class Evidence:
    """Labelled and out-of-distribution examples, and what every model says of them."""

    known: Examples
    ood: Examples | None
    seen: list[Observation]
    seen_ood: list[Observation | None]
    labels: list[str]
    images: bool
